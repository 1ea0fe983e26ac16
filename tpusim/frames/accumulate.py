"""Gradient accumulation: a loop over microbatches whose gradients are added up.

The program is that of MaxText (gradient_accumulation.py): a loop over the microbatches carries one
accumulator for each weight, which starts at zero and has the weight's layout. (MaxText's also has
the weight's dtype; here that is `accumulator_dtype`.) What is added to it is therefore whole:
gradients are reduced in every microbatch, across slices too. (XLA can sink a reduction out of such
a loop, but only one whose result goes to nothing but the addition; those of scanned layers go to
the stack of the layers first. openxla/xla, while_loop_all_reduce_code_motion.)
"""

from tpusim.base.phase import Phase
from tpusim.frames.side_by_side import Unrolled, side_by_side, unrolled
from tpusim.lowering import GradientDeps
from tpusim.partition import ACCUMULATORS, DTYPE_BYTES, Sizes, StoredWeight
from tpusim.plan import Numerics
from tpusim.program import Alloc, Compute, Loop, Op, VectorWork

MICROBATCHES = "microbatches"
"""The name of the loop."""


def accumulate_microbatches(
    body: tuple[Op, ...],
    gradients: GradientDeps,
    weights: tuple[StoredWeight, ...],
    microbatches: int,
    numerics: Numerics,
    sizes: Sizes,
    apart: bool = False,
) -> tuple[tuple[Op, ...], GradientDeps]:
    """Return the operations for all microbatches, from the `body` of one, and the summed gradients.

    apart: they are under way at a time, see `side_by_side`.
    """
    trained = [weight for weight in weights if weight.name in gradients.held]
    sums = {weight.name: accumulator(weight, numerics, sizes) for weight in trained}
    additions = tuple(addition(weight, numerics, sizes, gradients) for weight in trained)
    forward, beside, rest = unrolled(body) if apart else Unrolled((), (), body)
    loops = [
        *_loop(f"{MICROBATCHES}/forward", microbatches, forward),
        *side_by_side(beside, microbatches, MICROBATCHES),
        *_loop(MICROBATCHES, microbatches, (*rest, *additions)),
    ]
    after = {weight.name: op.name for weight, op in zip(trained, additions, strict=True)}
    summed = {name: alloc.tensor for name, alloc in sums.items()}
    return (zeros(tuple(sums.values())), *loops), GradientDeps(summed, after)


def is_microbatches(loop: str) -> bool:
    """Return True for the name of a loop over microbatches."""
    return loop.split("/")[0] == MICROBATCHES


def _loop(name: str, trips: int, body: tuple[Op, ...]) -> tuple[Loop, ...]:
    return (Loop(name=name, trips=trips, body=body),) if body else ()


def accumulator(weight: StoredWeight, numerics: Numerics, sizes: Sizes) -> Alloc:
    """Return the accumulator of one weight's gradients, over all its layers."""
    item = DTYPE_BYTES[numerics.of("accumulator")]
    nbytes = weight.copies * sizes.elements(weight.summed) * item
    padded = nbytes * sizes.padding(weight.summed)
    return Alloc(f"{weight.name}/accumulator", nbytes, ACCUMULATORS, padded)


def zeros(sums: tuple[Alloc, ...]) -> Compute:
    """Return the operation that clears the accumulators before the first microbatch."""
    nbytes = sum(alloc.bytes for alloc in sums)
    return Compute(
        name="zero_accumulators",
        phase=Phase.BACKWARD,
        scope="zero_accumulators",
        work=VectorWork(0, nbytes, 0),
        allocs=sums,
    )


def addition(
    weight: StoredWeight, numerics: Numerics, sizes: Sizes, gradients: GradientDeps
) -> Compute:
    """Return the addition of one microbatch's gradients: it reads both and writes in place.

    One vector operation per element, and a conversion for each of the three where they are narrow.
    """
    elements = weight.copies * sizes.elements(weight.summed)
    held = DTYPE_BYTES[numerics.of("accumulator")]
    given = DTYPE_BYTES[numerics.of("grad")]
    narrow = [item < DTYPE_BYTES["f32"] for item in (given, held, held)]
    return Compute(
        name=f"accumulate/{weight.name}",
        phase=Phase.BACKWARD,
        scope=weight.name,
        work=VectorWork(elements * (given + held), elements * held, (1 + sum(narrow)) * elements),
        deps=gradients.deps(weight.name),
        frees=gradients.frees(weight.name),
    )
