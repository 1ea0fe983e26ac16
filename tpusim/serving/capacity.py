"""The memory of a server: weights, activations, and the pages of the cache in what is left."""

from dataclasses import dataclass, replace

from tpusim.base.errors import PlanError
from tpusim.base.units import format_bytes
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.partition import STATE
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.results import PlanResult
from tpusim.server.step_load import StepLoad
from tpusim.simulation.serving_run import serve_step


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
    load = StepLoad(0, 0, tokens, tokens, tokens)
    step = serve_step(model, plan, pod, load, StepShape(tokens=tokens, rows=rows))
    cache, others = _states(step)
    room = CacheRoom(
        usable_bytes=step.hbm_bytes * plan.memory_fraction,
        step_bytes=step.hbm_peak_bytes - cache - others,
        page_bytes=cache,
        page_size=plan.page_size,
        state_bytes=others / rows,
        sequences=rows,
    )
    if not others:
        return room
    keys = -(-longest // plan.page_size) * cache
    free = room.usable_bytes - room.step_bytes
    return replace(room, sequences=max(1, min(rows, int(free // (room.state_bytes + keys)))))


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
