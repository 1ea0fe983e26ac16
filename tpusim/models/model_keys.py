"""The keys of a transformer, flat and grouped, and the groups of its norms and biases."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Required, TypeAlias, TypedDict

from tpusim.base.errors import ModelError
from tpusim.base.grouped_keys import GroupedKeys, flat_keys_of
from tpusim.models.checks import check_types, check_values
from tpusim.models.pieces import NORM_KINDS, Latent, MoE
from tpusim.models.self_attention import SelfAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Which norms a transformer has, and of which kind they are all.

    kind: `rms`, `rms-unscaled` (nanochat), `layer`, `layer-unshifted` (Cohere) or `layer-unscaled`
        (OLMo). `rms` has a scale; `layer` subtracts the mean and has a scale and a shift; an
        unshifted norm has no shift, an unscaled norm has no weights.
    before: norms before attention and MLP (none in OLMo 2).
    of_sums: norms after each residual sum (BERT, OPT 350M). The normed sum is the residual stream
        from there on; the last one is the model's last norm.
    of_mlp: a norm for the MLP of a parallel layer (GPT-NeoX).
    of_embedding: a norm of the embeddings (BERT, BLOOM).
    """

    kind: str = "rms"
    before: bool = True
    of_sums: bool = False
    of_mlp: bool = False
    of_embedding: bool = False

    def __post_init__(self) -> None:
        check_types(self, "norms.")
        check_values(self, {"kind": NORM_KINDS}, "norms.")

    def check(self, *, parallel: bool, post_norms: bool) -> None:
        """Raise ModelError for norms that contradict each other or the layers."""
        if self.of_mlp and not (parallel and self.before):
            raise ModelError(
                "norms.of_mlp is true, but it is for parallel layers whose attention and MLP read "
                "norms; write parallel = true and norms.before = true, or leave it out"
            )
        if self.of_sums and (self.before or parallel or post_norms):
            raise ModelError(
                "norms.of_sums is true, but then sums are the only norms of a serial layer; write "
                "norms.before = false, and leave parallel and post_norms out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Biases:
    """Which matrices of a transformer have biases.

    qkv: queries, keys and values.
    out: result of attention.
    mlp: MLP, experts and the layer before the head.
    head: logits.
    router: router of the experts.
    """

    qkv: bool = False
    out: bool = False
    mlp: bool = False
    head: bool = False
    router: bool = False

    def __post_init__(self) -> None:
        check_types(self, "biases.")

    def check(self, kv_rank: int) -> None:
        """Raise ModelError for biases of projections that latent attention does not have."""
        if kv_rank and self.qkv:
            raise ModelError(
                "biases.qkv is for projections of the tokens, but with latent.kv_rank = "
                f"{kv_rank} queries, keys and values are made of latents; leave it out"
            )


NormKind: TypeAlias = Literal["rms", "layer", "layer-unshifted", "rms-unscaled", "layer-unscaled"]


class TransformerKeys(TypedDict, total=False):
    """The keys of a `Transformer`, in the order in which files list them.

    A key of a group names the group and the field that it is. `attention` is the kernel, or the
    group.
    """

    name: str
    kind: Literal["decoder", "encoder"]
    layers: Required[int]
    embed: Required[int]
    mlp: Required[int]
    heads: Required[int]
    kv_heads: int
    head_dim: int
    vocab: Required[int]
    gated: bool
    activation: Literal["relu", "relu2", "gelu", "silu"]
    parallel: bool
    post_norms: bool
    qk_norm: Annotated[bool, "attention.qk_norm"]
    qk_norm_heads: Annotated[Literal["", "each", "all"], "attention.qk_norm_heads"]
    norm: Annotated[NormKind, "norms.kind"]
    pre_norms: Annotated[bool, "norms.before"]
    sum_norms: Annotated[bool, "norms.of_sums"]
    mlp_norm: Annotated[bool, "norms.of_mlp"]
    embed_norm: Annotated[bool, "norms.of_embedding"]
    qkv_bias: Annotated[bool, "biases.qkv"]
    out_bias: Annotated[bool, "biases.out"]
    mlp_bias: Annotated[bool, "biases.mlp"]
    head_bias: Annotated[bool, "biases.head"]
    router_bias: Annotated[bool, "biases.router"]
    positions: int
    segments: int
    head_layer: bool
    wide_layers: int
    wide_mlp: int
    layer_embed: int
    tied_embeddings: bool
    logit_cap: float
    dropout: float
    fused_qkv: Annotated[bool, "attention.fused_qkv"]
    rotary: Annotated[bool, "attention.rotary"]
    attention: Annotated[
        Literal["flash", "dot", "none"] | SelfAttention | Mapping[str, object], "attention.kernel"
    ]
    softmax_dtype: Annotated[Literal["compute", "f32"], "attention.softmax_dtype"]
    window: Annotated[int, "attention.window"]
    global_every: Annotated[int, "attention.global_every"]
    global_first: Annotated[bool, "attention.global_first"]
    global_ends: Annotated[Literal["", "first", "last", "both"], "attention.global_ends"]
    global_head_dim: Annotated[int, "attention.global_head_dim"]
    global_kv_heads: Annotated[int, "attention.global_kv_heads"]
    global_keys_as_values: Annotated[bool, "attention.global_keys_as_values"]
    out_gate: Annotated[bool, "attention.out_gate"]
    linear: Annotated[Literal["", "gated-delta", "kimi-delta", "lightning"], "attention.linear"]
    linear_heads: Annotated[int, "attention.linear_heads"]
    linear_key_heads: Annotated[int, "attention.linear_key_heads"]
    linear_head_dim: Annotated[int, "attention.linear_head_dim"]
    linear_value_dim: Annotated[int, "attention.linear_value_dim"]
    linear_conv: Annotated[int, "attention.linear_conv"]
    q_rank: Annotated[int, "latent.q_rank"]
    kv_rank: Annotated[int, "latent.kv_rank"]
    rope_dim: Annotated[int, "latent.rope_dim"]
    v_head_dim: Annotated[int, "latent.v_head_dim"]
    experts: Annotated[int, "moe.experts"]
    experts_per_token: Annotated[int, "moe.experts_per_token"]
    expert_mlp: Annotated[int, "moe.expert_mlp"]
    shared_mlp: Annotated[int, "moe.shared_mlp"]
    shared_gate: Annotated[bool, "moe.shared_gate"]
    dense_layers: Annotated[int, "moe.dense_layers"]
    expert_every: Annotated[int, "moe.expert_every"]
    latent: Latent | Mapping[str, object]
    moe: MoE | Mapping[str, object]
    norms: Norms | Mapping[str, object]
    biases: Biases | Mapping[str, object]


_GROUPS = {
    "attention": SelfAttention,
    "latent": Latent,
    "moe": MoE,
    "norms": Norms,
    "biases": Biases,
}


MODEL_KEYS = GroupedKeys(
    owner="Transformer",
    prefix="",
    error=ModelError,
    groups=_GROUPS,
    table=flat_keys_of(TransformerKeys, _GROUPS),
)
"""Every flat key of a model, in the order in which files list them."""
