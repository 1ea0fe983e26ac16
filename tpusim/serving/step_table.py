"""The costs of a server's steps: simulated once for each bucket, and attention by its load.

A step has the arrays of its bucket, so all of it but attention takes the same time whatever the
requests are. Attention kernels run alone on an in-order core, so a step takes what a step of its
bucket without keys takes, and the kernels' seconds on their load.
"""

from dataclasses import dataclass, field

from tpusim.costs.load_rates import LoadRates, load_rates
from tpusim.costs.program_costs import slowest_chip
from tpusim.engine.clock import picoseconds
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.program import AttentionLoad, Compute, walk_ops
from tpusim.results import PlanResult
from tpusim.server.step_load import StepLoad
from tpusim.serving.engines.buckets import Buckets
from tpusim.simulation.serving_run import serve_step

PICO = 1e-12

LINEAR = 1e-4
"""Largest deviation from a straight line over which decode steps are summed as a trapezoid."""


@dataclass(slots=True)
class StepTable:
    """Steps of one replica, by bucket.

    buckets: the sizes for which steps are compiled.
    drafted: tokens of a sequence that decodes in a step, 1 without speculation.
    routes_padding: experts serve tokens too that only fill a bucket.
    """

    model: Architecture
    plan: ServingPlan
    pod: Slice
    buckets: Buckets
    drafted: int = 1
    routes_padding: bool = False
    _bases: dict[tuple[int, int, int], int] = field(default_factory=dict, init=False)
    _kernels: tuple[tuple[float, LoadRates], ...] = field(default=(), init=False)

    def step(self, load: StepLoad) -> PlanResult:
        """Simulate one step of a load, in the arrays of its bucket."""
        shape = self._shape(*self._bucket(load))
        read = self.buckets.read(load, self.plan.ranks, self.drafted)
        return serve_step(self.model, self.plan, self.pod, read, shape)

    def step_ps(self, load: StepLoad) -> int:
        """Return the picoseconds of one step."""
        return self._base(load) + self._attention(load)

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        """Return the picoseconds of `steps` decode steps in a row.

        context: keys of the first step; each step has `growth` more than the one before.
        """
        first = StepLoad(decodes, context)
        return steps * self._base(first) + self._summed(decodes, context, steps, growth)

    def _summed(self, decodes: int, context: int, steps: int, growth: int) -> int:
        """Return the picoseconds of attention of decode steps in a row."""
        last = steps - 1
        one = self._attention(StepLoad(decodes, context))
        if not last:
            return one
        other = self._attention(StepLoad(decodes, context + last * growth))
        if last < 2 or not any(getattr(rates, "window", 0) for _, rates in self._kernels):
            return steps * (one + other) // 2
        half = steps // 2
        middle = self._attention(StepLoad(decodes, context + half * growth))
        straight = one + (other - one) * half // last
        if abs(middle - straight) <= LINEAR * straight:
            return steps * (one + other) // 2
        return self._summed(decodes, context, half, growth) + self._summed(
            decodes, context + half * growth, steps - half, growth
        )

    def _attention(self, load: StepLoad) -> int:
        given = AttentionLoad(*self.buckets.read(load, self.plan.ranks, self.drafted)[:-1])
        found = sum(times * rates.seconds(given) for times, rates in self._kernels)
        return picoseconds(found)

    def _base(self, load: StepLoad) -> int:
        """Return the picoseconds of the step of a bucket, without its attention kernels."""
        bucket = self._bucket(load)
        found = self._bases.get(bucket)
        if found is None:
            found = self._bases[bucket] = self._new_base(*bucket)
        return found

    def _shape(self, tokens: int, rows: int, routed: int) -> StepShape:
        return StepShape(tokens=tokens, rows=rows, drafted=self.drafted, routed=routed)

    def _new_base(self, *bucket: int) -> int:
        shape = self._shape(*bucket)
        nothing = StepLoad(0, 0)
        result = serve_step(self.model, self.plan, self.pod, nothing, shape)
        device, slowest = self.pod.chip.device, slowest_chip(self.pod)
        self._kernels = tuple(
            (trips * slowest, rates)
            for op, trips in walk_ops(result.program.body)
            if isinstance(op, Compute) and (rates := load_rates(op.work, device)) is not None
        )
        return result.timeline.total_ps - self._attention(nothing)

    def _bucket(self, load: StepLoad) -> tuple[int, int, int]:
        """Return the tokens and rows of the bucket of a load, and the tokens that experts serve.

        The latter are rounded up to a power of two, and are 0 for all.
        """
        tokens, rows = self.buckets.of(load, self.plan.ranks, self.drafted)
        if self.routes_padding or not self.model.has_experts:
            return tokens, rows, 0
        filled = load.routed or max(1, load.decodes + load.prefills)
        return tokens, rows, min(1 << (filled - 1).bit_length(), tokens * self.plan.ranks)
