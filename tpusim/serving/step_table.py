"""The costs of a server's steps: simulated once for each bucket, and attention by its load.

A step has the arrays of its bucket, so all of it but attention takes the same time whatever the
requests are. Attention kernels run alone on an in-order core, so a step takes what a step of its
bucket without keys takes, and the kernels' seconds on their load. The dtype of the cache changes
the kernels alone.
"""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tpusim.costs.cached_attention import CachedAttentionRates
from tpusim.costs.load_rates import LoadRates, load_rates
from tpusim.costs.program_costs import slowest_chip
from tpusim.engine.clock import picoseconds
from tpusim.hardware import Device, Slice
from tpusim.models import Architecture
from tpusim.partition import DTYPE_BYTES
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.program import (
    AttentionLoad,
    CachedAttentionWork,
    CachedLinearWork,
    Compute,
    Program,
    Work,
    walk_ops,
)
from tpusim.results import ServedStep
from tpusim.server.step_load import StepLoad
from tpusim.serving.capacity import StepMemory
from tpusim.serving.engines.buckets import Buckets
from tpusim.simulation.serving_run import serve_step

LINEAR = 1e-4
"""Largest deviation from a straight line over which decode steps are summed as a trapezoid."""


KernelWorks: TypeAlias = tuple[tuple[float, Work], ...]
"""The attention kernels of a step: how often each runs (more often on a slower chip), and its work
with a cache whose elements have a byte."""


@dataclass(slots=True)
class SharedSteps:
    """Steps that were simulated, shared by tables that differ in their buckets and caches alone.

    bases: picoseconds without attention kernels, by tokens and rows of each rank, and the tokens
        that experts serve.
    kernels: by tokens of each rank.
    memories: of the largest steps, by tokens and rows of each rank: one, or one for each cache.
    """

    bases: dict[tuple[int, int, int], int] = field(default_factory=dict)
    kernels: dict[int, KernelWorks] = field(default_factory=dict)
    memories: dict[tuple[int, int], list[StepMemory]] = field(default_factory=dict)

    def memory(
        self, model: Architecture, plan: ServingPlan, pod: Slice, tokens: int, rows: int
    ) -> StepMemory:
        """Return the memory of a step, simulated once for all caches beside which it is the same.

        Raise PlanError as `StepMemory.of`.
        """
        known = self.memories.setdefault((tokens, rows), [])
        for each in known:
            if each.is_that_of(plan.kv_dtype):
                return each
        known.append(StepMemory.of(model, plan, pod, tokens, rows))
        return known[-1]


@dataclass(frozen=True, slots=True)
class StepKernels:
    """The attention kernels of a step. each: how often one runs, and its rates."""

    each: tuple[tuple[float, LoadRates], ...]

    @classmethod
    def of(cls, works: KernelWorks, kv_dtype: str, device: Device) -> "StepKernels":
        """Return the kernels over a cache of `kv_dtype`. Raise PlanError as `load_rates`."""
        item = DTYPE_BYTES[kv_dtype]
        rates = (
            (times, load_rates(_with_elements_of(work, item), device)) for times, work in works
        )
        return cls(tuple((times, each) for times, each in rates if each is not None))

    def seconds(self, load: AttentionLoad) -> float:
        """Return the seconds of all kernels on a load."""
        return sum(times * rates.seconds(load) for times, rates in self.each)

    def decode_seconds(self, decodes: int, context: int) -> float:
        """Return the seconds of all kernels in a step that only decodes."""
        found = 0.0
        for times, rates in self.each:
            found += times * rates.decode_seconds(decodes, context)
        return found

    @property
    def windows(self) -> bool:
        """True if some kernel sees a window, so that its time is no straight line of the keys."""
        return any(isinstance(r, CachedAttentionRates) and r.window for _, r in self.each)


@dataclass(slots=True)
class StepTable:
    """Steps of one replica, by bucket.

    buckets: the sizes for which steps are compiled.
    drafted: tokens of a sequence that decodes in a step, 1 without speculation.
    routes_padding: experts serve tokens too that only fill a bucket.
    known: steps of the same model, plan (but for `kv_dtype`) and slice that were simulated before.
    """

    model: Architecture
    plan: ServingPlan
    pod: Slice
    buckets: Buckets
    drafted: int = 1
    routes_padding: bool = False
    known: SharedSteps = field(default_factory=SharedSteps)
    _kernels: dict[int, StepKernels] = field(default_factory=dict, init=False)
    _decodes: dict[int, tuple[int, StepKernels]] = field(default_factory=dict, init=False)
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
        bucket = self._bucket(load)
        base = self._base_of(bucket)
        if self.buckets.cache:
            load = self.buckets.read(load, self.ranks, self.drafted)
        return base + picoseconds(self._kernels_of(bucket).seconds(AttentionLoad(*load[:-1])))

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        """Return the picoseconds of `steps` decode steps in a row.

        context: keys of the first step; each step has `growth` more than the one before.
        """
        found = self._decodes.get(decodes)
        if found is None:
            bucket = self._bucket(StepLoad(decodes, context))
            found = self._base_of(bucket), self._kernels_of(bucket)
            self._decodes[decodes] = found
        base, kernels = found
        if self.buckets.cache:
            read = self.buckets.read(StepLoad(decodes, context), self.ranks, self.drafted)
            decodes, context, growth = read.decodes, read.context, 0
        return steps * base + _summed(kernels, decodes, context, steps, growth)

    def _base_of(self, bucket: tuple[int, int, int]) -> int:
        """Return the picoseconds of the step of a bucket, without its attention kernels."""
        found = self.known.bases.get(bucket)
        if found is None:
            found = self.known.bases[bucket] = self._new_base(*bucket)
        return found

    def _kernels_of(self, bucket: tuple[int, int, int]) -> StepKernels:
        """Return the attention kernels of the step of a bucket that has a base."""
        tokens = bucket[0]
        found = self._kernels.get(tokens)
        if found is None:
            works = self.known.kernels[tokens]
            found = StepKernels.of(works, self.plan.kv_dtype, self.pod.chip.device)
            self._kernels[tokens] = found
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
        works = attention_works(result.program, slowest_chip(self.pod), self.plan.kv_dtype)
        self.known.kernels[shape.tokens] = works
        kernels = StepKernels.of(works, self.plan.kv_dtype, self.pod.chip.device)
        return result.timeline.total_ps - picoseconds(kernels.seconds(AttentionLoad(*nothing[:-1])))

    def _bucket(self, load: StepLoad) -> tuple[int, int, int]:
        """Return the tokens and rows of the bucket of a load, and the tokens that experts serve.

        The latter are rounded up to a power of two, and are 0 for all.
        """
        tokens, rows = self.buckets.of(load, self.ranks, self.drafted)
        if self.routes_padding or not self.model.has_experts:
            return tokens, rows, 0
        filled = load.routed or max(1, load.decodes + load.prefills)
        return tokens, rows, min(1 << (filled - 1).bit_length(), tokens * self.ranks)


def attention_works(program: Program, slowest: float, kv_dtype: str) -> KernelWorks:
    """Return the kernels of a program whose time depends on the load of the step.

    slowest: seconds of the slowest chip for one of a healthy chip.
    kv_dtype: of the program's cache.
    """
    item = 1 / DTYPE_BYTES[kv_dtype]
    return tuple(
        (trips * slowest, _with_elements_of(op.work, item))
        for op, trips in walk_ops(program.body)
        if isinstance(op, Compute) and isinstance(op.work, CachedAttentionWork | CachedLinearWork)
    )


def _with_elements_of(work: Work, nbytes: float) -> Work:
    """Return the work of a kernel with elements of the cache of `nbytes` times as many bytes."""
    if isinstance(work, CachedAttentionWork):
        return replace(work, key_bytes=work.key_bytes * nbytes)
    return work


def _summed(kernels: StepKernels, decodes: int, context: int, steps: int, growth: int) -> int:
    """Return the picoseconds of the kernels of decode steps in a row."""
    last = steps - 1
    one = picoseconds(kernels.decode_seconds(decodes, context))
    if not last:
        return one
    other = picoseconds(kernels.decode_seconds(decodes, context + last * growth))
    if last < 2 or not kernels.windows:
        return steps * (one + other) // 2
    half = steps // 2
    middle = picoseconds(kernels.decode_seconds(decodes, context + half * growth))
    straight = one + (other - one) * half // last
    if abs(middle - straight) <= LINEAR * straight:
        return steps * (one + other) // 2
    rest = _summed(kernels, decodes, context + half * growth, steps - half, growth)
    return _summed(kernels, decodes, context, half, growth) + rest
