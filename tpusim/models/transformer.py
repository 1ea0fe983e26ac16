"""The transformer, decoder or encoder, dense or with experts, as a graph.

Only the forward pass is written, over named dimensions. The gradient, the recomputation, the
sharding and the memory follow from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import lcm, prod
from typing import Any, ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.base.grouped_keys import GroupedFields, GroupedKeys
from tpusim.graph import (
    COMPUTE,
    Gather,
    Graph,
    Op,
    Scan,
    Tensor,
    TensorRole,
    part_of,
)
from tpusim.models.block import ACTIVATION_FLOPS, LayerBlock, block_ops
from tpusim.models.checks import check_types, check_values
from tpusim.models.experts import ExpertRouting, MoE, RoutedTokens, share_of_slots
from tpusim.models.latent import Latent
from tpusim.models.loss import LOSS, WHOLE_LOSS, LossForm, loss_ops
from tpusim.models.parts import RESIDUAL, TOKEN, norm
from tpusim.models.self_attention import SelfAttention

MODEL_KEYS = GroupedKeys(
    owner="Transformer",
    prefix="",
    error=ModelError,
    groups={"attention": SelfAttention, "latent": Latent, "moe": MoE},
    table={
        "name": ("", "name"),
        "kind": ("", "kind"),
        "layers": ("", "layers"),
        "embed": ("", "embed"),
        "mlp": ("", "mlp"),
        "heads": ("", "heads"),
        "kv_heads": ("", "kv_heads"),
        "head_dim": ("", "head_dim"),
        "vocab": ("", "vocab"),
        "gated": ("", "gated"),
        "activation": ("", "activation"),
        "parallel": ("", "parallel"),
        "post_norms": ("", "post_norms"),
        "qk_norm": ("attention", "qk_norm"),
        "tied_embeddings": ("", "tied_embeddings"),
        "rotary": ("attention", "rotary"),
        "attention": ("attention", "kernel"),
        "softmax_dtype": ("attention", "softmax_dtype"),
        "window": ("attention", "window"),
        "global_every": ("attention", "global_every"),
        "q_rank": ("latent", "q_rank"),
        "kv_rank": ("latent", "kv_rank"),
        "rope_dim": ("latent", "rope_dim"),
        "v_head_dim": ("latent", "v_head_dim"),
        "experts": ("moe", "experts"),
        "experts_per_token": ("moe", "experts_per_token"),
        "expert_mlp": ("moe", "expert_mlp"),
        "shared_mlp": ("moe", "shared_mlp"),
        "dense_layers": ("moe", "dense_layers"),
        "expert_every": ("moe", "expert_every"),
    },
)
"""Every flat key of a model, in the order in which files list them."""

_MODEL_CHOICES = {"kind": ("decoder", "encoder"), "activation": tuple(ACTIVATION_FLOPS)}


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Transformer(GroupedFields):
    """The dimensions of a transformer.

    Its constructor takes the fields below, and each field of a group also by a flat key
    (`MODEL_KEYS`): `Transformer(..., experts=8, experts_per_token=2)` is
    `Transformer(..., moe=MoE(experts=8, experts_per_token=2))`. Flat keys can be read too
    (`model.kv_rank`), but for `attention`, which is the group.

    name: the model's name, as results print it.
    kind: `decoder`, whose attention is causal, or `encoder`.
    layers: layers of attention and MLP.
    embed: width of the residual stream.
    mlp: width of the MLP.
    heads: query heads.
    kv_heads: fewer than `heads` for grouped-query attention, 1 for multi-query.
    head_dim: width of a head; embed / heads where it is not given.
    vocab: tokens of the vocabulary.
    gated: the MLP has two input matrices, whose results are multiplied.
    activation: `relu`, `gelu` or `silu`.
    parallel: attention and MLP read the same norm and are added together (PaLM, GPT-J).
    post_norms: the results of attention and MLP are normed before they are added (Gemma 2, 3).
    tied_embeddings: the head is the table of embeddings.
    attention: the attention of the layers.
    latent: the latents of queries, keys and values (DeepSeek); none unless given.
    moe: the experts; none unless given.
    """

    KEYS: ClassVar[GroupedKeys] = MODEL_KEYS
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
    tied_embeddings: bool = False
    attention: SelfAttention = field(default_factory=SelfAttention)
    latent: Latent = field(default_factory=Latent)
    moe: MoE = field(default_factory=MoE)

    def __init__(
        self, *, layers: int, embed: int, mlp: int, heads: int, vocab: int, **keys: Any
    ) -> None:
        sizes = {"layers": layers, "embed": embed, "mlp": mlp, "heads": heads, "vocab": vocab}
        with blame(str(keys.get("name", "transformer"))):
            self._fill(sizes | keys)
            check_types(self)
            self._derive()
            check_values(self, _MODEL_CHOICES)
            self._check()

    def _derive(self) -> None:
        """Fill in the dimensions that follow from others."""
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim:
            if self.heads < 1 or self.embed % self.heads:
                raise ModelError(
                    f"embed {self.embed} does not divide into {self.heads} heads; give head_dim"
                )
            object.__setattr__(self, "head_dim", self.embed // self.heads)
        if self.latent.kv_rank and not self.latent.v_head_dim:
            latent = replace(self.latent, v_head_dim=self.head_dim)
            object.__setattr__(self, "latent", latent)

    def _check(self) -> None:
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{self.heads} heads cannot share {self.kv_heads} K/V heads evenly; "
                f"write a kv_heads that divides {self.heads}"
            )
        try:
            self.latent.check(self.heads, self.kv_heads, self.head_dim, self.attention)
        except ModelError as error:
            raise ModelError(MODEL_KEYS.with_flat_keys(str(error))) from error
        self.moe.check_layers(self.layers)

    @property
    def causal(self) -> bool:
        """True if a query sees only the keys before it, as a decoder's does."""
        return self.kind == "decoder"

    @property
    def period(self) -> int:
        """Layers after which the pattern repeats: those of one iteration of the scan."""
        return lcm(self.attention.period, self.moe.expert_every)

    @property
    def parameter_count(self) -> int:
        """The number of weights."""
        return self.graph(batch=1, seq_len=1).parameter_count

    @property
    def active_parameter_count(self) -> int:
        """The number of weights that a token passes: of the experts, those of its choices."""
        graph = self.graph(batch=1, seq_len=1)
        own = (p for p in graph.parameters if p.tensor.dims[0] == "expert")
        idle = sum(p.copies * prod(graph.sizes[dim] for dim in p.tensor.dims[1:]) for p in own)
        return graph.parameter_count - idle * (self.moe.experts - self.moe.experts_per_token)

    def graph(
        self,
        *,
        batch: int,
        seq_len: int,
        logits_dtype: str = COMPUTE,
        routing: ExpertRouting | None = None,
        loss: LossForm = WHOLE_LOSS,
    ) -> Graph:
        """Return the forward pass and the loss, for `batch` sequences of `seq_len` tokens.

        logits_dtype: dtype in which logits are written to HBM.
        loss: how the loss is computed.
        routing: the routing of tokens to experts; if not given, by a sort, without a capacity.
        """
        dims = {
            "batch": batch,
            "seq": seq_len,
            "kv_seq": seq_len,
            "embed": self.embed,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "mlp": self.mlp,
            "vocab": self.vocab,
            part_of("vocab", loss.blocks): self.vocab // loss.blocks,
            **self.latent.dims(self.head_dim),
        }
        routed = _routed(self.moe, seq_len, routing or ExpertRouting())
        if routed:
            moe = self.moe
            dims |= {
                "expert": moe.experts,
                "choice": moe.experts_per_token,
                "slot": routed.routing.slots(seq_len, moe.experts, moe.experts_per_token),
                "expert_mlp": moe.expert_mlp or self.mlp,
            }
            dims |= {"shared_mlp": moe.shared_mlp} if moe.shared_mlp else {}
        ops = _model_ops(self, seq_len, logits_dtype, routed, loss)
        return Graph(self.name, tuple(dims.items()), ops, LOSS)


def _routed(moe: MoE, seq_len: int, routing: ExpertRouting) -> RoutedTokens | None:
    """Return the routing of the layers with experts, if there are any."""
    if not moe.experts:
        return None
    slots = routing.slots(seq_len, moe.experts, moe.experts_per_token)
    share = share_of_slots(slots, seq_len, moe.experts, moe.experts_per_token)
    return RoutedTokens(
        routing=routing, choices=moe.experts_per_token, share=share, shared=bool(moe.shared_mlp)
    )


def _model_ops(
    m: Transformer,
    seq_len: int,
    logits_dtype: str,
    routed: RoutedTokens | None,
    loss: LossForm,
) -> tuple[Op, ...]:
    ids = Tensor("ids", TOKEN, TensorRole.INPUT, "s32")
    table = Tensor("embedding", ("vocab", "embed"), TensorRole.PARAM)
    first = Tensor("embedded", RESIDUAL)
    scans = _scans(m, seq_len, first, routed)
    (last,) = scans[-1].outputs
    normed = Tensor("final_norm", RESIDUAL)
    return (
        Gather("embed", table, ids, first, "vocab"),
        *scans,
        norm("final_norm", last, normed),
        *loss_ops(loss, normed, ids, table if m.tied_embeddings else None, logits_dtype),
    )


def _scans(
    m: Transformer, seq_len: int, first: Tensor, routed: RoutedTokens | None
) -> tuple[Scan, ...]:
    """Return scans over whole patterns of layers, first the dense ones and then the others.

    Layers that do not fill a pattern follow, in a scan (Gemma 3 27B: 2 of 62) if they are alike.
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
    """Yield the name, the iterations and the first iteration's layers of each scan over layers."""
    dense = m.moe.dense_layers
    parts = (("dense_", 0, dense, m.attention.period), ("", dense, m.layers, m.period))
    for prefix, start, end, period in parts:
        patterns, left = divmod(end - start, period)
        last = range(end - left, end)
        if patterns:
            yield f"{prefix}layer", patterns, range(start, start + period)
        if len({(m.attention.window_of(i), m.moe.has_experts(i)) for i in last}) == 1:
            yield f"{prefix}last_layer", left, last[:1]
        elif left:
            yield f"{prefix}last_layer", 1, last


def _layers(blocks: Sequence[LayerBlock], name: str, x: Tensor, out: Tensor) -> tuple[Op, ...]:
    """Return the layers of one iteration, one after the other."""
    if len(blocks) == 1:
        return block_ops(replace(blocks[0], name=name), x, out)
    between = (Tensor(f"{name}/{i}/layer_in", RESIDUAL) for i in range(1, len(blocks)))
    ends = pairwise((x, *between, out))
    named = (replace(block, name=f"{name}/{i}") for i, block in enumerate(blocks))
    return tuple(
        op for b, (given, made) in zip(named, ends, strict=True) for op in block_ops(b, given, made)
    )


def _block(m: Transformer, layer: int, seq_len: int, routed: RoutedTokens | None) -> LayerBlock:
    attention = m.attention
    window = attention.window_of(layer)
    narrow = 0 < window < seq_len
    whole_share = 0.5 if m.causal else 1.0
    return LayerBlock(
        name=m.name,
        kv_head="heads" if m.kv_heads == m.heads else "kv_heads",
        repeated=1 < m.kv_heads < m.heads,
        gated=m.gated,
        activation=m.activation,
        parallel=m.parallel,
        post_norms=m.post_norms,
        qk_norm=attention.qk_norm,
        softmax_dtype=attention.softmax_dtype,
        rotary=attention.rotary,
        fused=attention.kernel == "flash",
        causal=m.causal,
        window=window if narrow else 0,
        share=window / seq_len if narrow else whole_share,
        latent=m.latent.kv_rank > 0,
        low_rank_queries=m.latent.q_rank > 0,
        routed=routed if m.moe.has_experts(layer) else None,
    )
