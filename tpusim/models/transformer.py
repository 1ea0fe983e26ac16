"""The transformer, decoder or encoder: one builder for every one, dense or of experts.

Written forward only, over named dimensions. The gradient, the recomputation, the sharding and the
memory follow from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import lcm, prod

from tpusim.errors import ModelError
from tpusim.graph import COMPUTE, Einsum, Gather, Graph, Op, Pointwise, Role, Scan, Tensor
from tpusim.models.block import SOFTMAX_FLOPS, Block, block_ops
from tpusim.models.checks import check_dimensions, check_experts, check_latent, check_types
from tpusim.models.experts import Routed, Routing, share_of_slots
from tpusim.models.latent import latent_dims
from tpusim.models.parts import RESIDUAL, TOKEN, norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The dimensions of a transformer.

    kv_heads: fewer than `heads` for grouped-query attention, 1 for multi-query.
    gated: the MLP has two input matrices, the product of which goes on.
    parallel: attention and MLP read the same norm and are added together (PaLM, GPT-J).
    post_norms: what attention and MLP make is normed before it is added (Gemma 2 and 3).
    qk_norm: queries and keys are normed over `head_dim`, with one scale for all heads (Qwen3).
    attention: `flash` is a fused kernel, `dot` writes the scores to HBM.
    softmax_dtype: where attention is `dot`, the dtype of the scores that the softmax takes: the
        plan's (`compute`), or `f32`. A kernel keeps them on the chip.
    window: keys that a query sees, 0 for all of them. global_every: where there is a window, each
        so many-th layer sees all keys (Gemma 3: 6), 0 for none (Mistral). Layers that do not fill
        the last pattern see the window.
    kv_rank: where attention is latent (DeepSeek), the width of the latent that keys and values are
        brought up from; 0 for attention without one. q_rank: that of the queries', 0 where they
        are projected at once. head_dim is then the whole width of queries and keys, rope_dim the
        part of it that is rotated, and v_head_dim the width of the values (0: head_dim).
    experts: MLPs of which the router gives each token `experts_per_token`, 0 for a dense model.
        expert_mlp: their width, 0 for `mlp`. shared_mlp: the width of those that all tokens take
        besides, together. dense_layers: the first layers that have none. expert_every: each so
        many-th layer has experts, the others `mlp` (GShard: 2).
    """

    name: str = "transformer"
    kind: str = "decoder"
    layers: int
    embed: int
    mlp: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    vocab: int
    gated: bool = True
    activation: str = "silu"
    parallel: bool = False
    post_norms: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    rotary: bool = True
    attention: str = "flash"
    softmax_dtype: str = COMPUTE
    window: int = 0
    global_every: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    v_head_dim: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_mlp: int = 0
    shared_mlp: int = 0
    dense_layers: int = 0
    expert_every: int = 1

    def __post_init__(self) -> None:
        check_types(self)
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self._derived_head_dim())
        if self.kv_rank and not self.v_head_dim:
            object.__setattr__(self, "v_head_dim", self.head_dim)
        check_dimensions(self)
        check_latent(self)
        check_experts(self)

    def _derived_head_dim(self) -> int:
        if self.heads < 1 or self.embed % self.heads:
            raise ModelError(
                f"{self.name}: embed {self.embed} does not divide into {self.heads} heads; "
                "give head_dim"
            )
        return self.embed // self.heads

    @property
    def causal(self) -> bool:
        """A decoder's query sees the keys before it only."""
        return self.kind == "decoder"

    @property
    def period(self) -> int:
        """Layers after which the pattern repeats: those of one trip of the scan."""
        return lcm(self._windows, self.expert_every)

    @property
    def _windows(self) -> int:
        """Layers after which the pattern of windows repeats."""
        return max(self.global_every, 1) if self.window else 1

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts, counted from 0."""
        late = layer >= self.dense_layers
        return bool(self.experts) and late and (layer + 1) % self.expert_every == 0

    def window_of(self, layer: int) -> int:
        """The window of a layer, counted from 0; the last of each pattern sees all keys."""
        whole = self.global_every and (layer + 1) % self.global_every == 0
        return 0 if whole else self.window

    @property
    def parameter_count(self) -> int:
        """How many weights the model has."""
        return self.graph(batch=1, seq_len=1).parameter_count

    @property
    def active_parameter_count(self) -> int:
        """How many of its weights a token passes: of the experts' those of its choices."""
        graph = self.graph(batch=1, seq_len=1)
        own = (p for p in graph.parameters if p.tensor.dims[0] == "expert")
        idle = sum(p.copies * prod(graph.sizes[dim] for dim in p.tensor.dims[1:]) for p in own)
        return graph.parameter_count - idle * (self.experts - self.experts_per_token)

    def graph(
        self, *, batch: int, seq_len: int, logits_dtype: str = COMPUTE,
        routing: Routing | None = None,
    ) -> Graph:  # fmt: skip
        """The forward pass and the loss, for `batch` sequences of `seq_len` tokens.

        routing: how tokens find their experts; without a capacity, by a sort, if not given.
        """
        dims = {
            "batch": batch, "seq": seq_len, "kv_seq": seq_len, "embed": self.embed,
            "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
            "mlp": self.mlp, "vocab": self.vocab,
            **latent_dims(
                self.head_dim, self.q_rank, self.kv_rank, self.rope_dim, self.v_head_dim
            ),
        }  # fmt: skip
        routed = _routed(self, seq_len, routing or Routing())
        if routed:
            dims |= {
                "expert": self.experts, "choice": self.experts_per_token,
                "slot": routed.routing.slots(seq_len, self.experts, self.experts_per_token),
                "expert_mlp": self.expert_mlp or self.mlp,
            }  # fmt: skip
            dims |= {"shared_mlp": self.shared_mlp} if self.shared_mlp else {}
        ops = _model_ops(self, seq_len, logits_dtype, routed)
        return Graph(self.name, tuple(dims.items()), ops, _LOSS)


_LOSS = Tensor("loss", TOKEN, dtype="f32")


def _routed(m: Transformer, seq_len: int, routing: Routing) -> Routed | None:
    """The routing of the layers that have experts, if there are any."""
    if not m.experts:
        return None
    slots = routing.slots(seq_len, m.experts, m.experts_per_token)
    share = share_of_slots(slots, seq_len, m.experts, m.experts_per_token)
    return Routed(
        routing=routing, choices=m.experts_per_token, share=share, shared=bool(m.shared_mlp)
    )


def _model_ops(
    m: Transformer, seq_len: int, logits_dtype: str, routed: Routed | None
) -> tuple[Op, ...]:
    ids = Tensor("ids", TOKEN, Role.INPUT, "s32")
    table = Tensor("embedding", ("vocab", "embed"), Role.PARAM)
    head = table if m.tied_embeddings else Tensor("head", ("embed", "vocab"), Role.PARAM)
    first = Tensor("embedded", RESIDUAL)
    scans = _scans(m, seq_len, first, routed)
    (last,) = scans[-1].outputs
    logits = Tensor("logits", (*TOKEN, "vocab"), dtype=logits_dtype)
    normed = Tensor("final_norm", RESIDUAL)
    return (
        Gather("embed", table, ids, first, "vocab"),
        *scans,
        norm("final_norm", last, normed),
        Einsum("logits", normed, head, logits),
        Pointwise("loss", (logits, ids), (_LOSS,), SOFTMAX_FLOPS, over=("vocab",)),
    )  # fmt: skip


def _scans(m: Transformer, seq_len: int, first: Tensor, routed: Routed | None) -> tuple[Scan, ...]:
    """Scans over whole patterns of layers, of the first dense ones and of the others.

    Layers that are left over follow: in a scan (Gemma 3 27B: 2 of 62) where they are alike.
    """
    scans: list[Scan] = []
    for name, trips, layers in _runs(m):
        x, out = (Tensor(f"{name}/layer_{end}", RESIDUAL) for end in ("in", "out"))
        made = Tensor(f"{name}s_out", RESIDUAL)
        blocks = [_block(m, layer, seq_len, routed) for layer in layers]
        scans.append(
            Scan(f"{name}s", trips, _layers(blocks, name, x, out), ((first, x, out, made),))
        )
        first = made
    return tuple(scans)


def _runs(m: Transformer) -> Iterator[tuple[str, int, range]]:
    """The scans over layers: a name, the number of trips, and the layers of the first trip."""
    parts = (("dense_", 0, m.dense_layers, m._windows), ("", m.dense_layers, m.layers, m.period))
    for prefix, start, end, period in parts:
        patterns, left = divmod(end - start, period)
        last = range(end - left, end)
        if patterns:
            yield f"{prefix}layer", patterns, range(start, start + period)
        if len({(m.window_of(i), m.has_experts(i)) for i in last}) == 1:
            yield f"{prefix}last_layer", left, last[:1]
        elif left:
            yield f"{prefix}last_layer", 1, last


def _layers(blocks: Sequence[Block], name: str, x: Tensor, out: Tensor) -> tuple[Op, ...]:
    """The layers of one trip, one after the other."""
    if len(blocks) == 1:
        return block_ops(replace(blocks[0], name=name), x, out)
    between = (Tensor(f"{name}/{i}/layer_in", RESIDUAL) for i in range(1, len(blocks)))
    ends = pairwise((x, *between, out))
    named = (replace(block, name=f"{name}/{i}") for i, block in enumerate(blocks))
    return tuple(op for b, (given, made) in zip(named, ends, strict=True)
                 for op in block_ops(b, given, made))  # fmt: skip


def _block(m: Transformer, layer: int, seq_len: int, routed: Routed | None) -> Block:
    window = m.window_of(layer)
    narrow = 0 < window < seq_len
    whole_share = 0.5 if m.causal else 1.0
    return Block(
        name=m.name,
        kv_head="heads" if m.kv_heads == m.heads else "kv_heads",
        repeated=1 < m.kv_heads < m.heads,
        gated=m.gated,
        activation=m.activation,
        parallel=m.parallel,
        post_norms=m.post_norms,
        qk_norm=m.qk_norm,
        softmax_dtype=m.softmax_dtype,
        rotary=m.rotary,
        fused=m.attention == "flash",
        causal=m.causal,
        window=window if narrow else 0,
        share=window / seq_len if narrow else whole_share,
        latent=m.kv_rank > 0,
        low_rank_queries=m.q_rank > 0,
        routed=routed if m.has_experts(layer) else None,
    )
