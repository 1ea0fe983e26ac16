"""Learnt terms that are added to activations, biases and positions, and matmuls with a bias."""

from tpusim.graph import GraphWriter, Ids, Tensor, Tokens, Vectors, checked_piece, function


@checked_piece
def biased(w: GraphWriter, name: str, x: Tensor, *dims: str) -> Tensor:
    """Write the sum of `x` and a bias, `{name}_bias`.

    dims: dimensions of the bias; the last one of `x` where none are given.
    """
    return w.add(f"{name}_biased", x, w.weight(f"{name}_bias", *(dims or x.dims[-1:])))


@checked_piece
def linear(w: GraphWriter, name: str, x: Vectors, dim: str) -> Tensor:
    """Write the product of `x` with a weight that replaces its last dimension, and a bias."""
    return biased(w, name, w.dense(name, x, dim))


@checked_piece
def learnt_positions(w: GraphWriter, x: Tokens) -> Tensor:
    """Write the sum of [batch, sequence, embed] and a learnt vector for each position."""
    return w.add("positioned", x, w.weight("positions", *x.dims[1:]))


@checked_piece
def first_positions(w: GraphWriter, x: Tokens, dim: str) -> Tensor:
    """Write the sum of [batch, sequence, embed] and the first rows of a table of positions.

    dim: the positions of the table, of which a sequence may have fewer.
    """
    table = w.weight("positions", dim, x.dims[-1])
    first = function("first_rows", count=x.dims[1])
    rows = w.pointwise(
        "position_rows", (table,), x.dims[1:], 0.0, keeps="", alone=True, function=first
    )
    return w.add("positioned", x, rows)


@checked_piece
def segmented(w: GraphWriter, x: Tokens, ids: Ids, dim: str) -> Tensor:
    """Write the sum of [batch, sequence, embed] and a learnt vector for the segment of each token.

    They are found by a matmul with a mask, as there are few of them (google-research/bert,
    `modeling.py`, `embedding_postprocessor`).

    ids: [batch, sequence], the segment of each token.
    dim: the segments.
    """
    dims = (*ids.dims, dim)
    mask = w.pointwise(
        "segment_mask", (ids,), dims, 1.0, keeps="", generated=True,
        function=function("one_hot_rows", count=dim),
    )  # fmt: skip
    table = w.weight("segments", dim, x.dims[-1])
    return w.add("segmented", x, w.einsum("segment_rows", w.stop(mask), table, x.dims))
