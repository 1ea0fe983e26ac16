"""What the page says about what limits the step, and about changes of it."""

from collections.abc import Iterator, Sequence

from tpusim.base.units import format_bytes, format_seconds
from tpusim.results import (
    BUBBLE_LABEL,
    EXPOSED,
    Advice,
    Change,
    Fit,
    Result,
    odds_words,
    verdict_reason,
)
from tpusim.results.advice import HEADS

LEAST_SAID = 0.01
"""The smallest fraction of the step that is worth a sentence."""

CHANGES_SHOWN = 5
"""Changes of each kind on the page."""


def findings(result: Result, bounded: bool) -> list[str]:
    """Return what takes the step's time and its memory, in sentences, the largest first.

    bounded: the page has the critical path by resource, which says where the time goes.
    """
    time = [] if bounded else _time(result)
    return [*_memory(result), *time, *_recomputation(result), *_notes(result)]


def changes(advice: Advice) -> Iterator[tuple[str, Sequence[Change]]]:
    """Yield each kind of changes, in words, and the best of them."""
    for kind, head in HEADS.items():
        if found := advice.of(kind):
            yield head, found[:CHANGES_SHOWN]


def _memory(result: Result) -> Iterator[str]:
    if result.fit is not Fit.FITS:
        yield f"It {'is ' * (result.fit is Fit.BORDERLINE)}{result.fit}: {verdict_reason(result)}."
    else:
        free = format_bytes(result.hbm_bytes - result.hbm_peak_bytes)
        largest = next(iter(result.memory_bytes), "nothing")
        yield f"It fits: {free} of HBM are free at the peak; the largest part in use is {largest}."
    if words := odds_words(result):
        yield f"Does it fit? {words}."


def _time(result: Result) -> Iterator[str]:
    ranked = sorted(result.breakdown_s.items(), key=lambda entry: -entry[1])
    for label, seconds in ranked:
        share = seconds / result.step_time_s
        if share < LEAST_SAID:
            continue
        if label.startswith(EXPOSED):
            what = f"Waiting for {label.removeprefix(EXPOSED)} takes"
        elif label == BUBBLE_LABEL:
            what = "Waiting for other stages takes"
        else:
            what = f"{label.capitalize()} work takes"
        yield f"{what} {share:.1%} of the step, {format_seconds(seconds)}."


def _recomputation(result: Result) -> Iterator[str]:
    again = float(result.flops.recompute) / max(float(result.flops.total), 1.0)
    if again >= LEAST_SAID:
        yield f"Recomputation is {again:.1%} of all matrix FLOPs."


def _notes(result: Result) -> Iterator[str]:
    for _, text in result.notes():
        yield f"Note: {text}."
