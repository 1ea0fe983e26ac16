"""The chunks of a sweep: rows of consecutive plans, made when they are due.

A space may hold more plans than memory, so it is gone through twice: once for its outline, which
says how many plans there are and where chunks are cut, and once for the plans themselves.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tpusim.exploration.search_axes import SweepCandidate
from tpusim.exploration.space import Space, candidates
from tpusim.hardware import Slice

LEAST_CHUNK, LARGEST_CHUNK, USUAL_CHUNKS = 8, 256, 64
"""Plans per chunk, and the approximate number of chunks between these limits."""

SIZE_FIELDS = frozenset({"global_batch", "microbatches"})
"""Fields of a plan that change numbers only: plans that differ in them are lowered alike."""


@dataclass(slots=True)
class SweepOutline:
    """What a first pass over a space finds.

    axes, active: the axes of all meshes, and those that are larger than one in some.
    kinds: lengths of the rows of consecutive plans whose fields but for sizes are the same.
    """

    axes: dict[str, None] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    kinds: list[int] = field(default_factory=list)

    @property
    def plans(self) -> int:
        """The number of plans."""
        return sum(self.kinds)

    def chunk_sizes(self) -> list[int]:
        """Return the number of plans in each chunk, in order.

        A chunk ends where plans of another kind begin, so that one process lowers few kinds, unless
        it would have fewer than LEAST_CHUNK plans.
        """
        size = min(LARGEST_CHUNK, max(LEAST_CHUNK, self.plans // USUAL_CHUNKS))
        sizes: list[int] = []
        open_plans = 0
        for kind in self.kinds:
            open_plans += kind
            while open_plans >= size:
                sizes.append(size)
                open_plans -= size
            if open_plans >= LEAST_CHUNK:
                sizes.append(open_plans)
                open_plans = 0
        return [*sizes, open_plans] if open_plans else sizes


def outline_of(
    space: Space, pod: Slice, also: Callable[[SweepCandidate], None] = lambda tried: None
) -> SweepOutline:
    """Return the outline of a space on a slice. also: is called with each candidate."""
    found = SweepOutline()
    fields = [key for key in space.vary if key not in SIZE_FIELDS]
    last: Hashable = None
    for tried in candidates(space, pod):
        also(tried)
        for axis, size in tried.plan.mesh.items():
            found.axes.setdefault(axis)
            if size > 1:
                found.active.add(axis)
        kind = (tried.pod.topology, *(repr(tried.values[key]) for key in fields))
        if kind == last:
            found.kinds[-1] += 1
        else:
            found.kinds.append(1)
            last = kind
    return found


def chunks_of(
    space: Space, pod: Slice, sizes: Sequence[int]
) -> Iterator[tuple[int, tuple[SweepCandidate, ...]]]:
    """Yield the plans of each chunk with its number."""
    tried = candidates(space, pod)
    for number, size in enumerate(sizes):
        yield number, tuple(islice(tried, size))
