"""Least seconds of a pipeline, whose stages wait for each other, on arrays of plans."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.exploration.bound_bodies import LoopSeconds, StepParts
from tpusim.exploration.plan_arrays import PlanArrays
from tpusim.graph import LayerRow
from tpusim.graph.layer_row import layer_inputs
from tpusim.plan import CIRCULAR, Plan
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


def pipelined_seconds(plan: Plan, plans: PlanArrays, loops: LayerLoops, parts: StepParts) -> Number:
    """Return seconds that no step of each plan is shorter than.

    The mean of all stages' work is a bound of the busiest stage. A circular pipeline is one program
    that all stages run, idle ones too, for p - 1 more parts.
    """
    m, stages = plans.microbatches.astype(float), plans.stages
    chunks, layers = plan.pipeline.virtual_stages, parts.layers / stages
    links = m * parts.links / stages
    if plan.active_schedule == CIRCULAR:
        return largest((m + (stages - 1) / chunks) * layers, links)
    mean = largest(m * layers, links) + m * parts.edges / stages + parts.once / stages
    found = np.broadcast_to(mean, m.shape)
    for count in np.unique(stages):
        given = plan.pipeline.stage_layers or (loops.layers // (count * chunks),) * (count * chunks)
        seconds = _FlushedPipeline(plan, loops, parts, _iterations(loops, tuple(given)), int(count))
        here = stages == count
        found = np.where(here, largest(found, seconds.of(m)), found)
    return found


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
            forward, backward = self._forward(part), self._backward(part)
            own = _added(self.iterations[first :: self.stages])
            work = self._forward(own) + self._backward(own)
            once = self._once(own)
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
        passing = self._forward(later) + self._backward(later) + self.head
        if self.schedule == "gpipe":
            return passing
        ahead = np.minimum(self.stages - 1 - stage, m - 1)
        first = largest(passing - ahead * forward, 0.0)
        final = largest(passing - ahead * backward, 0.0)
        apart = self.stages - 1 - stage < m - 1
        return np.where(apart, first + final, largest(first, final))

    def _forward(self, iterations: Iterations) -> Number:
        return sum(n * loop.forward for n, loop in zip(iterations, self.loops, strict=True))

    def _backward(self, iterations: Iterations) -> Number:
        return sum(n * loop.backward for n, loop in zip(iterations, self.loops, strict=True))

    def _once(self, iterations: Iterations) -> Number:
        return sum(n * loop.once for n, loop in zip(iterations, self.loops, strict=True))


def _added(parts: Sequence[Iterations]) -> Iterations:
    """Return the iterations of several parts together."""
    return tuple(map(sum, zip(*parts, strict=True)))
