"""A record of what each pass did to each body, for `--explain passes`.

with record_passes() as log:
    programs = step.programs_on(placement)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise

from tpusim.lowering.body_entries import Entry
from tpusim.partition import Node


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The effect of one pass on one body: names of the entries that differ after it.

    moved: entries that stand elsewhere among those that stay.
    """

    pass_name: str
    body: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    moved: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of entries that differ."""
        return sum(map(len, (self.added, self.removed, self.changed, self.moved)))


def pass_record(
    pass_name: str,
    body: str,
    before: Sequence[Node] | Sequence[Entry],
    after: Sequence[Node] | Sequence[Entry],
) -> PassRecord:
    """Return the effect of a pass, by the entries of a body before and after it."""
    old, new = ({entry.name: entry for entry in entries} for entries in (before, after))
    return PassRecord(
        pass_name,
        body,
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in new if name in old and new[name] != old[name]),
        moved=_moved([name for name in old if name in new], [n for n in new if n in old]),
    )


_log: ContextVar[list[PassRecord] | None] = ContextVar("pass log", default=None)


def current_log() -> list[PassRecord] | None:
    """Return the records of the `record_passes` that is open, if any."""
    return _log.get()


@contextmanager
def record_passes() -> Iterator[list[PassRecord]]:
    """Record the passes of all that is lowered inside the context, in order."""
    log: list[PassRecord] = []
    token = _log.set(log)
    try:
        yield log
    finally:
        _log.reset(token)


def _moved(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Return the names that follow another name than before."""
    previous = {name: last for last, name in pairwise(before)}
    return tuple(name for last, name in pairwise(after) if previous.get(name) != last)
