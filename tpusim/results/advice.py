"""Advice on a run: what bounds its step, and what changes of it save, by simulating each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_table import fixed_table
from tpusim.base.text_width import unbroken
from tpusim.base.units import format_bytes, format_seconds
from tpusim.hardware import Placement, Slice
from tpusim.plan import Plan
from tpusim.results.fit import Fit
from tpusim.results.limit import PICO, Limit
from tpusim.results.proposal import Proposal
from tpusim.results.reason import Reason
from tpusim.results.settings import command_line
from tpusim.results.ways_to_fit import WaysToFit

CHANGES_SHOWN = 10
"""Changes of each kind that are printed, unless another number is asked for."""

MARGIN = " " * 12
"""Stands before the lines of an entry, below its head."""

FASTER = 1.1
"""The factor on one rate of the machine, by which a step gets no more than that much faster if the
compiler decides as before."""

SAME = 5e-4
"""Fractions of a step below this print as 0.0 %."""


class ChangeKind(StrEnum):
    """What a change affects."""

    PLAN = "plan"
    BATCH = "batch"
    MACHINE = "machine"


HEADS = {
    ChangeKind.PLAN: "changes that leave the training as it is",
    ChangeKind.BATCH: "changes of the global batch, at the same number of examples",
    ChangeKind.MACHINE: "what faster hardware would save",
}
"""The heads of the printed tables, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Change(ShortRepr):
    """A change of a run, and the step that its simulation takes.

    what: the change in words.
    settings: the change for `--set`, a text each, such as `plan.remat="minimal"`; () for one of the
        machine.
    plan, pod, placement: what was simulated. The placement is None where it was searched for, and
        the plan is None for a compiled program.
    step_time_s: of the changed run.
    saves: the fraction of the time that it saves, for as many examples; negative if it takes more.
    hbm_peak_bytes, hbm_bytes: what the changed run needs of a device, and what there is.
    fit: the verdict on that.
    fit_odds: the fraction of plans like the changed one that fit; None for a compiled program.
    """

    kind: ChangeKind
    what: str
    settings: tuple[str, ...]
    plan: Plan | None
    pod: Slice
    placement: Placement | None
    step_time_s: float
    saves: float
    hbm_peak_bytes: float
    hbm_bytes: float
    fit: Fit
    fit_odds: float | None = None

    def __str__(self) -> str:
        """Return the change in a sentence."""
        if abs(self.saves) < SAME:
            gain = "changes nothing"
        elif self.saves > 0:
            gain = f"saves {self.saves:.1%}"
        else:
            gain = f"takes {-self.saves:.1%} more"
        return f"{self.what}: {gain} (simulated){self._decisions()}{self._memory()}"

    def _decisions(self) -> str:
        """Say so where a faster machine changes the step by more than its rate, or slows it."""
        if self.kind is not ChangeKind.MACHINE or -SAME < self.saves < 1 - 1 / FASTER + SAME:
            return ""
        return ", as the compiler would then lower the step differently"

    def _memory(self) -> str:
        if self.fit is Fit.FITS:
            return ""
        need, have = format_bytes(self.hbm_peak_bytes), format_bytes(self.hbm_bytes)
        but = "does not fit" if self.fit is not Fit.BORDERLINE else "may not fit"
        odds = "" if self.fit_odds is None else f", as {self.fit_odds:.0%} of such plans do"
        return f", but {but}: {need} of {have}{odds}"

    def facts(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {
            "kind": str(self.kind),
            "what": self.what,
            "sentence": str(self),
            "settings": list(self.settings),
            "step_time_s": self.step_time_s,
            "saves": self.saves,
            "hbm_peak_bytes": self.hbm_peak_bytes,
            "fit": str(self.fit),
            "fit_odds": self.fit_odds,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advice(ShortRepr):
    """What bounds a step, and what to change.

    title: of the run.
    limits: the largest part of the step first; they sum to it.
    proposals: changes that were made together, those that take least effort first.
    changes: of each kind, those that fit in HBM first, and then the largest gain.
    refused: changes that cannot be simulated, each with the reason.
    notes: what was not tried, and why.
    top: changes of each kind that are printed.
    to_fit: what would make the run fit, if it does not.
    reasons: why the step takes as long as it does, the largest part of it first.
    """

    title: str
    step_time_s: float
    limits: tuple[Limit, ...]
    changes: tuple[Change, ...]
    proposals: tuple[Proposal, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    top: int = CHANGES_SHOWN
    to_fit: WaysToFit | None = None
    reasons: tuple[Reason, ...] = ()

    def of(self, kind: ChangeKind) -> tuple[Change, ...]:
        """Return the changes of a kind."""
        return tuple(change for change in self.changes if change.kind is kind)

    def shown(self, top: int) -> "Advice":
        """Return the advice with another number of changes to print."""
        return replace(self, top=top)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        step = format_seconds(self.step_time_s)
        yield from unbroken(f"{self.title}, step {step}", "advice      ", MARGIN)
        if self.to_fit is not None:
            yield from self.to_fit.lines()
        if self.proposals:
            yield ""
            yield from unbroken("proposals, each simulated, with what each change adds")
            for number, each in enumerate(self.proposals, 1):
                yield from each.lines(number)
        yield ""
        yield from limit_table(self.limits)
        if self.reasons:
            yield ""
            yield "why the step takes as long as it does"
            for reason in self.reasons:
                yield from unbroken(str(reason), "  ", "    ")
        for kind, head in HEADS.items():
            if found := self.of(kind):
                yield ""
                yield from _change_table(head, found, self.top)
        if self.refused:
            yield ""
            what, why = self.refused[0]
            yield from unbroken(f"{len(self.refused)} more cannot be simulated, such as {what}:")
            yield from unbroken(why, "  ", "  ")
        for note in self.notes:
            yield from unbroken(note, "note        ", MARGIN)

    def facts(self) -> dict[str, Any]:
        """Return the advice as plain data, all changes of it."""
        return {
            "title": self.title,
            "step_time_s": self.step_time_s,
            "to_fit": None if self.to_fit is None else self.to_fit.facts(),
            "limits": [
                {
                    "resource": limit.resource,
                    "seconds": limit.seconds,
                    "share": limit.share,
                    "does_s": {label: ps * PICO for label, ps in limit.does_ps.items()},
                }
                for limit in self.limits
            ],
            "proposals": [each.facts() for each in self.proposals],
            "reasons": [reason.facts() for reason in self.reasons],
            "changes": [change.facts() for change in self.changes],
            "refused": [{"what": what, "why": why} for what, why in self.refused],
            "notes": list(self.notes),
        }


def limit_table(limits: Sequence[Limit]) -> Iterator[str]:
    """Yield the lines of a table of what bounds a step."""
    rows = [("what bounds the step", "time", "share", "in")]
    for limit in limits:
        time = format_seconds(limit.seconds)
        rows.append((f"  {limit.resource}", time, f"{limit.share:.1%}", limit.what))
    total, share = sum(each.seconds for each in limits), sum(each.share for each in limits)
    rows.append(("  sum", format_seconds(total), f"{share:.1%}", ""))
    yield from fixed_table(rows, (28, 11, 9))


def _change_table(head: str, changes: Sequence[Change], top: int) -> Iterator[str]:
    """Yield the lines of a table of changes that save: a sentence each, and the key to write."""
    yield from unbroken(head)
    saving = [change for change in changes if change.saves >= SAME]
    for change in saving[:top]:
        yield from unbroken(str(change), "  ", "    ")
        for setting in change.settings:
            yield from unbroken(command_line([setting]), "      ", "      ")
    if not saving:
        yield f"  none of {len(changes)} saves time"
    elif len(changes) > min(top, len(saving)):
        more, slower = max(len(saving) - top, 0), len(changes) - len(saving)
        counts = [f"{more} more save{'s' * (more == 1)} less"] if more else []
        counts += [f"{slower} save{'s' * (slower == 1)} nothing"] if slower else []
        yield f"  and {', '.join(counts)}"
