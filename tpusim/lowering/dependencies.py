"""Dependencies of entries on the writers of their operands, in this iteration or the last."""

from collections.abc import Mapping, Sequence

from tpusim.lowering.body_entries import (
    CollectiveMatmul,
    Entry,
    RingAttention,
    left_in_flight,
    pipelined_operands,
    pipelined_results,
)
from tpusim.lowering.collective_matmul import done_after
from tpusim.lowering.offload import arrivals, copy_order
from tpusim.lowering.ring_attention import complete_after
from tpusim.partition import ComputeNode, LoopNode
from tpusim.program import Dep


class BodyDependencies:
    """The dependencies of one body, for entries in their order.

    carried: the buffer that an iteration reads, and the one that the iteration before left for it.
    outside: buffers of the body around it, each with the operation that wrote it.
    ends_waiting: an iteration of the body ends when its asynchronous collectives do.
    makers: buffer of the body -> operation after which it is complete.
    written: the same, of the buffers written by now.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        carried: Sequence[tuple[str, str]],
        outside: Mapping[str, str],
        ends_waiting: bool = False,
    ) -> None:
        self.carried = carried
        self.makers = {key: name for entry in entries for key, name in results(entry)}
        self.written = {key: name for key, name in outside.items() if name}
        self._late = pipelined_results(entries)
        self._taken = pipelined_operands(entries)
        self._queued = copy_order(entries)
        self._arriving = arrivals(entries)
        self._left = left_in_flight(entries) if ends_waiting else ()
        self._begun = next((i for i, e in enumerate(entries) if isinstance(e, ComputeNode)), 0)

    def of(self, place: int, entry: Entry) -> tuple[Dep, ...]:
        """Return the dependencies of the entry at `place`."""
        deps = [Dep(self.written[key]) for key in entry.reads if key in self.written]
        deps += self._queued.get(place, ())
        deps += [dep for key in entry.reads for dep in self._arriving.get(key, ())]
        deps += [Dep(self._late[key], 1) for key in entry.reads if key in self._late]
        deps += [Dep(self._taken[key], 1) for key in entry.writes if key in self._taken]
        deps += [
            Dep(self.makers[left], 1)
            for key, left in self.carried
            if key in entry.reads and left in self.makers
        ]
        deps += [Dep(name, 1) for name in self._left if place <= self._begun]
        return tuple(dict.fromkeys(deps))

    def passed(self, entry: Entry) -> None:
        """Let later entries read this one's results, unless they come one iteration later."""
        self.written.update(
            (key, name)
            for key, name in results(entry)
            if key not in self._late and key not in self._arriving
        )


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
