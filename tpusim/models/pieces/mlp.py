"""The MLP of a layer, or of an expert."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tpusim.base.errors import ModelError, nearest
from tpusim.graph import COMPUTE, GraphWriter, Some, Tensor, Vectors, checked_piece, function
from tpusim.models.pieces.bias import biased, linear

ACTIVATION_FLOPS = {"relu": 1.0, "relu2": 2.0, "gelu": 14.0, "silu": 10.0}
"""Vector operations per element, transcendental functions at eight each. Assumed: counted from the
formulas (a norm squares, adds, scales twice and converts; a softmax subtracts, exponentiates,
adds and divides); halving or doubling them moves the step of the 480B encoder by less than 1 %."""

_LINEARISATION = {
    "relu": ((("positive", "pred"),), False),
    "relu2": ((("positive", "pred"), ("root", COMPUTE)), False),
    "gelu": ((("cube_slope", COMPUTE), ("tanh", COMPUTE), ("tanh_slope", COMPUTE),
              ("share", COMPUTE)), True),
    "silu": ((("sigmoid", COMPUTE), ("sigmoid_slope", COMPUTE)), True),
}  # fmt: skip
"""Arrays that reverse mode reads of an activation function besides its operand, with their dtypes,
and True if it reads the operand: the residuals of `jax.vjp` of `jax.nn.relu`, of its square (So et
al., arXiv:2109.08668), of `gelu` (3 x^2, tanh, 1 - tanh and (1 + tanh)/2) and of `silu` in jax
0.10.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMlp:
    """The MLPs of experts, of which each has weights of its own.

    share, ragged: see `Einsum`.
    """

    share: float | Fraction = 1.0
    ragged: bool = False


@checked_piece
def mlp(
    w: GraphWriter,
    x: Vectors,
    *,
    activation: str = "silu",
    gated: bool = False,
    bias: bool = False,
    prefix: str = "",
    width: str = "",
    experts: ExpertMlp | None = None,
) -> Tensor:
    """Write an MLP over the last dimension of `x`, and return its result.

    x: [..., embed]; of experts, [expert, ..., embed].
    gated: there are two input matrices, whose results are multiplied.
    bias: each matrix has one.
    prefix: text before the names of its tensors, such as `shared_`.
    width: the dimension between its matrices; `{prefix}mlp` where it is not given.
    """
    tokens, embed = x.dims[:-1], x.dims[-1]
    width = w.dim(width or f"{prefix}mlp")
    outer = tokens[:1] if experts else ()
    each = experts or ExpertMlp()
    suffixes = ("_0", "_1") if gated else ("",)

    def matmul(name: str, given: Tensor, dims: tuple[str, str], made: Tensor) -> Tensor:
        own = w.weight(f"{prefix}{name}", *outer, *dims)
        short = f"{prefix}{name}"
        result = w.einsum(short, given, own, made, share=each.share, ragged=each.ragged)
        return biased(w, short, result, *outer, dims[1]) if bias else result

    made = (w.tensor(f"{prefix}mlp_in{end}", (*tokens, width)) for end in suffixes)
    ins = tuple(
        matmul(f"wi{end}", x, (embed, width), one) for end, one in zip(suffixes, made, strict=True)
    )
    hidden = activate(w, activation, ins, f"{prefix}mlp_hidden", prefix)
    name = f"{prefix.removesuffix('_') or 'mlp'}_out"
    return matmul("wo_mlp", hidden, (width, embed), w.tensor(name, x.dims))


@checked_piece
def activate(w: GraphWriter, activation: str, ins: Some, out: str, prefix: str = "") -> Tensor:
    """Write an activation function, multiplied by a gate where there is a second operand.

    Raise ModelError for a function that is not in `ACTIVATION_FLOPS`.
    """
    if activation not in ACTIVATION_FLOPS:
        raise ModelError(
            f"{w.name}: no activation {activation!r}; {nearest(activation, ACTIVATION_FLOPS)}"
        )
    return w.pointwise(
        f"{prefix}{activation}",
        ins,
        w.tensor(out, ins[0].dims),
        ACTIVATION_FLOPS[activation] + len(ins) - 1,
        residuals=_residuals(w, activation, ins, prefix),
        function=function(activation),
    )


@checked_piece
def embedded(w: GraphWriter, name: str, x: Vectors, dim: str, hidden: str = "") -> Tensor:
    """Write two products with biases, and SiLU between them: the embedding of a time.

    dim: the width of the result. hidden: that between the two; `dim` where it is not given.
    """
    first = linear(w, f"{name}_1", x, hidden or dim)
    inner = activate(w, "silu", (first,), f"{name}_silu", f"{name}_silu_")
    return linear(w, f"{name}_2", inner, dim)


def _residuals(
    w: GraphWriter, activation: str, ins: Sequence[Tensor], prefix: str
) -> tuple[Tensor, ...]:
    """Return the residuals of the activation function, and of its multiplication by a gate."""
    of, *gate = ins
    start = f"{prefix}{activation}"
    arrays, reads_operand = _LINEARISATION[activation]
    made = (w.tensor(f"{start}_{name}", of.dims, dtype) for name, dtype in arrays)
    activated = (w.tensor(f"{start}_out", of.dims),) if gate else ()
    return (*((of,) if reads_operand else ()), *made, *gate, *activated)
