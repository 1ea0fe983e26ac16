"""The norms and biases of a transformer."""

from dataclasses import dataclass

from tpusim.base.errors import ModelError
from tpusim.models.checks import check_types, check_values
from tpusim.models.pieces import NORM_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Which norms a transformer has, and of which kind they are all.

    kind: `rms` has a scale; `layer` subtracts the mean and has a scale and a shift;
        `layer-unshifted` (Cohere) has no shift, `rms-unscaled` (nanochat) and `layer-unscaled`
        (OLMo) have no weights.
    before: attention and MLP read norms of the residual stream (OLMo 2 has none of them).
    of_sums: each sum with the result of attention or MLP is normed, and is the residual stream
        from there on (BERT, OPT 350M). The last of them is the model's last norm.
    of_mlp: where attention and MLP are parallel, the MLP reads a norm of its own (GPT-NeoX).
    of_embedding: embeddings are normed (BERT, BLOOM).
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

    qkv: those that make queries, keys and values.
    out: that of the result of attention.
    mlp: those of the MLP, of each expert, and of the layer before the head.
    head: that of the logits.
    router: that of the router of experts.
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
