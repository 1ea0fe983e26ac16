"""Newton-Schulz iterations, which make the momentum of Muon's matrices orthogonal.

X is a matrix or its transpose, with no more rows than columns. An iteration is

    A = X X^T,  B = b A + c A A,  X = a X + B X

(Jordan et al., Muon, kellerjordan.github.io/posts/muon; Liu et al., arXiv:2502.16982). The matrices
of all layers go through it together, in f32, whose matmuls are bf16 by default.

The layouts are those of the exported step, and of Levanter: all axes that shard a weight shard the
columns of X (`matrix_stack`). So X X^T is a partial sum, which is all-reduced in f32; every device
computes all of A A; B X moves nothing. The result is wanted as the weight is stored. Where that
shards rows, the partitioner runs the last iteration so: the rows of A A and B X, for which A and X
are gathered in bf16, and X is exchanged. Programs of one and of five weights on v5e, v5p and v6e
show all of it, synchronous but for the gather of X on v5e (16-way, libtpu 0.0.42.1: 7 with sharded
rows have such a last iteration, one with sharded columns has not). Where both are sharded, the
compiler also divides the last A A over the columns' axes, which is neglected here (4 programs).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from tpusim.plan import Axes, Plan
from tpusim.program import (
    Alloc,
    Collective,
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

F32, BF16 = DTYPE_BYTES["f32"], DTYPE_BYTES["bf16"]


def orthogonalised(weight: StoredWeight, plan: Plan, sizes: Sizes) -> tuple[Op, ...]:
    """Return the operations that make a weight's momentum orthogonal, in place and as stored."""
    stack = matrix_stack(weight, sizes, plan.stages > 1)
    made = NewtonSchulz(weight.name, stack, sizes)
    last = made.last()
    loop = Loop(
        name=made.name,
        trips=ITERATIONS - bool(last),
        body=(*made.gram(), made.square(()), made.apply(stack.divided)),
    )
    return (
        *made.norm(),
        *made.moves("divide", stack.stored, stack.divided),
        loop,
        *(last or made.moves("restore", stack.divided, stack.stored)),
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
        """Yield the sum of each matrix' squares over its shards, by the root of which it begins."""
        outer, rows, columns = self.stack.stored
        yield from self._moves("norm", (self.stack.count,), (outer,), (outer,), (*columns, *rows))

    def moves(self, name: str, source: Layout, target: Layout) -> Iterator[Collective]:
        """Yield the exchange that leads from one layout of X to another, in f32."""
        yield from self._moves(name, self.stack.sizes, source, target)

    def gram(self, part: str = "") -> Iterator[Op]:
        """Yield `A = X X^T`, and its all-reduce where it is a sum over shards of the columns."""
        outer, _, axes = self.stack.divided
        count, rows, columns = self._extents(self.stack.divided)
        nbytes = F32 * count * rows * rows
        work = self._matmul(count, rows, columns, rows, F32 * count * rows * columns, nbytes)
        held = Alloc(f"{self.name}/gram{part}", nbytes, "optimizer updates")
        yield self._compute(f"gram{part}", work, (held,))
        reduced = (outer, (), ())
        yield from self._moves(f"gram{part}", self._grams, reduced, reduced, axes)

    def square(self, rows: Axes, part: str = "") -> Compute:
        """Return `B = b A + c A A`, of the rows of a shard: it reads A in f32, writes B in bf16."""
        count, whole, _ = self._extents(self.stack.divided)
        made = self.sizes.shard(self.stack.rows, rows)
        work = self._matmul(
            count, made, whole, whole, F32 * count * whole * whole, BF16 * count * made * whole
        )
        held = Alloc(f"{self.name}/square{part}", BF16 * count * made * whole, "optimizer updates")
        return self._compute(f"square{part}", work, (held,), (f"{self.name}/gram{part}",))

    def apply(self, layout: Layout, part: str = "", frees: Sequence[str] = ()) -> Compute:
        """Return `X = a X + B X`, with B in bf16; the result has a buffer of its own."""
        count, rows, columns = self._extents(layout)
        inner, made = self.stack.rows, F32 * count * rows * columns
        gathered = BF16 * count * inner * columns if layout[1] else 0
        read = BF16 * count * rows * inner + made + gathered
        work = self._matmul(count, rows, inner, columns, read, made)
        held = Alloc(f"{self.name}/apply{part}", made, "optimizer updates")
        done = (f"{self.name}/square{part}", held.tensor, *frees)
        return self._compute(f"apply{part}", work, (held,), done)

    def last(self) -> tuple[Op, ...]:
        """Return the last iteration, as the weight is stored, if that shards rows of X."""
        outer, rows, columns = self.stack.stored
        if self.stack.whole or not rows:
            return ()
        wide, by_rows = (outer, (), columns), (outer, rows, ())
        count, inner, width = self._extents(wide)
        x = Alloc(f"{self.name}/gathered", BF16 * count * inner * width, "optimizer updates")
        square = self.square(rows, "_last")
        return (
            *self.gram("_last"),
            *self._moves("gather_gram", self._grams, by_rows, (outer, (), ()), dtype="bf16"),
            replace(square, allocs=(*square.allocs, x)),
            *self._moves("gather", self.stack.sizes, self.stack.stored, wide, dtype="bf16"),
            *self.moves("restore", self.stack.divided, self.stack.stored),
            self.apply(self.stack.stored, "_last", (x.tensor,)),
        )

    @property
    def _grams(self) -> tuple[int, int, int]:
        return self.stack.count, self.stack.rows, self.stack.rows

    def _extents(self, layout: Layout) -> tuple[Number, Number, Number]:
        return self.stack.extents(layout, self.sizes)

    def _matmul(
        self, count: Number, m: Number, k: Number, n: Number, read: Number, written: Number
    ) -> MatmulWork:
        epilogue = POLYNOMIAL_FLOPS * count * m * n
        return MatmulWork(count, m, k, n, "bf16", read, written, epilogue)

    def _compute(
        self,
        name: str,
        work: MatmulWork,
        allocs: tuple[Alloc, ...],
        frees: tuple[str, ...] = (),
    ) -> Compute:
        """Return a matmul of every device."""
        devices = self.sizes.group(tuple(self.sizes.axes))
        flops = Flops(optimizer=2 * work.batch * work.m * work.k * work.n * devices)
        return Compute(
            name=f"{self.name}/{name}",
            phase=Phase.OPTIMIZER,
            scope=self.weight,
            work=work,
            flops=flops,
            allocs=allocs,
            frees=frees,
        )

    def _moves(
        self,
        name: str,
        sizes: Sequence[int],
        source: Layout,
        target: Layout,
        partial: Axes = (),
        dtype: str = "f32",
    ) -> Iterator[Collective]:
        """Yield the collectives that lead from one layout of a tensor of these sizes to another."""
        for step in reshard(source, partial, target):
            extents = map(self.sizes.shard, sizes, step.payload)
            yield Collective(
                name=f"{step.kind}/{self.name}/{name}@{','.join(step.axes)}",
                phase=Phase.OPTIMIZER,
                kind=step.kind,
                axes=step.axes,
                bytes=DTYPE_BYTES[dtype] * prod(extents),
                dtype=dtype,
                scope=self.weight,
            )
