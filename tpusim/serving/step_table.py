"""The costs of a server's steps: simulated once for each bucket, and attention by its load.

A step has the arrays of its bucket, so all of it but attention takes the same time whatever the
requests are. Attention kernels run alone on an in-order core, so a step takes what a step of its
bucket without keys takes, and the kernels' seconds on their load.
"""

from dataclasses import dataclass, field

from tpusim.costs.cached_attention import CachedAttentionRates
from tpusim.costs.load_rates import LoadRates, load_rates
from tpusim.costs.program_costs import slowest_chip
from tpusim.engine.clock import picoseconds
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.program import AttentionLoad, Compute, walk_ops
from tpusim.results import ServedStep
from tpusim.server.step_load import StepLoad
from tpusim.serving.capacity import CacheRoom
from tpusim.serving.engines.buckets import Buckets
from tpusim.simulation.serving_run import serve_step

LINEAR = 1e-4
"""Largest deviation from a straight line over which decode steps are summed as a trapezoid."""


@dataclass(slots=True)
class SharedSteps:
    """Steps that were simulated, which tables that differ in their buckets alone share.

    bases: picoseconds without attention kernels, by tokens and rows of each rank, and the tokens
        that experts serve.
    kernels: rates of the attention kernels, and how often each runs; empty before the first step.
    rooms: for the cache, by tokens and rows of the largest step, the longest request, and the share
        of the memory.
    """

    bases: dict[tuple[int, int, int], int] = field(default_factory=dict)
    kernels: tuple[tuple[float, LoadRates], ...] = ()
    rooms: dict[tuple[int, int, int, float], CacheRoom] = field(default_factory=dict)

    @property
    def windows(self) -> bool:
        """True if some kernel sees a window, so that its time is no straight line of the keys."""
        return any(isinstance(r, CachedAttentionRates) and r.window for _, r in self.kernels)


@dataclass(slots=True)
class StepTable:
    """Steps of one replica, by bucket.

    buckets: the sizes for which steps are compiled.
    drafted: tokens of a sequence that decodes in a step, 1 without speculation.
    routes_padding: experts serve tokens too that only fill a bucket.
    known: steps of the same model, plan and slice that were simulated before.
    """

    model: Architecture
    plan: ServingPlan
    pod: Slice
    buckets: Buckets
    drafted: int = 1
    routes_padding: bool = False
    known: SharedSteps = field(default_factory=SharedSteps)
    _decode_bases: dict[int, int] = field(default_factory=dict, init=False)
    ranks: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self.ranks = self.plan.ranks

    def step(self, load: StepLoad) -> ServedStep:
        """Simulate one step of a load, in the arrays of its bucket."""
        shape = self._shape(*self._bucket(load))
        read = self.buckets.read(load, self.ranks, self.drafted)
        return serve_step(self.model, self.plan, self.pod, read, shape)

    def step_ps(self, load: StepLoad) -> int:
        """Return the picoseconds of one step."""
        return self._base(load) + self._attention(load)

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        """Return the picoseconds of `steps` decode steps in a row.

        context: keys of the first step; each step has `growth` more than the one before.
        """
        base = self._decode_bases.get(decodes)
        if base is None:
            base = self._decode_bases[decodes] = self._base(StepLoad(decodes, context))
        if self.buckets.cache:
            read = self.buckets.read(StepLoad(decodes, context), self.ranks, self.drafted)
            decodes, context, growth = read.decodes, read.context, 0
        return steps * base + self._summed(decodes, context, steps, growth)

    def _summed(self, decodes: int, context: int, steps: int, growth: int) -> int:
        """Return the picoseconds of attention of decode steps in a row."""
        last = steps - 1
        one = self._decoded(decodes, context)
        if not last:
            return one
        other = self._decoded(decodes, context + last * growth)
        if last < 2 or not self.known.windows:
            return steps * (one + other) // 2
        half = steps // 2
        middle = self._decoded(decodes, context + half * growth)
        straight = one + (other - one) * half // last
        if abs(middle - straight) <= LINEAR * straight:
            return steps * (one + other) // 2
        return self._summed(decodes, context, half, growth) + self._summed(
            decodes, context + half * growth, steps - half, growth
        )

    def _decoded(self, decodes: int, context: int) -> int:
        """Return the picoseconds of the kernels of a step that only decodes."""
        found = 0.0
        for times, rates in self.known.kernels:
            found += times * rates.decode_seconds(decodes, context)
        return picoseconds(found)

    def _attention(self, load: StepLoad) -> int:
        if self.buckets.cache:
            load = self.buckets.read(load, self.ranks, self.drafted)
        given = AttentionLoad(*load[:-1])
        return picoseconds(sum(times * rates.seconds(given) for times, rates in self.known.kernels))

    def _base(self, load: StepLoad) -> int:
        """Return the picoseconds of the step of a bucket, without its attention kernels."""
        return self._base_of(self._bucket(load))

    def _base_of(self, bucket: tuple[int, int, int]) -> int:
        found = self.known.bases.get(bucket)
        if found is None:
            found = self.known.bases[bucket] = self._new_base(*bucket)
        return found

    def least_steps(self) -> list[tuple[int, int]]:
        """Return tokens of each rank and the least picoseconds of a step, for each bucket.

        No step of a bucket takes less: it has no keys, the fewest rows, and a token for experts.
        Without buckets, it is the step of one token alone.
        """
        sizes = self.buckets
        least = self._bucket(StepLoad(1, 0))
        rows = min(sizes.rows, default=least[1])
        found = [(tokens, rows) for tokens in sizes.tokens]
        found += [(each * self.drafted, each) for each in sizes.decodes]
        routed = least[2]
        return [
            (tokens, self._base_of((tokens, rows, min(routed, tokens * self.ranks))))
            for tokens, rows in found or [least[:2]]
        ]

    def _shape(self, tokens: int, rows: int, routed: int) -> StepShape:
        return StepShape(tokens=tokens, rows=rows, drafted=self.drafted, routed=routed)

    def _new_base(self, *bucket: int) -> int:
        shape = self._shape(*bucket)
        nothing = StepLoad(0, 0)
        result = serve_step(self.model, self.plan, self.pod, nothing, shape)
        device, slowest = self.pod.chip.device, slowest_chip(self.pod)
        self.known.kernels = tuple(
            (trips * slowest, rates)
            for op, trips in walk_ops(result.program.body)
            if isinstance(op, Compute) and (rates := load_rates(op.work, device)) is not None
        )
        return result.timeline.total_ps - self._attention(nothing)

    def _bucket(self, load: StepLoad) -> tuple[int, int, int]:
        """Return the tokens and rows of the bucket of a load, and the tokens that experts serve.

        The latter are rounded up to a power of two, and are 0 for all.
        """
        tokens, rows = self.buckets.of(load, self.ranks, self.drafted)
        if self.routes_padding or not self.model.has_experts:
            return tokens, rows, 0
        filled = load.routed or max(1, load.decodes + load.prefills)
        return tokens, rows, min(1 << (filled - 1).bit_length(), tokens * self.ranks)
