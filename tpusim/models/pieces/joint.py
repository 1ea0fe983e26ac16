"""Sequences that attend to each other as one, and layers that a vector modulates.

Esser et al., arXiv:2403.03206, section 4 and figure 2; the modulation is adaLN-Zero of Peebles and
Xie, arXiv:2212.09748, section 3.2.
"""

from collections.abc import Sequence
from typing import Annotated

from tpusim.base.errors import ModelError
from tpusim.graph import (
    Count,
    GraphWriter,
    Joinable,
    Natural,
    NotEmpty,
    Pointwise,
    Tensor,
    Tokens,
    Vectors,
    checked_piece,
    function,
)
from tpusim.models.pieces.bias import linear
from tpusim.models.pieces.encoder import TANH_FLOPS
from tpusim.models.pieces.norms import NORM_FLOPS

MODULATION_FLOPS = 2.0
"""Vector operations per element; see `mlp.ACTIVATION_FLOPS`."""


@checked_piece
def joined(
    w: GraphWriter, name: str, parts: Annotated[Sequence[Joinable], NotEmpty()], dim: str
) -> Tensor:
    """Write tensors one after the other along their second dimension, which is then `dim`.

    Raise ModelError for a dimension of another size than theirs together.
    """
    first = parts[0]
    count = sum(w.sizes[part.dims[1]] for part in parts)
    if w.extent(dim) != count or any(len(part.dims) != len(first.dims) for part in parts):
        lengths = " + ".join(str(w.sizes[part.dims[1]]) for part in parts)
        raise ModelError(f"{w.name}: {name} joins {lengths} to {dim} of {w.extent(dim)}")
    dims = (first.dims[0], dim, *first.dims[2:])
    return w.pointwise(name, parts, dims, 0.0, keeps="", alone=True, function=function("joined"))


@checked_piece
def parted(
    w: GraphWriter, names: tuple[str, str], x: Joinable, dims: tuple[str, str]
) -> tuple[Tensor, Tensor]:
    """Write the two tensors that `x` was joined of, along dimensions `dims`; return both."""
    first, last = (
        w.tensor(name, (x.dims[0], dim, *x.dims[2:])) for name, dim in zip(names, dims, strict=True)
    )
    of = function("parted", first=w.dim(dims[0]))
    name = f"{w.prefix}{x.short}_parted"
    w.write(Pointwise(name, (x,), (first, last), 0.0, keeps="", alone=True, function=of))
    return first, last


@checked_piece
def behind(w: GraphWriter, name: str, x: Joinable, dim: str) -> Tensor:
    """Write the last positions of `x`, as many as `dim` has."""
    of = function("behind", last=w.dim(dim))
    made = (x.dims[0], dim, *x.dims[2:])
    return w.pointwise(name, (x,), made, 0.0, keeps="", alone=True, function=of)


@checked_piece
def modulation(w: GraphWriter, name: str, vector: Vectors, count: Count, width: str = "") -> Tensor:
    """Write `count` rows of shifts, scales and gates of a vector, [batch, count x width].

    width: dimension of a row; that of the vector where it is not given.
    """
    size = count * w.extent(width or vector.dims[-1])
    rows = f"{size}.modulations"
    w.sizes[rows] = size
    return linear(w, name, vector, rows)


@checked_piece
def modulated_norm(w: GraphWriter, name: str, x: Vectors, rows: Vectors, shift: Natural) -> Tensor:
    """Write a norm by mean and variance without weights, shifted and scaled by two rows.

    shift: the row of the shift; that of the scale, which is added to 1, follows.
    """
    out = w.tensor(name, x.dims)
    wide = w.tensor(f"{name}_operand", x.dims, "f32")
    centred = w.tensor(f"{name}_centred", x.dims, "f32")
    unscaled = w.tensor(f"{name}_unscaled", x.dims)
    return w.pointwise(
        name,
        (x, rows),
        out,
        NORM_FLOPS + MODULATION_FLOPS,
        over=(x.dims[-1],),
        statistics=2,
        residuals=(wide, centred, unscaled, rows),
        function=function("modulated_norm", shift=shift),
    )


@checked_piece
def gated(w: GraphWriter, name: str, x: Tensor, rows: Vectors, gate: Natural) -> Tensor:
    """Write `x` times one of the rows."""
    of = function("gated", gate=gate)
    return w.pointwise(name, (x, rows), x.dims, 1.0, residuals=(x, rows), function=of)


@checked_piece
def scaled(w: GraphWriter, name: str, x: Tensor, rows: Vectors, scale: Natural) -> Tensor:
    """Write `x` times one of the rows, to which 1 is added."""
    of = function("scaled", scale=scale)
    return w.pointwise(name, (x, rows), x.dims, MODULATION_FLOPS, residuals=(x, rows), function=of)


@checked_piece
def bounded(w: GraphWriter, name: str, rows: Vectors) -> Tensor:
    """Write the hyperbolic tangent of rows, as of gates between -1 and 1."""
    return w.pointwise(
        name, (rows,), rows.dims, TANH_FLOPS, keeps="outputs", function=function("tanh")
    )


@checked_piece
def filled(w: GraphWriter, name: str, x: Tokens, given: Count) -> Tensor:
    """Write `x` with a learnt vector in place of the tokens that only fill its sequence.

    x: [batch, sequence, embed].
    given: tokens that are no filling.
    """
    fill = w.weight(f"{name}_fill", x.dims[-1])
    of = function("filled", given=given)
    return w.pointwise(name, (x, fill), x.dims, 1.0, keeps="", function=of)
