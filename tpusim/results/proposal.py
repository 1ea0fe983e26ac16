"""Proposals: changes of a run that were made together and simulated, with what each adds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tpusim.accuracy import HbmOdds
from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_table import fixed_table
from tpusim.base.text_width import unbroken, wrapped
from tpusim.base.units import format_bytes, format_seconds
from tpusim.hardware import Placement, Slice
from tpusim.plan import Plan
from tpusim.results.fit import Fit
from tpusim.results.settings import command_line

MARGIN = 4
"""Characters before the lines of a proposal, below its number."""

MOST_WIDE = 70
"""Characters of a change, in the table of what each adds."""


SAME = 1e-6
"""The difference below which two steps have as many examples."""


class Effort(IntEnum):
    """What a change takes, the least first.

    FLAG: a flag or a key of the same program. SCHEDULE: another order of a pipeline's passes. HOST:
    memory of the hosts. MESH: other axes for the devices. PROGRAM: layers in another style.
    NUMERICS: narrower dtypes. BATCH: another global batch, at the same number of examples.
    """

    FLAG = 0
    SCHEDULE = 1
    HOST = 2
    MESH = 3
    PROGRAM = 4
    NUMERICS = 5
    BATCH = 6

    def words(self, count: int) -> str:
        """Return what so many changes of this effort take, in words."""
        if self is Effort.FLAG:
            return "one flag" if count == 1 else f"{count} flags"
        return _EFFORTS[self]


_EFFORTS = {
    Effort.HOST: "memory of the hosts",
    Effort.SCHEDULE: "another pipeline schedule",
    Effort.MESH: "another mesh: reshard the checkpoint",
    Effort.PROGRAM: "MaxText's program in place of plain JAX",
    Effort.NUMERICS: "other numerics: compare the loss",
    Effort.BATCH: "another batch: tune the learning rate",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Part(ShortRepr):
    """One change of a proposal.

    what: the change in words.
    settings: the change for `--set`, a text each.
    effort: what it takes.
    adds: the fraction of the run's time that it saves on top of the parts before it; negative if it
        takes more.
    frees_bytes: bytes of HBM at the peak that it frees on top of them; negative if it needs more.
    """

    what: str
    settings: tuple[str, ...]
    effort: Effort
    adds: float
    frees_bytes: float

    def facts(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {
            "what": self.what,
            "settings": list(self.settings),
            "effort": self.effort.name.lower(),
            "adds": self.adds,
            "frees_bytes": self.frees_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Proposal(ShortRepr):
    """Changes of a run that are made together, and the step that their simulation takes.

    parts: the changes, the largest gain first.
    settings: all changes for `--set`, a text each.
    plan, pod, placement: what was simulated; the placement is None where it was searched for.
    before_s, step_time_s: of the run as it is, and of the changed one.
    saves: the fraction of the time that it saves, for as many examples.
    hbm_peak_bytes, hbm_bytes: what the changed run needs of a device, and what there is.
    fit: the verdict on that. odds: what the compiler takes of it, if that is known.
    """

    parts: tuple[Part, ...]
    settings: tuple[str, ...]
    plan: Plan
    pod: Slice
    placement: Placement | None
    before_s: float
    step_time_s: float
    saves: float
    hbm_peak_bytes: float
    hbm_bytes: float
    fit: Fit
    odds: HbmOdds | None

    @property
    def what(self) -> str:
        """All changes in words."""
        return ", ".join(part.what for part in self.parts)

    @property
    def effort(self) -> str:
        """What the changes take, in words, the least first."""
        kinds = [part.effort for part in self.parts]
        return "; ".join(kind.words(kinds.count(kind)) for kind in sorted(set(kinds)))

    @property
    def command(self) -> str:
        """The settings as a command line takes them."""
        return command_line(self.settings)

    @property
    def gain(self) -> str:
        """What it saves, in words: `saves 12.3%`."""
        if self.saves >= 0:
            return f"saves {self.saves:.1%}"
        return f"takes {-self.saves:.1%} more"

    @property
    def memory(self) -> str:
        """What it needs of HBM, with the range of the compiler's own need, in words."""
        need, have = format_bytes(self.hbm_peak_bytes), format_bytes(self.hbm_bytes)
        verdict = {Fit.FITS: "fits", Fit.BORDERLINE: "may fit"}.get(self.fit, "does not fit")
        if self.odds is None:
            return f"{verdict}: {need} of {have}"
        low, high = (format_bytes(end) for end in self.odds.of(self.hbm_peak_bytes))
        return f"{verdict}: {need} of {have} (the compiler takes {low} to {high})"

    @property
    def steps(self) -> str:
        """The step of the run as it is and as it would be, in words."""
        before, after = format_seconds(self.before_s), format_seconds(self.step_time_s)
        return f"{before} → {after}" + self._more_examples()

    def _more_examples(self) -> str:
        times = self.step_time_s / self.before_s / (1 - self.saves)
        return "" if abs(times - 1) < SAME else f" for {times:.3g} times the examples"

    def __str__(self) -> str:
        return f"{self.what}: {self.gain} (simulated), {self.steps}; {self.memory}; {self.effort}"

    def lines(self, number: int) -> Iterator[str]:
        """Yield the proposal: its gain and its memory, what each change adds, and its settings."""
        margin = " " * MARGIN
        yield from wrapped(f"{self.gain}, {self.steps}; {self.effort}", f"{number:>2}  ", margin)
        yield from wrapped(self.memory, margin, margin)
        rows = [*_rows(self.parts)]
        wide = min(max(len(what) for what, *_ in rows), MOST_WIDE)
        yield from fixed_table(rows, (wide + 1, 10))
        yield from unbroken(self.command, margin, margin)

    def facts(self) -> dict[str, Any]:
        """Return the proposal as plain data."""
        return {
            "sentence": str(self),
            "parts": [part.facts() for part in self.parts],
            "settings": list(self.settings),
            "effort": self.effort,
            "step_time_s": self.step_time_s,
            "saves": self.saves,
            "hbm_peak_bytes": self.hbm_peak_bytes,
            "hbm_bytes": self.hbm_bytes,
            "fit": str(self.fit),
            "fit_odds": None if self.odds is None else self.odds.fits,
        }


def _rows(parts: Sequence[Part]) -> Iterator[tuple[str, str, str]]:
    for part in parts:
        memory = format_bytes(abs(part.frees_bytes))
        frees = f"{'frees' if part.frees_bytes > 0 else 'needs'} {memory}"
        little = abs(part.frees_bytes) < 2**20
        yield f"      {part.what}", f"{-part.adds:+.1%}  ", "" if little else frees
