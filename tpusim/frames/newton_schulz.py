"""Newton-Schulz iterations, which make the momentum of Muon's matrices orthogonal.

X is a matrix or its transpose, with no more rows than columns. An iteration is

    A = X X^T,  B = b A + c A A,  X = a X + B X

(Jordan et al., Muon, kellerjordan.github.io/posts/muon; Liu et al., arXiv:2502.16982). The matrices
of all layers go through it together, in f32, whose matmuls are bf16 by default.

The layouts are those of the exported step, and of Levanter: all axes that shard a weight shard the
columns of X (`matrix_stack`). So X X^T is a partial sum, which is all-reduced in f32; every device
computes all of A A; B X moves nothing. X is exchanged before and after where the weight is stored
in another layout. All of it is synchronous: nine exported steps compiled for v4, v5e, v5p and v6e,
with weights sharded over 4 to 64 devices in one dimension or two (libtpu 0.0.42.1). The optimizer
alone, compiled without the step, runs the last iteration on rows of X instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tpusim.base.phase import Phase
from tpusim.partition import (
    DTYPE_BYTES,
    Layout,
    MatrixStack,
    Sizes,
    StoredWeight,
    matrix_stack,
    reshard,
)
from tpusim.plan import Axes
from tpusim.program import (
    Alloc,
    Collective,
    CollectiveKind,
    Compute,
    Flops,
    Loop,
    MatmulWork,
    Number,
    Op,
)

ITERATIONS = 5
"""Newton-Schulz iterations of an update."""

POLYNOMIAL_FLOPS = 2.0
"""Vector operations per element of `b A + c A A` and of `a X + B X`, beside the matmul."""

CATEGORY = "optimizer updates"
"""Category of the memory of updates, between the moments and the weight."""

F32, BF16 = DTYPE_BYTES["f32"], DTYPE_BYTES["bf16"]


def orthogonalised(weight: StoredWeight, sizes: Sizes, staged: bool) -> tuple[Op, ...]:
    """Return the operations that make a weight's momentum orthogonal, in place and as stored.

    staged: the weight is one stage's.
    """
    stack = matrix_stack(weight, sizes, staged)
    made = NewtonSchulz(weight.name, stack, sizes)
    return (
        *made.norm(),
        *made.exchange("divide", stack.stored, stack.divided),
        Loop(name=made.name, trips=ITERATIONS, body=made.iteration()),
        *made.exchange("restore", stack.divided, stack.stored),
    )


@dataclass(frozen=True, slots=True)
class NewtonSchulz:
    """The operations of the iterations of one weight, all of its matrices at once."""

    weight: str
    stack: MatrixStack
    sizes: Sizes

    @property
    def name(self) -> str:
        """The prefix of their names."""
        return f"newton_schulz/{self.weight}"

    def norm(self) -> Iterator[Collective]:
        """Yield the sum over shards of each matrix's squares, by whose root X is divided first."""
        outer, rows, columns = self.stack.stored
        yield from self._moves("norm", (self.stack.count,), (outer,), (outer,), (*columns, *rows))

    def exchange(self, name: str, source: Layout, target: Layout) -> Iterator[Collective]:
        """Yield what leads from one layout of X to another: an exchange, or a gather of all."""
        if source != target and self.stack.gathered:
            target = (target[0], (), ())
        yield from self._moves(name, self.stack.sizes, source, target)

    def iteration(self) -> tuple[Op, ...]:
        """Return one iteration.

        A is made in f32, and B in bf16, as only a matmul reads it; the new X has a buffer of its
        own.
        """
        count, rows, columns = self.stack.extents(self.stack.divided, self.sizes)
        outer, _, axes = self.stack.divided
        side, area = count * rows * rows, count * rows * columns
        gram = self._matmul("gram", (count, rows, columns, rows), F32 * area, F32 * side)
        square = self._matmul(
            "square", (count, rows, rows, rows), F32 * side, BF16 * side, (gram.allocs[0].tensor,)
        )
        apply = self._matmul(
            "apply", (count, rows, rows, columns), BF16 * side + F32 * area, F32 * area,
            (square.allocs[0].tensor, f"{self.name}/apply"),
        )  # fmt: skip
        sizes, layout = (self.stack.count, self.stack.rows, self.stack.rows), (outer, (), ())
        return (gram, *self._moves("gram", sizes, layout, layout, axes), square, apply)

    def _matmul(
        self,
        name: str,
        extents: tuple[Number, Number, Number, Number],
        read: Number,
        written: Number,
        frees: tuple[str, ...] = (),
    ) -> Compute:
        """Return `batch` matmuls of [m, k] by [k, n] on every device; extents: batch, m, k, n."""
        batch, m, k, n = extents
        devices = self.sizes.group(tuple(self.sizes.axes))
        epilogue = POLYNOMIAL_FLOPS * batch * m * n if name != "gram" else 0
        return Compute(
            name=f"{self.name}/{name}",
            phase=Phase.OPTIMIZER,
            scope=self.weight,
            work=MatmulWork(batch, m, k, n, "bf16", read, written, epilogue),
            flops=Flops(optimizer=2 * batch * m * k * n * devices),
            allocs=(Alloc(f"{self.name}/{name}", written, CATEGORY),),
            frees=frees,
        )

    def _moves(
        self,
        name: str,
        sizes: Sequence[int],
        source: Layout,
        target: Layout,
        partial: Axes = (),
    ) -> Iterator[Collective]:
        """Yield the collectives that lead from one layout of a tensor of these sizes to another.

        What is gathered is cut to a shard at once.
        """
        for step in reshard(source, partial, target):
            axes = tuple(axis for axis in self.sizes.axes if axis in step.axes)
            nbytes = F32 * prod(map(self.sizes.shard, sizes, step.payload))
            held = Alloc(f"{self.name}/{name}/whole@{','.join(axes)}", nbytes, CATEGORY)
            whole = (held,) if step.kind is CollectiveKind.ALL_GATHER else ()
            yield Collective(
                name=f"{step.kind}/{self.name}/{name}@{','.join(axes)}",
                phase=Phase.OPTIMIZER,
                kind=step.kind,
                axes=axes,
                bytes=nbytes,
                dtype="f32",
                scope=self.weight,
                allocs=whole,
                frees=tuple(alloc.tensor for alloc in whole),
            )
