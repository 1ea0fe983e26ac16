"""The costs of a server's steps: simulated once for each bucket, and attention by its load.

A step has the arrays of its bucket, so all of it but attention takes the same time whatever the
requests are. Attention kernels run alone on an in-order core, so a step takes what a step of its
bucket without keys takes, and the kernels' seconds on their load. The dtype of the cache changes
the kernels alone.
"""

from dataclasses import dataclass, field

from tpusim.costs.program_costs import slowest_chip
from tpusim.engine.clock import picoseconds
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.results import ServedStep
from tpusim.server.step_load import StepLoad
from tpusim.serving.capacity import StepMemory
from tpusim.serving.engines.buckets import Buckets
from tpusim.serving.step_kernels import DecodeSteps, KernelWorks, StepKernels, attention_works
from tpusim.simulation.serving_run import serve_step

MOST_SIZES = 1 << 16
"""Loads, without their keys, of which a table keeps the bucket."""


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
    _steps: dict[tuple[int, int, int], tuple[int, StepKernels]] = field(
        default_factory=dict, init=False
    )
    _decodes: dict[int, DecodeSteps] = field(default_factory=dict, init=False)
    ranks: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self.ranks = self.plan.ranks

    def step(self, load: StepLoad) -> ServedStep:
        """Simulate one step of a load, in the arrays of its bucket."""
        shape = self._shape(*self._bucket(load))
        return serve_step(self.model, self.plan, self.pod, self._read(load), shape)

    def step_ps(self, load: StepLoad) -> int:
        """Return the picoseconds of one step."""
        decodes, _, prefills, _, _, routed = load
        sizes = decodes, prefills, routed
        found = self._steps.get(sizes)
        if found is None:
            bucket = self._bucket(load)
            found = self._base_of(bucket), self._kernels_of(bucket)
            if len(self._steps) < MOST_SIZES:
                self._steps[sizes] = found
        base, kernels = found
        if self.buckets.cache:
            load = self._read(load)
        return base + picoseconds(kernels.seconds(load[:-1]))

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        """Return the picoseconds of `steps` decode steps in a row.

        context: keys of the first step; each step has `growth` more than the one before.
        """
        found = self._decodes.get(decodes)
        if found is None:
            found = self._decodes[decodes] = self._decode_steps(StepLoad(decodes, context))
        if self.buckets.cache:
            context, growth = self._read(StepLoad(decodes, context)).context, 0
        return found.ps(context, steps, growth)

    def _decode_steps(self, load: StepLoad) -> DecodeSteps:
        bucket = self._bucket(load)
        return DecodeSteps(
            self._read(load).decodes, self._base_of(bucket), self._kernels_of(bucket)
        )

    def _read(self, load: StepLoad) -> StepLoad:
        """Return a load with the keys that attention reads."""
        return self.buckets.read(load, self.ranks, self.drafted)

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
        return result.timeline.total_ps - picoseconds(kernels.seconds(nothing[:-1]))

    def _bucket(self, load: StepLoad) -> tuple[int, int, int]:
        """Return the tokens and rows of the bucket of a load, and the tokens that experts serve.

        The latter are rounded up to a power of two, and are 0 for all.
        """
        tokens, rows = self.buckets.of(load, self.ranks, self.drafted)
        if self.routes_padding or not self.model.has_experts:
            return tokens, rows, 0
        filled = load.routed or max(1, load.decodes + load.prefills)
        return tokens, rows, min(1 << (filled - 1).bit_length(), tokens * self.ranks)
