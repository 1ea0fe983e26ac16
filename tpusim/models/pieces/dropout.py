"""Dropout: elements that training sets to zero at random."""

from tpusim.graph import GraphWriter, Tensor, checked_piece

RANDOM = "u32"
"""Dtype of the random numbers: XLA's `RngBitGenerator` draws 32 bits for an element."""

DROPOUT_FLOPS = 3.0
"""Comparison, selection and scale; see `mlp.ACTIVATION_FLOPS`."""


@checked_piece
def dropout(w: GraphWriter, name: str, x: Tensor) -> Tensor:
    """Write dropout of a tensor; return it with the elements that are left.

    The random numbers are drawn by an operation of its own, which XLA does not fuse, so they cross
    HBM twice; drawing them is not counted. The backward pass reads them again, and nothing else; a
    checkpoint draws the same numbers once more.

    name: of the operations, `{name}_dropout` and `{name}_random`.
    """
    drawn = w.tensor(f"{name}_random", x.dims, RANDOM)
    random = w.stop(w.pointwise(f"{name}_random", (), drawn, 0.0, keeps="", alone=True))
    return w.pointwise(
        f"{name}_dropout",
        (x, random),
        x.dims,
        DROPOUT_FLOPS,
        keeps="residuals",
        residuals=(random,),
    )
