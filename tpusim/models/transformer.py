"""The transformer, decoder or encoder, dense or with experts, as a graph.

Only the forward pass is written, over named dimensions. The gradient, the recomputation, the
sharding and the memory follow from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import lcm
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from tpusim.base.errors import blame
from tpusim.base.grouped_keys import GroupedFields, GroupedKeys
from tpusim.graph import GraphWriter, Tensor
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_length, check_types, check_values
from tpusim.models.layer_patterns import in_turn
from tpusim.models.model_keys import MODEL_KEYS, Biases, Norms, TransformerKeys
from tpusim.models.pieces import ACTIVATION_FLOPS, AttentionForm, Latent, MoE
from tpusim.models.published_models import published_keys
from tpusim.models.self_attention import KIMI_DELTA, SelfAttention
from tpusim.models.transformer_checks import check_transformer

_GLOBAL, _WIDE, _LINEAR = "global", "wide", "linear"
"""Parts whose dimensions have other sizes: layers that see all keys, those of a wide MLP, and
linear attention."""

_MODEL_CHOICES = {"kind": ("decoder", "encoder"), "activation": tuple(ACTIVATION_FLOPS)}


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Transformer(GroupedFields, Architecture):
    """The dimensions of a transformer.

    Its constructor takes the fields below, and each field of a group also by a flat key
    (`MODEL_KEYS`): `Transformer(..., experts=8, experts_per_token=2)` is
    `Transformer(..., moe=MoE(experts=8, experts_per_token=2))`. Flat keys can be read too
    (`model.kv_rank`), but for `attention`, which is the group.

    name: name in results; in a run file also the name of a published model.
    kind: `decoder` (causal attention) or `encoder`.
    layers: layers of attention and MLP.
    embed: width of the residual stream.
    mlp: width of the MLP.
    heads: query heads.
    kv_heads: K/V heads; 0 for `heads`, 1 for multi-query attention.
    head_dim: width of a head; 0 for `embed / heads`.
    vocab: tokens of the vocabulary.
    gated: the MLP has two input matrices, whose results are multiplied.
    activation: `relu`, `relu2` (its square), `gelu` or `silu`.
    parallel: attention and MLP in parallel on one norm (PaLM, GPT-J).
    post_norms: norms of the results of attention and MLP (Gemma 2, 3).
    wide_layers: last layers with an MLP of `wide_mlp` (Gemma 4 E2B: 20).
    wide_mlp: width of the MLP of these layers.
    layer_embed: width of each layer's own token embedding (Gemma 4 E2B: 256). See
        `pieces.layer_embedding`.
    positions: rows of a table of learnt positions; 0 for none.
    segments: learnt vectors of segments (BERT: 2); 0 for none.
    head_layer: a dense layer, the activation and a norm before the head (BERT).
    tied_embeddings: the head is the embedding table.
    logit_cap: soft cap of the logits, `cap tanh(logits / cap)`; 0 for none.
    dropout: dropout rate. It applies to embeddings, to the results of attention and MLP, and to the
        attention probabilities of the `dot` kernel.
    attention: attention of the layers.
    latent: latent attention (DeepSeek).
    moe: mixture of experts.
    norms: kinds and places of norms.
    biases: biases of matrices.
    """

    PUBLISHED: ClassVar[str] = "transformer.toml"
    KEYS: ClassVar[GroupedKeys] = MODEL_KEYS
    measured: ClassVar[bool] = True
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
    wide_layers: int = 0
    wide_mlp: int = 0
    layer_embed: int = 0
    positions: int = 0
    segments: int = 0
    head_layer: bool = False
    tied_embeddings: bool = False
    logit_cap: float = 0.0
    dropout: float = 0.0
    attention: SelfAttention = field(default_factory=SelfAttention)
    latent: Latent = field(default_factory=Latent)
    moe: MoE = field(default_factory=MoE)
    norms: Norms = field(default_factory=Norms)
    biases: Biases = field(default_factory=Biases)

    if TYPE_CHECKING:  # paths, such as `moe.experts`, are keys as well

        def __init__(self, **keys: Unpack[TransformerKeys]) -> None: ...

    else:

        def __init__(
            self, *, layers: int, embed: int, mlp: int, heads: int, vocab: int, **keys: Any
        ) -> None:
            sizes = {"layers": layers, "embed": embed, "mlp": mlp, "heads": heads, "vocab": vocab}
            with blame(str(keys.get("name", "transformer"))):
                self._fill(sizes | keys)
                check_types(self)
                self._derive()
                check_values(self, _MODEL_CHOICES)
                check_transformer(self)

    @classmethod
    def published(cls, name: str, /, **changes: Any) -> Self:
        """Return a published model, with some keys changed, flat or grouped.

        Raise ModelError with the nearest names if there is none of this name.
        """
        return cls(**{"name": name, **published_keys(cls, name), **changes})

    def _derive(self) -> None:
        """Fill in the dimensions that follow from others."""
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim:
            check_heads(self.embed, self.heads, instead="give head_dim")
            object.__setattr__(self, "head_dim", self.embed // self.heads)
        if self.latent.kv_rank and not self.latent.v_head_dim:
            latent = replace(self.latent, v_head_dim=self.head_dim)
            object.__setattr__(self, "latent", latent)

    @property
    def causal(self) -> bool:
        """True if a query sees only the keys before it, as a decoder's does."""
        return self.kind == "decoder"

    @property
    def served(self) -> Self:
        """The model as a server runs it: with a fused kernel, and without dropout."""
        fused = self.attention.kernel != "dot"
        attention = self.attention if fused else replace(self.attention, kernel="flash")
        return replace(self, dropout=0.0, attention=attention)

    @property
    def period(self) -> int:
        """Layers after which the pattern repeats: those of one iteration of the scan."""
        return lcm(self.attention.period, self.moe.expert_every)

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each token.

        Raise PlanError for sequences that are longer than the table of positions.
        """
        self._declare(w)
        ids = w.input("ids", ("batch", "seq"))
        embedded, table = pieces.embedding(w, ids)
        x = self._with_places(w, embedded, ids)
        tokens = (ids, embedded) if self.layer_embed else None
        x = pieces.dropout(w, "embedded", x) if self.dropout else x
        for name, trips, layers in self._runs():
            pattern = _Pattern(self, layers, choices, tokens)
            x = w.layers(name, trips, x, pattern.write)
        capped = replace(choices.loss, cap=float(self.logit_cap))
        return pieces.language_model_loss(
            w,
            self._before_head(w, x),
            ids,
            table=table if self.tied_embeddings else None,
            bias=self.biases.head,
            form=capped,
            dtype=choices.logits_dtype,
        )

    def _with_places(self, w: GraphWriter, x: Tensor, ids: Tensor) -> Tensor:
        """Write the sums of embeddings with those of positions and segments, and their norm."""
        if self.positions:
            x = pieces.first_positions(w, x, "positions")
        if self.segments:
            x = pieces.segmented(w, x, w.input("segment_ids", ids.dims), "segments")
        if self.norms.of_embedding:
            x = pieces.norm_of_kind(w, self.norms.kind, "embed_norm", x)
        return x

    def _before_head(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write what is between the layers and the head: a norm, and a layer with one."""
        if not self.norms.of_sums:
            x = pieces.norm_of_kind(w, self.norms.kind, "final_norm", x)
        if not self.head_layer:
            return x
        kind, bias = self.norms.kind, self.biases.mlp
        return pieces.transformed(w, x, activation=self.activation, norm=kind, bias=bias)

    def _declare(self, w: GraphWriter) -> None:
        check_length(w, self.name, self.positions)
        w.size(
            kv_seq=w.extent("seq"),
            embed=self.embed,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            mlp=self.mlp,
            vocab=self.vocab,
            **self.latent.dims(self.head_dim),
            **self.moe.dims(self.mlp),
        )
        optional = ("positions", "segments", "layer_embed")
        w.size(**{key: getattr(self, key) for key in optional if getattr(self, key)})
        if self.wide_mlp:
            w.sized(_WIDE).size(mlp=self.wide_mlp)
        own = self.attention
        given = {"head_dim": own.global_head_dim, "kv_heads": own.global_kv_heads}
        w.sized(_GLOBAL).size(**{key: size for key, size in given.items() if size})
        if self.wide_values:
            w.size(v_head_dim=self.latent.v_head_dim)
        if own.linear:
            heads, width = own.linear_heads or self.heads, own.linear_head_dim or self.head_dim
            w.sized(_LINEAR).size(
                heads=heads,
                kv_heads=own.linear_key_heads or heads,
                head_dim=width,
                v_head_dim=own.linear_value_dim or width,
                **({"gate_rank": width} if own.linear == KIMI_DELTA else {}),
            )

    def _runs(self) -> Iterator[tuple[str, int, range]]:
        """Yield the name, iterations and first iteration's layers of each scan over layers.

        Scans are over whole patterns of layers: dense ones, the others, and wide ones. Layers
        that do not fill a pattern follow, in a scan (Gemma 3 27B: 2 of 62) if they are alike.
        """
        dense, wide = self.moe.dense_layers, self.layers - self.wide_layers
        parts = (
            ("dense_", 0, dense, self.attention.period),
            ("", dense, wide, self.period),
            ("wide_", wide, self.layers, self.period),
        )
        for prefix, start, end, period in parts:
            patterns, left = divmod(end - start, period)
            last = range(end - left, end)
            if patterns:
                yield f"{prefix}layer", patterns, range(start, start + period)
            if len({(self._kind_of(i), self.moe.has_experts(i)) for i in last}) == 1:
                yield f"{prefix}last_layer", left, last[:1]
            elif left:
                yield f"{prefix}last_layer", 1, last

    def _kind_of(self, layer: int) -> tuple[int, str]:
        """Return the window and the linear attention of a layer."""
        return self.attention.kind_of(layer, self.layers)

    @property
    def wide_values(self) -> bool:
        """True if values have a width of their own, and are not made of latents."""
        return self.latent.v_head_dim > 0 and not self.latent.kv_rank


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The layers of one iteration of a scan, one after the other.

    layers: their numbers, counted from 0.
    tokens: the tokens and their embeddings, where layers have embeddings of their own.
    """

    model: Transformer
    layers: Sequence[int]
    choices: GraphChoices
    tokens: tuple[Tensor, Tensor] | None

    def write(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write the layers, and return the result of the last one."""
        return in_turn(w, x, [partial(self._layer, layer=layer) for layer in self.layers])

    def _layer(self, w: GraphWriter, x: Tensor, out: Tensor, layer: int) -> None:
        """Write one layer: attention and MLP, serial or parallel."""
        if self.model.attention.kernel == "none":
            terms = self._terms(w, self._before(w, "mlp_norm", x), layer)
            self._sum(w, (x, *terms), out)
            return
        attn_in = self._before(w, "attn_norm", x)
        attended = self._post_norm(w, "attn", self._attention(w, attn_in, layer))
        attended = self._dropped(w, "attn", attended)
        norms = self.model.norms
        if self.model.parallel:
            mlp_in = self._before(w, "mlp_norm", x) if norms.of_mlp else attn_in
            self._sum(w, (x, attended, *self._terms(w, mlp_in, layer)), out)
            return
        mid = w.add("mid", x, attended)
        if norms.of_sums:
            mid = pieces.norm_of_kind(w, norms.kind, "mid_norm", mid)
        terms = self._terms(w, self._before(w, "mlp_norm", mid), layer)
        self._sum(w, (mid, *terms), out)

    def _before(self, w: GraphWriter, name: str, x: Tensor) -> Tensor:
        """Return what attention or MLP reads: the residual stream, normed if the model does so."""
        norms = self.model.norms
        return pieces.norm_of_kind(w, norms.kind, name, x) if norms.before else x

    def _dropped(self, w: GraphWriter, name: str, x: Tensor) -> Tensor:
        """Return the result of attention or MLP, with dropout if the model has it."""
        return pieces.dropout(w, name, x) if self.model.dropout else x

    def _sum(self, w: GraphWriter, terms: tuple[Tensor, ...], out: Tensor) -> None:
        """Write the result of a layer, the sum of terms and of what its own embedding adds."""
        if self.tokens:
            whole = w.add("layer_sum", *terms)
            terms = whole, pieces.layer_embedding(w, whole, *self.tokens)
        if not self.model.norms.of_sums:
            w.add("layer_out", *terms, out=out)
            return
        pieces.norm_of_kind(w, self.model.norms.kind, "out_norm", w.add("out_sum", *terms), out=out)

    def _post_norm(self, w: GraphWriter, name: str, x: Tensor) -> Tensor:
        """Return the result of attention or MLP, normed if the model does so."""
        kind = self.model.norms.kind
        return pieces.norm_of_kind(w, kind, f"post_{name}_norm", x) if self.model.post_norms else x

    def _attention(self, w: GraphWriter, x: Tensor, layer: int) -> Tensor:
        own, latent = self.model.attention, self.model.latent
        window, linear = own.kind_of(layer, self.model.layers)
        if linear:
            return pieces.linear_attention(w.sized(_LINEAR), x, linear, taps=own.linear_conv)
        whole = own.is_global(layer, self.model.layers)
        form = AttentionForm(
            causal=self.model.causal,
            fused=own.kernel == "flash",
            window=window if self.choices.cached or window < w.extent("seq") else 0,
            rotary=own.rotary,
            qk_norm=own.qk_norm,
            qk_norm_heads=own.qk_norm_heads,
            norm=self.model.norms.kind,
            bias=self.model.biases.qkv,
            out_bias=self.model.biases.out,
            fused_qkv=own.fused_qkv,
            softmax_dtype=own.softmax_dtype,
            dropout=self.model.dropout > 0,
            keys_as_values=whole and own.global_keys_as_values,
            values="v_head_dim" if self.model.wide_values else "head_dim",
            out_gate=own.out_gate,
        )
        if not latent.kv_rank:
            return pieces.attention(w.sized(_GLOBAL) if whole else w, x, form)
        narrow = latent.q_rank > 0
        if self.choices.cached:
            return pieces.absorbed_attention(
                w, x, form, head_dim=self.model.head_dim, low_rank_queries=narrow, out="out"
            )
        q, k, v = pieces.latent_projections(w, x, low_rank_queries=narrow)
        return pieces.attend(w, q, k, v, form, x.dims[-1], "out")

    def _terms(self, w: GraphWriter, x: Tensor, layer: int) -> tuple[Tensor, ...]:
        """Write the MLP or the experts of a layer, and return the terms that they add to it."""
        model = self.model
        kind: dict[str, Any] = {
            "activation": model.activation,
            "gated": model.gated,
            "bias": model.biases.mlp,
        }
        if not model.moe.has_experts(layer):
            wide = layer >= model.layers - model.wide_layers
            made = pieces.mlp(w.sized(_WIDE) if wide else w, x, **kind)
            return (self._dropped(w, "mlp", self._post_norm(w, "mlp", made)),)
        made = pieces.experts(w, x, self.choices.routing, router_bias=model.biases.router, **kind)
        if not model.moe.shared_mlp:
            return (self._dropped(w, "mlp", self._post_norm(w, "mlp", made)),)
        shared = pieces.mlp(w, x, prefix="shared_", **kind)
        if model.moe.shared_gate:
            shared = pieces.gated_by_token(w, x, shared)
        if not (model.post_norms or model.dropout):
            return made, shared
        made = self._post_norm(w, "mlp", w.add("mlp_sum", made, shared))
        return (self._dropped(w, "mlp", made),)
