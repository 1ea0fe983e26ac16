"""Lowering of the reductions of gradients that run once a step, after the last microbatch.

They are a body of their own, of collectives alone, which the same passes lower as any other.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tpusim.lowering.accumulate import GradientDeps
from tpusim.lowering.asked_place import AskedPlace
from tpusim.lowering.decisions import LoweringDecisions
from tpusim.lowering.lower_body import BodyLowerer
from tpusim.partition import Sizes, StoredWeight, late_reductions
from tpusim.plan import Plan
from tpusim.program import Op


class Reduced(NamedTuple):
    """The operations that reduce gradients, the gradients, and those that cross slices."""

    ops: tuple[Op, ...]
    gradients: GradientDeps
    crossing: tuple[str, ...]


def reduce_once(
    weights: Sequence[StoredWeight],
    sums: GradientDeps,
    plan: Plan,
    sizes: Sizes,
    place: AskedPlace,
) -> Reduced:
    """Return the reductions of the sums that microbatches left as terms; of no others any.

    sums: the accumulators of the weights.
    """
    if not plan.reduces_once:
        return Reduced((), sums, ())
    dtype = plan.dtypes.of("accumulator")
    made = late_reductions(weights, sums.held, dtype, sizes)
    finished = plan.replace(grad_dtype=dtype, accumulator_dtype=dtype)
    decisions = LoweringDecisions(made.graph, made.sizes, finished, place)
    lowerer = BodyLowerer(made.sizes, made.graph, decisions, finished)
    (body,), reduced = lowerer.passes(_written_by(sums))
    gradients = GradientDeps({**sums.held, **reduced.held}, {**sums.after, **reduced.after})
    return Reduced(body, gradients, tuple(lowerer.crossing))


def _written_by(sums: GradientDeps) -> Mapping[str, str]:
    """Return the operation that completes each accumulator, where it is not in program order."""
    return {key: sums.after.get(weight, "") for weight, key in sums.held.items()}
