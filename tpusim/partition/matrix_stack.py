"""The matrices of a weight, and how they are divided while an optimizer makes them orthogonal."""

from dataclasses import dataclass
from math import prod

from tpusim.partition.layout import Layout
from tpusim.partition.partitioned_graph import StoredWeight
from tpusim.partition.sizes import Sizes
from tpusim.program import Number


@dataclass(frozen=True, slots=True)
class MatrixStack:
    """The matrices of a weight, one or several per layer, with no more rows than columns.

    Layouts are of (matrices, rows, columns).

    count, rows, columns: sizes of the whole, those of all layers counted.
    stored: layout of the weight, as it is updated.
    divided: layout between two iterations: whole matrices on each device, or columns of all.
    gathered: True if the way from one to the other is a gather of all. The columns are several
        dimensions of the weight, such as heads and head_dim, of which the axes do not divide the
        first (8 heads over 16 devices of v6e, 16 over 64 of v5e; of 12 over 16 of v5p, the compiler
        gathers a part).
    """

    count: int
    rows: int
    columns: int
    stored: Layout
    divided: Layout
    gathered: bool

    @property
    def whole(self) -> bool:
        """True if devices have different matrices that the weight's layout does not divide so."""
        return self.divided[0] != self.stored[0]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes of the whole."""
        return self.count, self.rows, self.columns

    def extents(self, layout: Layout, sizes: Sizes) -> tuple[Number, Number, Number]:
        """Return matrices, rows and columns on one device."""
        matrices, rows, columns = map(sizes.shard, self.sizes, layout)
        return matrices, rows, columns


def matrix_stack(weight: StoredWeight, sizes: Sizes, staged: bool = False) -> MatrixStack:
    """Return the matrices of a weight that has some.

    All axes that shard them shard the columns. Several matrices per layer, such as experts, are
    divided as whole ones instead, where no axis does so already and all of them divide their
    number.

    staged: the layers themselves are divided among the stages of a pipeline.
    """
    matrix, split = weight.matrix, weight.updated.split()
    if matrix is None:
        raise ValueError(f"{weight.name} is not a matrix")
    lead = tuple(d for d in weight.local.dims if d not in (*matrix.rows, *matrix.columns))
    rows, columns = (prod(sizes.dims[d] for d in dims) for dims in (matrix.rows, matrix.columns))
    sides = (matrix.rows, matrix.columns) if rows <= columns else (matrix.columns, matrix.rows)
    row_axes, column_axes = (tuple(a for dim in dims for a in split[dim]) for dims in sides)
    count = weight.copies * prod(sizes.dims[dim] for dim in lead)
    outer = tuple(axis for dim in lead for axis in split[dim])
    inner = (*column_axes, *row_axes)
    whole = bool(lead) and not outer and not staged and count % sizes.group(inner) == 0
    return MatrixStack(
        count=count,
        rows=min(rows, columns),
        columns=max(rows, columns),
        stored=(outer, row_axes, column_axes),
        divided=(inner, (), ()) if whole else (outer, (), inner),
        gathered=not whole
        and len(sides[1]) > 1
        and sizes.dims[sides[1][0]] % sizes.group(inner) != 0,
    )
