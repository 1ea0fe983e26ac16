"""What the page says about changes of a run, and the notes on it.

This is the only module of the page that reads an `Advice`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tpusim.base.units import format_bytes, format_seconds
from tpusim.results import Advice, Change, ChangeKind, Fit, ReplayResult, Result
from tpusim.results.advice import HEADS, SAME

LEAST_RECOMPUTED = 0.01
"""The smallest fraction of all matrix FLOPs that is worth a note."""

CHANGES_SHOWN = 5
"""Changes of each kind on the page."""


class BestChange(NamedTuple):
    """The change that the first screen names.

    question: what it answers.
    gain: what it saves, in a few words.
    about: lines on it, the change in words first.
    settings: the change for `--set`, a text each.
    """

    question: str
    gain: str
    about: tuple[str, ...]
    settings: tuple[str, ...]


class ChangeRow(NamedTuple):
    """A change in the tables of the page."""

    what: str
    saves: str
    step: str
    hbm: str
    settings: tuple[str, ...]


class ChangeTable(NamedTuple):
    """The changes of a kind that save time, the best first, and how many others save nothing."""

    head: str
    rows: tuple[ChangeRow, ...]
    others: int


def best_change(result: Result, advice: Advice | None) -> BestChange | None:
    """Return the change that saves most and fits as surely as the run does.

    Where none saves anything, it says so. None without advice, and for a plan that does not fit,
    whose page starts with what makes it fit.
    """
    if advice is None:
        return None
    question = "What to change?"
    if result.fit is Fit.TOO_LARGE:
        return None
    if able := list(_able(result, advice)):
        saves, what, step_s, settings = max(able, key=lambda change: change[0])
        steps = f"{format_seconds(result.step_time_s)} → {format_seconds(step_s)}"
        about = (what, f"{steps} per step, simulated")
        return BestChange(question, f"Saves {saves:.1%}", about, settings)
    if advice.of(ChangeKind.PLAN):
        none = "no change of the plan that was simulated is faster"
        return BestChange(question, "Nothing found", (none,), ())
    faster = next(iter(advice.of(ChangeKind.MACHINE)), None)
    if faster is None or faster.saves < SAME:
        return None
    about = (faster.what, "a compiled program has no plan to change")
    return BestChange("What would help?", f"Saves {faster.saves:.1%}", about, ())


def change_tables(advice: Advice) -> Iterator[ChangeTable]:
    """Yield a table for each kind of changes: those that save time, the best first."""
    for kind, head in HEADS.items():
        found = advice.of(kind)
        better = [change for change in found if _is_listed(change)]
        ranked = sorted(better, key=lambda change: -change.saves)[:CHANGES_SHOWN]
        others = sum(change.saves < SAME for change in found)
        if ranked or others:
            rows = tuple(_row(change) for change in ranked)
            yield ChangeTable(f"{head[0].upper()}{head[1:]}", rows, others)


def notes(result: Result) -> Iterator[str]:
    """Yield the notes on a result, in sentences."""
    again = float(result.flops.recompute) / max(float(result.flops.total), 1.0)
    if again >= LEAST_RECOMPUTED:
        yield f"Recomputation is {again:.1%} of all matrix FLOPs."
    for head, text in result.notes():
        if head == "note" or (isinstance(result, ReplayResult) and result.unknown):
            yield f"{_sentence(text)}."


def _sentence(text: str) -> str:
    """Return a text that begins with a capital, unless it begins with a name in code."""
    first = text.partition(" ")[0]
    return f"{text[0].upper()}{text[1:]}" if first.isalpha() else text


def _able(result: Result, advice: Advice) -> Iterator[tuple[float, str, float, tuple[str, ...]]]:
    """Yield what each change saves that is faster and fits: the fraction, words, step, settings."""
    for change in advice.of(ChangeKind.PLAN):
        if change.saves >= SAME and _is_as_sure(change, result):
            yield change.saves, change.what, change.step_time_s, change.settings
    for reason in advice.reasons:
        if reason.change and reason.step_time_s is not None:
            yield reason.saves, reason.change, reason.step_time_s, reason.settings


def _is_as_sure(change: Change, result: Result) -> bool:
    return change.fit.order <= result.fit.order and change.fit is not Fit.TOO_LARGE


def _is_listed(change: Change) -> bool:
    """Return True for a change that saves time, and of a plan, may fit."""
    able = change.kind is ChangeKind.MACHINE or change.fit is not Fit.TOO_LARGE
    return change.saves >= SAME and able


def _row(change: Change) -> ChangeRow:
    hbm = ""
    if change.kind is not ChangeKind.MACHINE:
        need, have = format_bytes(change.hbm_peak_bytes), format_bytes(change.hbm_bytes)
        hbm = f"{need} of {have}"
        hbm += f", {change.fit}" * (change.fit is not Fit.FITS)
    saves, step = f"{change.saves:.1%}", format_seconds(change.step_time_s)
    return ChangeRow(change.what, saves, step, hbm, change.settings)
