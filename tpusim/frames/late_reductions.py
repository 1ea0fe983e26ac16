"""Lowering of the reductions of gradients that run once a step, after the last microbatch.

They are a body of their own, of collectives alone, which the same passes lower as any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tpusim.lowering import AskedPlace, BodyChoices, BodyLowerer, GradientDeps, LoweringDecisions
from tpusim.partition import Sizes, StoredWeight, late_reductions
from tpusim.program import Op


class Reduced(NamedTuple):
    """The operations that reduce gradients, the gradients, and those that cross slices."""

    ops: tuple[Op, ...]
    gradients: GradientDeps
    crossing: tuple[str, ...]


def reduce_once(
    weights: Sequence[StoredWeight],
    sums: GradientDeps,
    choices: BodyChoices,
    sizes: Sizes,
    place: AskedPlace,
) -> Reduced:
    """Return the reductions of the sums that microbatches left as terms.

    sums: the accumulators of the weights.
    """
    dtype = choices.numerics.of("accumulator")
    made = late_reductions(weights, sums.held, dtype, sizes)
    kept: Any = {"grad": dtype, "accumulator": dtype}
    numerics = replace(choices.numerics, **kept)
    finished = choices._replace(numerics=numerics)
    decisions = LoweringDecisions(made.graph, made.sizes, finished, place)
    lowerer = BodyLowerer(made.sizes, made.graph, decisions)
    (body,), reduced = lowerer.passes(_written_by(sums))
    gradients = GradientDeps({**sums.held, **reduced.held}, {**sums.after, **reduced.after})
    return Reduced(body, gradients, tuple(lowerer.crossing))


def _written_by(sums: GradientDeps) -> Mapping[str, str]:
    """Return the operation that completes each accumulator, where it is not in program order."""
    return {key: sums.after.get(weight, "") for weight, key in sums.held.items()}
