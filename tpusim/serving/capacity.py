"""The memory of a server: weights, activations, and the pages of the cache in what is left."""

from dataclasses import dataclass, replace

from tpusim.base.errors import PlanError
from tpusim.base.units import format_bytes
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.partition import DTYPE_BYTES, STATE
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.results import PlanResult
from tpusim.server.step_load import StepLoad
from tpusim.simulation.serving_run import serve_step

LARGEST_ELEMENT = max(DTYPE_BYTES.values())
"""Bytes of the widest element that a cache can have."""


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """The cache of one device of a rank.

    usable_bytes: HBM that the engine may take.
    step_bytes: weights and activations of the largest step.
    page_bytes: keys and values of a page, all layers together.
    page_size: tokens of a page.
    state_bytes: states of linear attention of a sequence, all layers together.
    sequences: that run at a time, each with its states.
    """

    usable_bytes: float
    step_bytes: float
    page_bytes: float
    page_size: int
    state_bytes: float = 0.0
    sequences: int = 0

    @property
    def free_bytes(self) -> float:
        """Bytes that are left for pages; negative where the step alone does not fit."""
        return self.usable_bytes - self.step_bytes - self.sequences * self.state_bytes

    @property
    def pages(self) -> int:
        """Whole pages of a rank, 0 where nothing is left."""
        return max(0, int(self.free_bytes // self.page_bytes)) if self.page_bytes else 0

    @property
    def tokens(self) -> int:
        """Tokens that the cache of a rank holds, exact to a page."""
        return self.pages * self.page_size

    def __str__(self) -> str:
        return (
            f"{self.tokens:,} tokens of cache per rank: {self.pages:,} pages of {self.page_size} "
            f"in {format_bytes(max(self.free_bytes, 0.0))}, beside "
            f"{format_bytes(self.step_bytes)} of weights and activations"
        )


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The memory of a step on one device.

    hbm_bytes: that a program can use.
    step_bytes: weights and activations.
    page_elements: keys and values of a page of the cache, all layers together.
    kv_dtype: of the cache of the step.
    others: bytes of states that are no cache, of all sequences.
    """

    hbm_bytes: float
    step_bytes: float
    page_elements: float
    kv_dtype: str
    others: float

    @classmethod
    def of(
        cls, model: Architecture, plan: ServingPlan, pod: Slice, tokens: int, rows: int
    ) -> "StepMemory":
        """Return the memory of a step. Raise PlanError for a plan that the model does not admit.

        tokens, rows: of the step of a rank.
        """
        load = StepLoad(0, 0, tokens, tokens, tokens)
        step = serve_step(model, plan, pod, load, StepShape(tokens=tokens, rows=rows))
        cache, others = _states(step)
        return cls(
            hbm_bytes=step.hbm_bytes,
            step_bytes=step.hbm_peak_bytes - cache - others,
            page_elements=cache / DTYPE_BYTES[plan.kv_dtype],
            kv_dtype=plan.kv_dtype,
            others=others,
        )

    def is_that_of(self, kv_dtype: str) -> bool:
        """Return True if a step with a cache of `kv_dtype` has the same memory beside it.

        The order of buffers depends on whether all of them fit, so any page has to.
        """
        largest = self.step_bytes + self.others + self.page_elements * LARGEST_ELEMENT
        return kv_dtype == self.kv_dtype or largest <= self.hbm_bytes

    def room(self, plan: ServingPlan, rows: int, longest: int) -> CacheRoom:
        """Return the room for a cache; see `cache_room`."""
        cache = self.page_elements * DTYPE_BYTES[plan.kv_dtype]
        room = CacheRoom(
            usable_bytes=self.hbm_bytes * plan.memory_fraction,
            step_bytes=self.step_bytes,
            page_bytes=cache,
            page_size=plan.page_size,
            state_bytes=self.others / rows,
            sequences=rows,
        )
        if not self.others:
            return room
        keys = -(-longest // plan.page_size) * cache
        free = room.usable_bytes - room.step_bytes
        return replace(room, sequences=max(1, min(rows, int(free // (room.state_bytes + keys)))))


def cache_room(
    model: Architecture, plan: ServingPlan, pod: Slice, *, tokens: int, rows: int, longest: int = 1
) -> CacheRoom:
    """Return the room for the cache.

    Of a model with linear attention as many sequences run at a time, up to `rows`, as have room for
    their states and the keys of the longest request.

    tokens, rows: of the largest step of a rank.
    longest: tokens of the longest request.

    Raise PlanError for a plan that the model does not admit.
    """
    return StepMemory.of(model, plan, pod, tokens, rows).room(plan, rows, longest)


def _states(step: PlanResult) -> tuple[float, float]:
    """Return the bytes of a page of the cache, and of all other states, on one device."""
    cache = others = 0.0
    for alloc in step.program.resident:
        if alloc.category == STATE:
            if "cached_" in alloc.tensor:
                cache += float(alloc.bytes)
            else:
                others += float(alloc.bytes)
    return cache, others


def needed_pages(room: CacheRoom, tokens: int, name: str) -> int:
    """Return the pages of a rank. Raise PlanError if they do not hold one request of `tokens`."""
    least = -(-tokens // room.page_size)
    if not room.page_bytes:  # an encoder keeps no keys, so pages never run out
        return least * max(1, room.sequences)
    if room.pages < least:
        raise PlanError(
            f"a request of {tokens:,} tokens of {name} needs {least:,} pages of {room.page_size} "
            f"tokens, and the cache of a rank has {room.pages:,} "
            f"({format_bytes(max(room.free_bytes, 0.0))}); give it more devices, a narrower "
            "kv_dtype or weight_dtype, or a larger memory_fraction"
        )
    return room.pages
