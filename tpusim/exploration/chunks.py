"""The chunks of a sweep: rows of consecutive plans, made when they are due.

A space may hold more plans than memory, so it is gone through twice: once for its outline, which
says how many plans there are and where chunks are cut, and once for the plans themselves.

A chunk is a file of the sweep's table, a task what one process is given. The first plan of a form
takes far longer than the next ones with other numbers. So chunks are cut between meshes at the same
places for each batch, and a task has those with the same meshes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from tpusim.exploration.search_axes import SweepCandidate
from tpusim.exploration.space import Space, candidates
from tpusim.hardware import Slice

LEAST_CHUNK, LARGEST_CHUNK, USUAL_CHUNKS = 8, 256, 64
"""Plans per chunk, and the approximate number of chunks between these limits."""

BANDS, MOST_CHUNKS = 8, 512
"""Chunks into which meshes are divided that occur with several batches, so that there is work for
several processes, unless the sweep would have more chunks than this."""

TASK_PLANS = 32
"""Plans from which a task takes no further chunk; more would be lost with a process that is killed,
and progress is told by the task."""

MOST_HELD = 16_384
"""Plans that are made before the rest of their task."""

SIZE_FIELDS = frozenset({"global_batch", "microbatches"})
"""Fields of a plan that change numbers only: plans that differ in them are lowered alike."""

ChunkForm: TypeAlias = tuple[int, int]
"""What chunks with the same forms of plans share: their kind, and their place among its meshes."""

NumberedChunk: TypeAlias = tuple[int, tuple[SweepCandidate, ...]]
Task: TypeAlias = tuple[NumberedChunk, ...]
"""Chunks with their numbers, which one process simulates."""


class ChunkOutline(NamedTuple):
    """The number of plans of a chunk, and what it shares with others."""

    plans: int
    form: ChunkForm


@dataclass(slots=True)
class KindRun:
    """A row of consecutive plans whose fields but for sizes are the same.

    kind: equal for rows with the same fields.
    plans: in the row.
    forms: plans from the first to where its mesh comes again, with another batch.
    """

    kind: int
    plans: int = 0
    forms: int = 0


@dataclass(slots=True)
class SweepOutline:
    """What a first pass over a space finds.

    axes, active: the axes of all meshes, and those that are larger than one in some.
    kinds: rows of plans of one kind.
    """

    axes: dict[str, None] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    kinds: list[KindRun] = field(default_factory=list)

    @property
    def plans(self) -> int:
        """The number of plans."""
        return sum(run.plans for run in self.kinds)

    def chunks(self) -> list[ChunkOutline]:
        """Return the chunks in order.

        A chunk ends where plans of another kind begin, unless it would have fewer than LEAST_CHUNK
        plans.
        """
        plans = self.plans
        usual = min(LARGEST_CHUNK, max(LEAST_CHUNK, plans // USUAL_CHUNKS))
        found: list[ChunkOutline] = []
        open_plans = 0
        rows = Counter(run.kind for run in self.kinds)
        for run in self.kinds:
            for size, band in _pieces(run, rows[run.kind], usual, plans // MOST_CHUNKS):
                form = run.kind, band
                if open_plans + size > LARGEST_CHUNK:
                    found.append(ChunkOutline(open_plans, (run.kind, -1)))
                    open_plans = 0
                open_plans += size
                if open_plans >= LEAST_CHUNK:
                    found.append(ChunkOutline(open_plans, form))
                    open_plans = 0
        if open_plans:
            found.append(ChunkOutline(open_plans, (self.kinds[-1].kind, -1)))
        return found


def _pieces(run: KindRun, rows: int, usual: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield the plans of each piece of a run, with the number of its meshes' band.

    rows: of the same kind.
    usual, least: plans of a chunk, and the fewest where meshes come again.
    """
    forms = run.forms if run.forms > 0 and run.plans % run.forms == 0 else run.plans
    passes = run.plans // forms
    if passes * rows == 1:
        for band, at in enumerate(range(0, run.plans, usual)):
            yield min(usual, run.plans - at), band
        return
    size = min(usual, max(LEAST_CHUNK, least, forms // BANDS))
    if forms <= size:
        step = max(usual // forms, -(-LEAST_CHUNK // forms)) * forms
        yield from ((min(step, run.plans - at), 0) for at in range(0, run.plans, step))
        return
    bands = max(forms // size, -(-forms // LARGEST_CHUNK))
    for _ in range(passes):
        for band in range(bands):
            yield forms * (band + 1) // bands - forms * band // bands, band


def outline_of(
    space: Space, pod: Slice, also: Callable[[SweepCandidate], None] = lambda tried: None
) -> SweepOutline:
    """Return the outline of a space on a slice. also: is called with each candidate."""
    found = SweepOutline()
    fields = [key for key in space.vary if key not in SIZE_FIELDS]
    more = [axis.column for axis in space.extra_axes if axis.column]
    numbers: dict[Hashable, int] = {}
    last: Hashable = None
    begun: Hashable = None
    for tried in candidates(space, pod):
        also(tried)
        for axis, size in tried.plan.mesh.items():
            found.axes.setdefault(axis)
            if size > 1:
                found.active.add(axis)
        kind = (tried.pod.topology, *(repr(tried.values[key]) for key in fields))
        others = tuple(repr(tried.values[key]) for key in more)
        form = tuple(tried.plan.mesh.items()), tried.placement, others
        if kind != last:
            last, begun = kind, form
            found.kinds.append(KindRun(numbers.setdefault(kind, len(numbers))))
        run = found.kinds[-1]
        if form == begun and run.plans and not run.forms:
            run.forms = run.plans
        run.plans += 1
    return found


def chunks_of(
    space: Space, pod: Slice, chunks: Iterable[ChunkOutline]
) -> Iterator[tuple[int, tuple[SweepCandidate, ...]]]:
    """Yield the plans of each chunk with its number."""
    tried = candidates(space, pod)
    for number, chunk in enumerate(chunks):
        yield number, tuple(islice(tried, chunk.plans))


def tasks_of(
    chunks: Iterable[NumberedChunk],
    outlines: Sequence[ChunkOutline],
    known: Collection[int],
    *,
    together: bool,
) -> Iterator[Task]:
    """Yield the chunks in tasks: those with the same forms of plans together.

    A task begins with the next chunk, and ends when it has TASK_PLANS plans or all that share its
    forms.

    outlines: of all chunks.
    known: numbers of chunks that are left out.
    together: False gives each chunk a task of its own, as one process knows all forms.
    """
    left = Counter(each.form for number, each in enumerate(outlines) if number not in known)
    begun: dict[ChunkForm, list[NumberedChunk]] = {}
    enough = TASK_PLANS if together else 1
    held = 0
    for number, chunk in chunks:
        if number in known:
            continue
        form = outlines[number].form
        task = begun.setdefault(form, [])
        task.append((number, chunk))
        left[form] -= 1
        held += len(chunk)
        if not left[form] or sum(len(each) for _, each in task) >= enough:
            held -= sum(len(each) for _, each in begun[form])
            yield tuple(begun.pop(form))
        while held > MOST_HELD:
            first = begun.pop(next(iter(begun)))
            held -= sum(len(each) for _, each in first)
            yield tuple(first)
