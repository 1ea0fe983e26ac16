"""What would make a plan fit: changes that were simulated, each with its cost in step time."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tpusim.accuracy import HbmOdds
from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_width import unbroken, wrapped
from tpusim.base.units import format_bytes, format_seconds
from tpusim.hardware import Slice
from tpusim.plan import Plan
from tpusim.results.fit import Fit
from tpusim.results.settings import command_line

MARGIN = 12
"""Characters before a text, in which its head stands."""


class WayKind(IntEnum):
    """What a change needs, the smallest change first: each leaves as it is what the others change.

    TRAINING: another order or more work for the same results, on the devices alone.
    HOST: what is saved, or the optimizer state, in the memory of the hosts.
    NUMERICS: narrower dtypes, or capacities that drop tokens.
    MESH: other axes for the devices. CHIPS: a larger slice, with the same global batch.
    """

    TRAINING = 0
    HOST = 1
    NUMERICS = 2
    MESH = 3
    CHIPS = 4

    def __str__(self) -> str:
        return KINDS[self]


KINDS = ("the same training", "memory of the hosts", "other numerics", "another mesh", "more chips")
"""The kinds of changes in words, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WayToFit(ShortRepr):
    """A change with which a plan fits, and the step that its simulation takes.

    kinds: of its changes; the largest is its own.
    what: each part of the change in words.
    settings: the change for `--set`, a text each.
    plan, pod: what was simulated, on the placement that a simulation chooses or the plan gives.
    before_s, step_time_s: of the plan as it was, if it had room, and of the changed one.
    hbm_peak_bytes, hbm_bytes: what the changed plan needs of a device, and what there is.
    fit: the verdict on that; borderline where nothing was found that fits for sure.
    odds: that it fits, if they are known.
    """

    kinds: tuple[WayKind, ...]
    what: tuple[str, ...]
    settings: tuple[str, ...]
    plan: Plan
    pod: Slice
    before_s: float
    step_time_s: float
    hbm_peak_bytes: float
    hbm_bytes: float
    fit: Fit
    odds: HbmOdds | None

    @property
    def kind(self) -> WayKind:
        """The largest of its changes."""
        return self.kinds[-1]

    @property
    def means(self) -> str:
        """Its changes in words, and what they leave as it is."""
        changed = [str(kind) for kind in self.kinds if kind > WayKind.TRAINING]
        return f"{', '.join(self.what)} ({', '.join(changed) or self.kind})"

    @property
    def command(self) -> str:
        """The settings as a command line takes them."""
        return command_line(self.settings)

    @property
    def cost(self) -> str:
        """What the changed plan needs, and its step beside the one before, in words."""
        need, have = format_bytes(self.hbm_peak_bytes), format_bytes(self.hbm_bytes)
        before, then = format_seconds(self.before_s), format_seconds(self.step_time_s)
        more = self.step_time_s / self.before_s - 1
        likely = f"; {self.odds.counted};" if self.odds else ","
        return f"{need} of {have}{likely} step {before} → {then} ({more:+.1%})"

    def __str__(self) -> str:
        return f"{self.means}: {self.cost}; {self.command}"

    def facts(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {
            "kinds": [str(kind) for kind in self.kinds],
            "what": list(self.what),
            "sentence": str(self),
            "settings": list(self.settings),
            "step_time_s": self.step_time_s,
            "hbm_peak_bytes": self.hbm_peak_bytes,
            "hbm_bytes": self.hbm_bytes,
            "fit": str(self.fit),
            "fit_odds": None if self.odds is None else self.odds.fits,
            "chips": self.pod.chips,
        }


@dataclass(frozen=True, slots=True, repr=False)
class WaysToFit(ShortRepr):
    """What was found for a plan that does not fit.

    ways: the fastest of each kind (`WayKind`), the smallest kind first, where it is faster than
        those of smaller kinds; those that more than double the step come last. Empty where nothing
        that was tried fits.
    tried: plans that were simulated.
    why: where nothing fits, the reason in words.
    """

    ways: tuple[WayToFit, ...]
    tried: int
    why: str = ""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield each way: the settings in a line, and below it what they mean and cost."""
        margin = " " * MARGIN
        for number, way in enumerate(self.ways):
            fits = "fits with" if way.fit is Fit.FITS else "may fit with"
            head = "or with " if number else f"{fits} "
            yield from unbroken(way.command, f"{head:<{MARGIN}}", margin)
            yield from wrapped(f"{way.cost}: {way.means}", margin, margin)
        if not self.ways:
            yield from wrapped(self.why, f"{'to fit':<{MARGIN}}", margin)

    def facts(self) -> dict[str, Any]:
        """Return the ways as plain data."""
        return {
            "ways": [way.facts() for way in self.ways],
            "tried": self.tried,
            "why": self.why or None,
        }
