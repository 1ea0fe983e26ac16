"""The chunks of a sweep: rows of consecutive plans, cut when they are due.

A space may hold more plans than memory, so it is gone through twice: once for its outline, and once
for the plans themselves, unless they are few. Consecutive plans share most: those that differ in
their placement are lowered once, and the meshes around them have their graphs. So a process is
given a row of them, as long as its work takes `CHUNK_S`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from time import process_time

from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Input
from tpusim.sweeps.rows import SweepRow, simulate_chunk
from tpusim.sweeps.search_axes import SweepCandidate
from tpusim.sweeps.space import Space, candidates

LEAST_CHUNK, LARGEST_CHUNK = 8, 256
"""Plans of a chunk; the first ones, when nothing is known of their time, have the least."""

CHUNK_S = 0.5
"""CPU seconds of a chunk, which a process that is killed loses; progress is told by the chunk."""

ALONE_S = 2.0
"""CPU seconds that this process works alone before it starts workers. Each worker needs about one
to start, so for less than twice as much work left none is started."""

MOST_KEPT = 4096
"""Plans that are kept from the first pass, as making them again takes longer."""

SweepChunk = tuple[SweepCandidate, ...]


@dataclass(slots=True)
class SweepOutline:
    """What a first pass over a space finds.

    axes, active: the axes of all meshes, and those that are larger than one in some.
    kept: the first plans.
    """

    plans: int = 0
    kept: list[SweepCandidate] = field(default_factory=list)
    axes: dict[str, None] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)

    def candidates(self, space: Space, pod: Slice) -> Iterable[SweepCandidate]:
        """Return all candidates of the space that this is the outline of."""
        return self.kept if self.plans == len(self.kept) else candidates(space, pod)


def outline_of(
    space: Space, pod: Slice, also: Callable[[SweepCandidate], None] = lambda tried: None
) -> SweepOutline:
    """Return the outline of a space on a slice. also: is called with each candidate."""
    found = SweepOutline()
    for tried in candidates(space, pod):
        also(tried)
        found.plans += 1
        if found.plans <= MOST_KEPT:
            found.kept.append(tried)
        for axis, size in tried.plan.mesh.items():
            found.axes.setdefault(axis)
            if size > 1:
                found.active.add(axis)
    return found


@dataclass(slots=True)
class Pace:
    """How long plans take: the CPU seconds of those that are done, and about those of the next one.

    After plans that take less, such as refused ones, chunks grow twofold at a time.
    """

    plans: int = 0
    seconds: float = 0.0
    plan_s: float = CHUNK_S / LEAST_CHUNK

    def add(self, plans: int, seconds: float) -> None:
        """Take in a chunk."""
        self.plans += plans
        self.seconds += seconds
        self.plan_s = max(seconds / plans, self.plan_s / 2)

    @property
    def chunk(self) -> int:
        """The number of plans of the next chunk."""
        return round(min(max(CHUNK_S / max(self.plan_s, 1e-9), LEAST_CHUNK), LARGEST_CHUNK))

    def is_short(self, left: int) -> bool:
        """Return True if one process does the plans that are left soonest, as far as is known."""
        return self.seconds < ALONE_S or self.seconds / self.plans * left < 2 * ALONE_S


def chunks_of(
    tried: Iterable[SweepCandidate], plans: int, known: Mapping[int, int], pace: Pace
) -> Iterator[tuple[int, SweepChunk]]:
    """Yield the candidates in chunks, each with the number of its first plan.

    plans: the number of candidates.
    known: rows of plans that are left out: the number of the first -> how many.
    """
    rest = iter(tried)
    at = 0
    for first, count in (*sorted(known.items()), (plans, 0)):
        while at < first:
            chunk = tuple(islice(rest, min(pace.chunk, first - at)))
            if not chunk:
                return
            yield at, chunk
            at += len(chunk)
        at += len(list(islice(rest, count)))


def timed_rows(
    model: Architecture, given: Input | None, chunk: SweepChunk
) -> tuple[list[SweepRow], float]:
    """Return the row of each candidate, and the CPU seconds of all."""
    began = process_time()
    return simulate_chunk(model, chunk, given), process_time() - began
