"""Element-wise groups, which run in one pass over their tensors."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from tpusim.base.phase import Phase
from tpusim.graph.function import Function
from tpusim.graph.tensor import Cotangents, MakeGradient, Tensor, gradient_of


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A fused element-wise, normalisation, softmax or reduction group.

    flops: vector operations for each element of its largest tensor.
    gradient_flops: those of its transpose; twice `flops` where it is not given.
    over: dimensions that its statistics run over (a norm's `embed`, a softmax's keys).
    statistics: sums over `over`, of each element of the other dimensions; 2 for a batch norm, whose
        mean and variance are summed at once.
    linear: a sum of its inputs, which passes gradients and partial sums through unchanged.
    keeps: tensors that its backward pass reads: its `inputs`, `outputs`, `residuals`, or "" for
        none.
    repeats: (narrow, wide) pairs of dimensions that are sharded alike, for repeated K/V heads.
    alone: it rearranges elements (a rotation), so it cannot be in a matmul's epilogue.
    on_device: its statistics are of what each device has, also along sharded dimensions.
    group: consecutive examples, along the first dimension, that have statistics of their own; 0
        where all examples have them together.
    sums: it makes statistics only, for a group `after_sums`, see `apart`.
    residuals: arrays that its linearisation reads if no checkpoint computes them again, see
        `with_residuals`; of a backward group, those that it reads.
    generated: it makes a large result of small operands (a one-hot mask), so a matmul can make it
        as it reads it.
    inlined: whatever reads its result computes it, as no checkpoint keeps the compiler from it.
    picks: dimension along which it reads one element by its index, rather than all of them with a
        mask. Empty for none.
    scatters_back: the gradient of what it picks is a scatter, element by element; else a mask.
    function: what it computes; None where only its cost is known, and for transposes.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    flops: float
    over: tuple[str, ...] = ()
    statistics: int = 1
    linear: bool = False
    keeps: str = "inputs"
    repeats: tuple[tuple[str, str], ...] = ()
    alone: bool = False
    on_device: bool = False
    group: int = 0
    sums: bool = False
    after_sums: bool = False
    residuals: tuple[Tensor, ...] = ()
    generated: bool = False
    inlined: bool = False
    picks: str = ""
    scatters_back: bool = False
    function: Function | None = None
    gradient_flops: float | None = None
    phase: Phase = Phase.FORWARD

    @property
    def fusible(self) -> bool:
        """True if it can run in the epilogue of the matmul that it follows.

        A group that writes residuals cannot: compiled steps without checkpoints read the matmul's
        result again for it (plain models on v5p 2x2x4 and v6e 4x4, libtpu 0.0.42.1).
        """
        return not (self.over or self.alone or self.writes_residuals)

    @property
    def reduces(self) -> bool:
        """True for the gradient of a term that a sum repeats: the sum of its operand."""
        (made, *others), given = self.outputs, self.inputs
        alone = len(given) == 1 and not (others or self.over or self.repeats or self.alone)
        backward = self.phase is Phase.BACKWARD
        return backward and alone and set(made.dims) < set(given[0].dims)

    @property
    def element_wise(self) -> bool:
        """True if each element that it makes needs only elements of one place."""
        return not (self.over or self.alone or self.sums)

    @property
    def main(self) -> Tensor:
        """The tensor of most dimensions."""
        return max((*self.inputs, *self.outputs), key=lambda tensor: len(tensor.dims))

    @property
    def reads_twice(self) -> bool:
        """True if its statistics are summed in one pass, and used in another.

        A norm or a softmax over the last dimension holds whole rows of it in VMEM; statistics of
        channels, over examples or positions, are complete when all is read.
        """
        ends = {t.dims[-1] for t in (*self.inputs, *self.outputs) if len(t.dims) > 1}
        given = any(set(self.over) <= set(tensor.dims) for tensor in self.inputs)
        return bool(self.over) and ends.isdisjoint(self.over) and given and bool(self._wide)

    @property
    def _wide(self) -> tuple[Tensor, ...]:
        """The results that have the dimensions of the statistics."""
        return tuple(t for t in self.outputs if set(self.over) <= set(t.dims))

    def apart(self) -> "tuple[Pointwise, Pointwise]":
        """Return the pass that makes the statistics and the one that uses them, of half the FLOPs.

        Of a gradient, the first makes the gradients of scale and shift too. The statistics are the
        last result of the first and the last operand of the second.
        """
        dims = tuple(dim for dim in self.main.dims if dim not in self.over)
        made = Tensor(f"{self.name}/own_sums", dims, dtype="f32")
        whole = tuple(t for t in self.inputs if set(self.over) <= set(t.dims))
        small = tuple(t for t in self.outputs if t not in self._wide)
        flops = self.flops / 2
        plain = replace(self, flops=flops, over=(), statistics=1)
        first = replace(
            plain, name=made.name, inputs=whole, outputs=(*small, made), sums=True, residuals=(),
            keeps="", function=None,
        )  # fmt: skip
        second = replace(plain, inputs=(*self.inputs, made), outputs=self._wide, after_sums=True)
        return first, second

    @property
    def copies(self) -> bool:
        """True if it copies each operand, rearranged, and combines none of them."""
        return self.alone and [t.dims for t in self.inputs] == [t.dims for t in self.outputs]

    def making(self, names: Collection[str]) -> "Pointwise":
        """Return the group with what those of its results need: of copies, their operands alone."""
        if not self.copies:
            return self
        pairs = zip(self.inputs, self.outputs, strict=True)
        inputs, outputs = zip(*(pair for pair in pairs if pair[1].name in names), strict=True)
        return replace(self, inputs=inputs, outputs=outputs)

    @property
    def writes_residuals(self) -> bool:
        """True if it writes residuals, which its backward pass reads in place of operands."""
        return self.keeps == "residuals"

    @property
    def scatters(self) -> bool:
        """True for the gradient of a group that picks elements by their index."""
        return bool(self.picks) and self.phase is Phase.BACKWARD

    def with_residuals(self) -> "Pointwise":
        """Return the group as it is differentiated outside of a checkpoint.

        Its residuals, derivatives or intermediate values, are then arrays of their own and written
        as results (JAX's `linearize`).
        """
        made = tuple(t for t in self.residuals if t not in (*self.inputs, *self.outputs))
        return replace(self, outputs=(*self.outputs, *made), keeps="residuals")

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Pointwise, ...]":
        """Return one group that reads the gradients and the kept tensors."""
        flops = 2 * self.flops if self.gradient_flops is None else self.gradient_flops
        given = tuple(
            gradient_of(tensor, cotangents) for tensor in self.outputs if tensor.name in cotangents
        )
        kinds = {"inputs": self.inputs, "outputs": self.outputs, "residuals": self.residuals}
        kept = kinds.get(self.keeps, ())
        wanted = tuple(gradient(t) for t in self.inputs if t.differentiable)
        if not wanted:
            return ()
        return (
            Pointwise(
                f"{self.name}/d",
                given + kept,
                wanted,
                flops,
                self.over,
                self.statistics,
                repeats=self.repeats,
                alone=self.alone and not self.generated,
                on_device=self.on_device,
                group=self.group,
                residuals=self.residuals if self.writes_residuals else (),
                picks=self.picks if self.scatters_back else "",
                phase=Phase.BACKWARD,
            ),
        )
