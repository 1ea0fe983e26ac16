"""Least seconds of a pipeline, whose stages wait for each other, on arrays of plans."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.bounds.bodies import LoopSeconds, StepParts
from tpusim.bounds.plan_arrays import PlanArrays, distinct
from tpusim.graph import LayerRow
from tpusim.graph.layer_row import layer_inputs
from tpusim.plan import CIRCULAR, Pipeline, Plan
from tpusim.program import Number, largest

Iterations: TypeAlias = tuple[int, ...]
"""Whole iterations of each loop over layers."""


class LayerLoops(NamedTuple):
    """The loops over layers of a model, in its order: names, iterations, layers of an iteration."""

    names: tuple[str, ...]
    trips: tuple[int, ...]
    periods: tuple[int, ...]

    @classmethod
    def of(cls, row: LayerRow) -> "LayerLoops":
        """Return the loops of a row of layers."""
        scans = row.scans
        return cls(
            tuple(scan.name for scan in scans),
            tuple(scan.trips for scan in scans),
            tuple(len(layer_inputs(scan)) for scan in scans),
        )

    @property
    def layers(self) -> int:
        """The number of layers."""
        return sum(n * period for n, period in zip(self.trips, self.periods, strict=True))

    def of_parts(self, pipeline: Pipeline, stages: int) -> tuple[int, ...]:
        """Return the layers of each part of the model."""
        parts = stages * pipeline.virtual_stages
        return tuple(pipeline.stage_layers) or (self.layers // parts,) * parts

    def stacked(self, plan: Plan, plans: PlanArrays) -> Number:
        """Return 1 for plans each of whose loops has several iterations in every part, else 0."""
        if not plan.active_schedule:
            return 1.0
        counts, index = distinct(plans.stages)
        found = []
        for count in counts.tolist():
            layers = self.of_parts(plan.pipeline, count)
            each = {n for part in _iterations(self, layers) for n in part}
            found.append(float(1 not in each and min(layers) >= 2 * max(self.periods)))
        stacked: Number = np.array(found)[index]
        return stacked


def pipelined_seconds(plan: Plan, plans: PlanArrays, loops: LayerLoops, parts: StepParts) -> Number:
    """Return seconds that no step of each plan is shorter than.

    The mean of all stages' work is a bound of the busiest stage. A circular pipeline is one program
    that all stages run, idle ones too, for p - 1 more parts.
    """
    m, stages = plans.microbatches.astype(float), plans.stages
    layers, links, once = parts.layers / stages, m * parts.links / stages, parts.once / stages
    if plan.active_schedule == CIRCULAR:
        return largest((m + (stages - 1) * _idle(plan.pipeline, loops)) * layers + once, links)
    mean = largest(m * layers, links) + m * parts.edges / stages + once
    found = np.broadcast_to(mean, m.shape)
    for count in np.unique(stages).tolist():
        iterations = _iterations(loops, loops.of_parts(plan.pipeline, count))
        flushed = _FlushedPipeline(plan, loops, parts, iterations, count).of(m)
        found = np.where(stages == count, largest(found, flushed), found)
    return found


def _idle(pipeline: Pipeline, loops: LayerLoops) -> float:
    """Return the least share of a stage's layers that idle stages of a circular pipeline run.

    Each loop is filled and drained, and rounds of unequal parts are loops of their own.
    """
    chunks, given = pipeline.virtual_stages, pipeline.stage_layers
    if not given or loops.periods != (1,):
        return 1 / chunks
    rounds = given[:: len(given) // chunks]
    return sum(layers for layers, _ in groupby(rounds)) / sum(rounds)


@lru_cache(maxsize=256)
def _iterations(loops: LayerLoops, layers: tuple[int, ...]) -> tuple[Iterations, ...]:
    """Return the whole iterations of each loop in each part of the model.

    Where a cut divides an iteration of several layers, neither part counts it.

    layers: of each part.
    """
    firsts = (0, *accumulate(n * each for n, each in zip(loops.trips, loops.periods, strict=True)))
    return tuple(
        tuple(
            max(0, (min(end, last) - begin) // period - -(-(max(begin, first) - begin) // period))
            for (begin, end), period in zip(pairwise(firsts), loops.periods, strict=True)
        )
        for first, last in pairwise((0, *accumulate(layers)))
    )


class _FlushedPipeline:
    """Stages with parts of a model of their own, under a schedule that ends with a flush.

    Stage b begins when the first microbatch has passed the stages before it, and works for m
    microbatches. Then the last one has to pass these stages backward, and each updates its weights.
    So with F and B, the passes of a microbatch through the first part of each stage, and W, both
    passes of all of its parts, a step takes at least

        F_0 + ... + F_b-1 + m W_b + B_b-1 + ... + B_0,

    which for equal stages is (m + p - 1) W (Narayanan et al., arXiv:2104.04473, section 2.2). It
    takes longer where stage b waits for its first gradient, or its last one, with less work than
    the later stages need for it. Schedules that separate the gradients of weights may end with
    these, so that no backward pass follows the last work of a stage.

    iterations: of each part of the model.
    """

    def __init__(
        self,
        plan: Plan,
        loops: LayerLoops,
        parts: StepParts,
        iterations: Sequence[Iterations],
        stages: int,
    ) -> None:
        self.schedule, self.stages, self.head = plan.active_schedule, stages, parts.head
        self.splits = self.schedule.startswith("zb")
        self.alone = plan.pipeline.virtual_stages == 1
        self.iterations = iterations
        self.loops = [parts.loops.get(name, LoopSeconds()) for name in loops.names]

    def of(self, m: NDArray[np.float64]) -> Number:
        """Return seconds that no step is shorter than. m: microbatches."""
        longest: Number = 0.0
        ramp: Number = 0.0
        tail: Number = 0.0
        for first, last in self._runs():
            part = self.iterations[first]
            forward, backward = self._seconds("forward", part), self._seconds("backward", part)
            own = _added(self.iterations[first :: self.stages])
            work = self._seconds("forward", own) + self._seconds("backward", own)
            once = self._seconds("once", own)
            tail = once if self.splits else largest(once, tail) + (last - first) * backward
            ramp = ramp + (last - first) * forward
            if last == self.stages - 1:
                work = work + self.head
            wait = self._wait(last, forward, backward, m)
            longest = largest(longest, ramp + m * work + wait + tail)
            ramp = ramp + forward
            tail = tail + backward
        return longest

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last of stages in a row that have equal parts.

        Of such stages the last has the most before it.
        """
        kinds = [tuple(self.iterations[stage :: self.stages]) for stage in range(self.stages)]
        first = 0
        for last in range(self.stages):
            if last + 1 == self.stages or kinds[last + 1] != kinds[first]:
                yield first, last
                first = last + 1

    def _wait(
        self, stage: int, forward: Number, backward: Number, m: NDArray[np.float64]
    ) -> Number:
        """Return what a stage waits for gradients that later stages work on.

        Under `gpipe`, the last microbatch comes back first, and nothing is left to do meanwhile.
        Under 1F1B, stage b has p - 1 - b forward passes to do between those of the first
        microbatch, and as many backward passes between those of the last one.
        """
        if self.splits or not self.alone or stage == self.stages - 1:
            return 0.0
        later = _added(self.iterations[stage + 1 :])
        passing = self._seconds("forward", later) + self._seconds("backward", later) + self.head
        if self.schedule == "gpipe":
            return passing
        ahead = np.minimum(self.stages - 1 - stage, m - 1)
        first = largest(passing - ahead * forward, 0.0)
        final = largest(passing - ahead * backward, 0.0)
        apart = self.stages - 1 - stage < m - 1
        return np.where(apart, first + final, largest(first, final))

    def _seconds(self, name: str, iterations: Iterations) -> Number:
        """Return the seconds of iterations: `forward`, `backward`, or `once` for all."""
        each: list[Number] = [getattr(loop, name) for loop in self.loops]
        return sum(n * seconds for n, seconds in zip(iterations, each, strict=True))


def _added(parts: Sequence[Iterations]) -> Iterations:
    """Return the iterations of several parts together."""
    return tuple(map(sum, zip(*parts, strict=True)))
