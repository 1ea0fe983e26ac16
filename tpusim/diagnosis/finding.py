"""A finding of a diagnosis, and the words that findings are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpusim.base.close_names import joined
from tpusim.base.units import format_seconds
from tpusim.profiles.profile import PS

MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """What a step takes longer for, or less where it is negative.

    kind: of the finding, such as `slow steps`, `host`, `matmul`, `HBM`, `axis fsdp`, `operation`.
    picoseconds: of a mean step.
    text: a sentence without its full stop.
    """

    kind: str
    picoseconds: int
    text: str

    def __str__(self) -> str:
        return self.text


def duration(picoseconds: float) -> str:
    """Return a time with its unit."""
    return format_seconds(picoseconds * PS)


def more(picoseconds: float) -> str:
    """Return a difference in words.

    >>> more(12e9), more(-12e9)
    ('12 ms more', '12 ms less')
    """
    return f"{duration(abs(picoseconds))} {'more' if picoseconds > 0 else 'less'}"


def spelled(names: Sequence[str]) -> str:
    """Return names as a list in words, at most a few."""
    rest = len(names) - MOST_NAMES
    return joined([*names[:MOST_NAMES], *([f"{rest} others"] if rest > 0 else [])])
