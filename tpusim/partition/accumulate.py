"""Microbatches: forward and backward run once for each, and their gradients are added up.

The program is that of MaxText (gradient_accumulation.py): a loop over the microbatches carries one
accumulator for each weight, which starts at zero and lies as the weight does. (MaxText's also has
the weight's dtype; here that is `accumulator_dtype`.) What is added to it is therefore whole:
gradients are reduced in every microbatch, across slices too. (XLA can sink a reduction out of such
a loop, but only one whose result goes to nothing but the addition; those of scanned layers go to
the stack of the layers first. openxla/xla, while_loop_all_reduce_code_motion.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tpusim.partition.plan import Plan
from tpusim.partition.sizes import DTYPE_BYTES, Sizes
from tpusim.partition.template import Weight
from tpusim.phase import Phase
from tpusim.program import Alloc, Compute, Dep, Loop, Op, Vector

MICROBATCHES = "microbatches"
"""The name of the loop."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """Where the gradients of weights are when they are complete.

    held: weight -> tensor that holds the gradients of all its layers. after: weight -> operation
    to wait for, where it is not in program order.
    """

    held: Mapping[str, str]
    after: Mapping[str, str]

    def deps(self, weight: str) -> tuple[Dep, ...]:
        """What the reader of a weight's gradient waits for."""
        return (Dep(self.after[weight]),) if weight in self.after else ()


def accumulated(
    body: tuple[Op, ...], gradients: Gradients, weights: tuple[Weight, ...], plan: Plan,
    sizes: Sizes, held: tuple[str, ...] = (),
) -> tuple[tuple[Op, ...], Gradients]:  # fmt: skip
    """The operations for all microbatches, from the `body` of one; and where their sums are.

    held: tensors that a microbatch holds to its end.
    """
    trained = [weight for weight in weights if weight.name in gradients.held]
    sums = {weight.name: accumulator(weight, plan, sizes) for weight in trained}
    additions = [addition(weight, plan, sizes, gradients) for weight in trained]
    additions[0] = replace(additions[0], frees=(*additions[0].frees, *held))
    loop = Loop(name=MICROBATCHES, trips=plan.microbatches, body=(*body, *additions))
    after = {weight.name: op.name for weight, op in zip(trained, additions, strict=True)}
    summed = {name: alloc.tensor for name, alloc in sums.items()}
    return (zeros(tuple(sums.values())), loop), Gradients(summed, after)


def accumulator(weight: Weight, plan: Plan, sizes: Sizes) -> Alloc:
    """The sum of one weight's gradients, of all its layers."""
    item = DTYPE_BYTES[plan.dtype_of("accumulator_dtype")]
    nbytes = weight.copies * sizes.elements(weight.local) * item
    padded = nbytes * sizes.padding(weight.local)
    return Alloc(f"{weight.name}/accumulator", nbytes, "gradient accumulators", padded)


def zeros(sums: tuple[Alloc, ...]) -> Compute:
    """What fills the accumulators before the first microbatch."""
    nbytes = sum(alloc.bytes for alloc in sums)
    return Compute(
        name="zero_accumulators", phase=Phase.BACKWARD, scope="zero_accumulators",
        work=Vector(0, nbytes, 0), allocs=sums,
    )  # fmt: skip


def addition(weight: Weight, plan: Plan, sizes: Sizes, gradients: Gradients) -> Compute:
    """Adds the gradients of one microbatch: reads both, writes one in its place.

    One vector operation an element, and a conversion for each of the three where they are narrow.
    """
    elements = weight.copies * sizes.elements(weight.local)
    held = DTYPE_BYTES[plan.dtype_of("accumulator_dtype")]
    given = DTYPE_BYTES[plan.grad_dtype]
    narrow = [item < DTYPE_BYTES["f32"] for item in (given, held, held)]
    return Compute(
        name=f"accumulate/{weight.name}", phase=Phase.BACKWARD, scope=weight.name,
        work=Vector(elements * (given + held), elements * held, (1 + sum(narrow)) * elements),
        deps=gradients.deps(weight.name), frees=(gradients.held[weight.name],),
    )  # fmt: skip
