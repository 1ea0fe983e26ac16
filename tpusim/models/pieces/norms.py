"""Normalisations."""

from dataclasses import dataclass, replace
from typing import Annotated

from tpusim.base.errors import ModelError
from tpusim.graph import (
    GraphWriter,
    OneOf,
    Pointwise,
    Tensor,
    TensorRole,
    Vectors,
    checked_piece,
    function,
)

NORM_FLOPS = 6.0
"""Vector operations per element; see `mlp.ACTIVATION_FLOPS`."""


@dataclass(frozen=True, slots=True)
class _NormKind:
    """What a kind of norm computes.

    function: its function in the library of exported steps.
    means: it subtracts the mean, and so sums twice.
    learnt: weights by which it scales and shifts, by the end of their names.
    """

    function: str
    means: bool
    learnt: tuple[str, ...]


_KINDS = {
    "rms": _NormKind("rms_norm", False, ("scale",)),
    "layer": _NormKind("layer_norm", True, ("scale", "shift")),
    "layer-unshifted": _NormKind("unshifted_layer_norm", True, ("scale",)),
    "rms-unscaled": _NormKind("unscaled_rms_norm", False, ()),
    "layer-unscaled": _NormKind("unscaled_layer_norm", True, ()),
}
NORM_KINDS = tuple(_KINDS)
"""The kinds of norms: by the root mean square (Zhang and Sennrich, arXiv:1910.07467, equation 4),
or by mean and variance (Ba, Kiros and Hinton, arXiv:1607.06450, equation 3)."""


@checked_piece
def norm(w: GraphWriter, name: str, x: Vectors, over: str = "embed") -> Tensor:
    """Write a normalisation over one dimension, with its scale, and return its result.

    It computes in f32 (Zhang and Sennrich, arXiv:1910.07467, equation 4): its linearisation reads
    the operand in f32, and what is scaled, in the activations' dtype; one that subtracts the mean
    reads the difference in f32 too. Not counted: two numbers a token.
    """
    out = w.tensor(name, x.dims)
    w.write(norm_op(x, out, w.dim(over)))
    return out


def norm_op(x: Tensor, out: Tensor, over: str) -> Pointwise:
    """Return the operation of a normalisation, which is named after its result."""
    return _norm_op(_KINDS["rms"], x, out, (over,), (over,))


@checked_piece
def layer_norm(w: GraphWriter, name: str, x: Vectors, over: str = "embed") -> Tensor:
    """Write a normalisation by mean and variance over one dimension, with scale and shift."""
    return norm_of_kind(w, "layer", name, x, over)


@checked_piece
def norm_of_kind(
    w: GraphWriter,
    kind: Annotated[str, OneOf(NORM_KINDS)],
    name: str,
    x: Vectors,
    over: str = "embed",
    *,
    heads: Annotated[str, OneOf(("", "each", "all"))] = "",
    out: Tensor | None = None,
) -> Tensor:
    """Write a normalisation of a kind of `NORM_KINDS`, and return its result.

    over: the dimension of its statistics.
    heads: of norms of heads: `all` for statistics over all heads together (kind `rms`), `each` for
        weights of its own for each head; empty where all heads have the same weights.
    out: the result, where it has another name.
    """
    own = (w.dim(over),)
    if heads and len(x.dims) < len(("heads", "width")):
        raise ModelError(f"{w.name}: {name} norms heads, and {x} has none; leave heads out")
    wide = (*x.dims[-2:-1], *own)
    made = w.tensor(name, x.dims)
    op = _norm_op(_KINDS[kind], x, made, wide if heads == "all" else own, wide if heads else own)
    w.write(op if out is None else replace(op, outputs=(out,)))
    return out or made


def _norm_op(
    kind: _NormKind, x: Tensor, out: Tensor, over: tuple[str, ...], weights: tuple[str, ...]
) -> Pointwise:
    """Return the operation of a normalisation; it computes in f32, as `norm` does.

    weights: dimensions of its weights.
    """
    name = out.name
    learnt = tuple(Tensor(f"{name}_{end}", weights, TensorRole.PARAM) for end in kind.learnt)
    wide = Tensor(f"{name}_operand", x.dims, dtype="f32")
    centred = (Tensor(f"{name}_centred", x.dims, dtype="f32"),) if kind.means else ()
    unscaled = Tensor(f"{name}_unscaled", x.dims)
    return Pointwise(
        name,
        (x, *learnt),
        (out,),
        NORM_FLOPS,
        over=over,
        statistics=2 if kind.means else 1,
        residuals=(wide, *centred, unscaled, *learnt[:1]),
        function=function(f"{kind.function}_of_heads" if len(over) > 1 else kind.function),
    )
