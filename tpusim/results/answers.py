"""The first lines of a summary: how fast, how good, whether it fits, its bounds, its cost."""

from collections.abc import Iterator

from tpusim.base.text_entry import entry, item
from tpusim.base.units import format_bytes, format_seconds
from tpusim.results.critical_path import limits
from tpusim.results.fit import Fit
from tpusim.results.reason import best_change
from tpusim.results.result import Result
from tpusim.results.settings import command_line

LEAST_BOUND = 0.02
"""The smallest fraction of the critical path that is named."""

MOST_WARNINGS = 3
"""Warnings that are printed, the largest of each kind first."""


def answers(r: Result) -> Iterator[str]:
    """Yield the lines on speed, MFU, HBM, bounds, the best change and cost of a result."""
    step = format_seconds(r.step_time_s)
    yield from entry("step time", f"{step}, {r.throughput}" if r.throughput else step)
    if (expected := r.error_range) is not None:
        yield from entry("", expected.words(r.step_time_s, _speeds(r)))
    yield from entry(*_utilisation(r))
    if r.fit is Fit.FITS:
        yield from entry("HBM", f"fits: {need_words(r)}")
        yield from odds_lines(r)
    yield from entry("bound by", _bounds(r))
    warned = {warning.what for warning in r.warnings()}
    for reason in r.reasons():
        if reason.because not in warned:
            yield from item(str(reason))
    yield from _warnings(r)
    if r.fits and r.adviser_command:
        yield from entry("best change", _best_change(r))
    if (cost := r.unit_cost) is not None:
        yield from entry("cost", str(cost))


def need_words(r: Result) -> str:
    """Return the need of HBM beside what there is, in words."""
    need, have = format_bytes(r.hbm_peak_bytes), format_bytes(r.hbm_bytes)
    return f"{need} of {have} usable per device"


def odds_words(r: Result) -> str:
    """Return the odds that a plan fits, in words; empty where there are none."""
    return "" if r.hbm_odds is None else r.hbm_odds.words(r.hbm_peak_bytes)


def odds_lines(r: Result) -> Iterator[str]:
    """Yield the lines on the odds that a plan fits, where there are any."""
    if words := odds_words(r):
        yield from entry("", words)


def _speeds(r: Result) -> str:
    """Return the ends of the throughput, in words that follow those of the step time."""
    ends = r.throughput_range
    return f", {ends}" if ends else ""


def _utilisation(r: Result) -> tuple[str, str]:
    """Return head and text of the utilisation: its range, and what published runs reach."""
    if r.mfu is None:
        return "HFU", f"{r.hfu:.1%}; the MFU is not known"
    ends = "" if r.mfu_range is None else " ({:.1%} to {:.1%})".format(*r.mfu_range)
    known = "" if (measured := r.measured_mfu) is None else f"; {measured}"
    return "MFU", f"{r.mfu:.1%}{ends}{known}"


def _bounds(r: Result) -> str:
    """Return what bounds the step, the largest part first."""
    found = limits(r)
    shown = [each for each in found if each.share >= LEAST_BOUND] or found[:1]
    first, *others = (f"{each.resource} {each.share:.1%}" for each in shown)
    return ", ".join([f"{first} of the step", *others])


def _warnings(r: Result) -> Iterator[str]:
    warnings = r.warnings()
    for warning in warnings[:MOST_WARNINGS]:
        yield from entry("warning", warning.text)
    if len(warnings) > MOST_WARNINGS:
        yield from entry("", f"and {len(warnings) - MOST_WARNINGS} more, in result.json")


def _best_change(r: Result) -> str:
    """Return the best of the changes that were simulated, and the command that tries more."""
    more = f"{r.adviser_command} simulates more changes"
    best = best_change(r.reasons())
    if best is None:
        return more
    return f"{best.gain}: {command_line(best.settings)}; {more}"
