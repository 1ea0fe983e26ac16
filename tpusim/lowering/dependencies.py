"""Dependencies of entries on the writers of their operands, in this iteration or the last."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import cast

from tpusim.base.same import Same
from tpusim.lowering.body_entries import (
    CollectiveMatmul,
    Entry,
    PlannedCollective,
    RingAttention,
    left_in_flight,
    on_core,
    pipelined_operands,
    pipelined_results,
)
from tpusim.lowering.collective_matmul import done_after
from tpusim.lowering.offload import arrivals, copy_order
from tpusim.lowering.ring_attention import complete_after
from tpusim.partition import ComputeNode, LoopNode
from tpusim.program import Dep


class BodyDependencies:
    """The dependencies of one body.

    of: those of each entry, by its place.
    makers: buffer of the body -> operation after which it is complete.
    written: the same, of the buffers written before each loop, by its place.
    before: the transfers beside the core that each loop waits for as it begins, by its place.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        carried: Sequence[tuple[str, str]],
        outside: Mapping[str, str],
        ends_waiting: bool,
    ) -> None:
        made = [results(entry) for entry in entries]
        self.makers = dict(chain.from_iterable(made))
        self.written: dict[int, dict[str, str]] = {}
        self.before: dict[int, tuple[Dep, ...]] = {}
        self.of: list[tuple[Dep, ...]] = []
        written = {key: name for key, name in outside.items() if name}
        late, taken = pipelined_results(entries), pipelined_operands(entries)
        queued, arriving = copy_order(entries), arrivals(entries)
        left = left_in_flight(entries) if ends_waiting else ()
        beside: dict[str, str] = {}
        begun = next((i for i, e in enumerate(entries) if isinstance(e, ComputeNode)), 0)
        for place, entry in enumerate(entries):
            reads = entry.reads
            deps = [Dep(written[key]) for key in reads if key in written]
            deps += queued.get(place, ())
            deps += [dep for key in reads for dep in arriving.get(key, ())]
            deps += [Dep(late[key], 1) for key in reads if key in late]
            deps += [Dep(taken[key], 1) for key in entry.writes if key in taken]
            deps += [
                Dep(self.makers[before], 1)
                for key, before in carried
                if key in reads and before in self.makers
            ]
            deps += [Dep(name, 1) for name in left if place <= begun]
            self.of.append(tuple(dict.fromkeys(deps)))
            if isinstance(entry, LoopNode):
                self.written[place] = dict(written)
                started = set(entry.reads) - set(entry.outside)
                waited = (Dep(name) for key, name in beside.items() if key in started)
                self.before[place] = tuple(dict.fromkeys(waited))
            elif isinstance(entry, PlannedCollective) and not on_core(entry):
                beside |= made[place]
            written.update(
                (key, name) for key, name in made[place] if key not in late and key not in arriving
            )


def dependencies_of(
    entries: Sequence[Entry],
    carried: Sequence[tuple[str, str]],
    outside: Mapping[str, str],
    ends_waiting: bool = False,
) -> BodyDependencies:
    """Return the dependencies of a body; equal ones of the same entries are one object.

    carried: the buffer that an iteration reads, and the one that the iteration before left for it.
    outside: buffers of the body around it, each with the operation that wrote it.
    ends_waiting: an iteration of the body ends when its asynchronous collectives do.
    """
    return _known(Same(entries), tuple(carried), tuple(outside.items()), ends_waiting)


@lru_cache(maxsize=256)
def _known(
    held: Same,
    carried: tuple[tuple[str, str], ...],
    outside: tuple[tuple[str, str], ...],
    ends_waiting: bool,
) -> BodyDependencies:
    entries = cast(tuple[Entry, ...], held.objects)
    return BodyDependencies(entries, carried, dict(outside), ends_waiting)


def results(entry: Entry) -> list[tuple[str, str]]:
    """Return the buffers that an entry writes, each with the operation that completes it."""
    if isinstance(entry, LoopNode):
        return []
    match entry:
        case CollectiveMatmul():
            name = done_after(entry)
        case RingAttention():
            name = complete_after(entry)
        case _:
            name = entry.name
    return [(key, name) for key in entry.writes]
