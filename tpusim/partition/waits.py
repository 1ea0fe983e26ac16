"""What the entries of a body wait for: what makes their operands, in this trip or the last."""

from collections.abc import Mapping, Sequence

from tpusim.partition.kernel_rings import complete_after
from tpusim.partition.offload import arrivals, turns
from tpusim.partition.passes import Entry, KernelRing, Ring, behind_operands, late_results
from tpusim.partition.rings import done_after
from tpusim.partition.template import Nest
from tpusim.program import Dep


class Waits:
    """The dependencies of one body, whose entries are asked for in their order.

    carried: what a trip reads, and what the trip before it left for that. outside: buffers of the
    body around it, each with the operation that wrote it. makers: of every buffer of the body, the
    operation after which it is complete; written: of those that are there by now.
    """

    def __init__(
        self, entries: Sequence[Entry], carried: Sequence[tuple[str, str]],
        outside: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.carried = carried
        self.makers = {key: name for entry in entries for key, name in results(entry)}
        self.written = {key: name for key, name in outside.items() if name}
        self._late = late_results(entries)
        self._taken = behind_operands(entries)
        self._queued = turns(entries)
        self._arriving = arrivals(entries)

    def of(self, place: int, entry: Entry) -> tuple[Dep, ...]:
        """What the entry at `place` waits for."""
        deps = [Dep(self.written[key]) for key in entry.reads if key in self.written]
        deps += self._queued.get(place, ())
        deps += [dep for key in entry.reads for dep in self._arriving.get(key, ())]
        deps += [Dep(self._late[key], 1) for key in entry.reads if key in self._late]
        deps += [Dep(self._taken[key], 1) for key in entry.writes if key in self._taken]
        deps += [Dep(self.makers[left], 1) for key, left in self.carried
                 if key in entry.reads and left in self.makers]  # fmt: skip
        return tuple(dict.fromkeys(deps))

    def passed(self, entry: Entry) -> None:
        """Later entries may read what this one wrote, but for what comes a trip later."""
        self.written.update(
            (key, name)
            for key, name in results(entry)
            if key not in self._late and key not in self._arriving
        )


def results(entry: Entry) -> list[tuple[str, str]]:
    """The buffers that an entry writes, each with the operation after which it is complete."""
    if isinstance(entry, Nest):
        return []
    match entry:
        case Ring():
            name = done_after(entry)
        case KernelRing():
            name = complete_after(entry)
        case _:
            name = entry.name
    return [(key, name) for key in entry.writes]
