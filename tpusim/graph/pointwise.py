"""Element-wise groups: what runs in one pass over its tensors."""

from dataclasses import dataclass, replace

from tpusim.graph.tensor import Role, Tensor
from tpusim.graph.transpose import Cotangents, MakeGradient, gradient_of
from tpusim.phase import Phase


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A fused element-wise, normalisation, softmax or reduction group.

    flops: vector operations for each element of its largest tensor.
    over: dimensions that its statistics run over (a norm's `embed`, a softmax's keys).
    linear: a sum of its inputs, which passes gradients and partial sums through unchanged.
    keeps: what its backward pass reads: its `inputs`, its `outputs`, its `tape`, or nothing.
    tape: what its linearisation reads where no checkpoint computes it again, see `with_tape`; of a
        backward group, what it reads of that.
    repeats: (narrow, wide) pairs of dimensions that are sharded alike, for repeated K/V heads.
    alone: it rearranges elements (a rotation), so no matmul's epilogue can take it.
    generated: it makes much of little (a one-hot mask), so products can make it as they read it.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    flops: float
    over: tuple[str, ...] = ()
    linear: bool = False
    keeps: str = "inputs"
    repeats: tuple[tuple[str, str], ...] = ()
    alone: bool = False
    tape: tuple[Tensor, ...] = ()
    generated: bool = False
    phase: Phase = Phase.FORWARD

    @property
    def fusible(self) -> bool:
        """Whether it can run in the epilogue of the product that it follows.

        One that makes its tape does not: compiled steps without checkpoints read the product's
        result again for it (plain models on v5p 2x2x4 and v6e 4x4, libtpu 0.0.42.1).
        """
        return not (self.over or self.alone or self.taped)

    @property
    def copies(self) -> bool:
        """Whether it copies each operand, rearranged, and shares nothing between them."""
        return self.alone and [t.dims for t in self.inputs] == [t.dims for t in self.outputs]

    @property
    def taped(self) -> bool:
        """Whether it makes its tape, which its backward pass reads in place of operands."""
        return self.keeps == "tape"

    def with_tape(self) -> "Pointwise":
        """The group as it is differentiated outside of a checkpoint.

        What reverse mode reads of it is then an array of its own, a derivative or an intermediate
        value, and is written as a result (JAX's `linearize`).
        """
        made = tuple(t for t in self.tape if t not in (*self.inputs, *self.outputs))
        return replace(self, outputs=(*self.outputs, *made), keeps="tape")

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Pointwise, ...]":
        """One group that reads the gradients and what was kept: about twice the arithmetic."""
        given = tuple(
            gradient_of(tensor, cotangents) for tensor in self.outputs if tensor.name in cotangents
        )
        kinds = {"inputs": self.inputs, "outputs": self.outputs, "tape": self.tape}
        kept = kinds.get(self.keeps, ())
        wanted = tuple(gradient(t) for t in self.inputs if t.role is not Role.INPUT)
        return (
            Pointwise(
                f"{self.name}/d",
                given + kept,
                wanted,
                2 * self.flops,
                self.over,
                repeats=self.repeats,
                alone=self.alone,
                tape=self.tape if self.taped else (),
                phase=Phase.BACKWARD,
            ),
        )
