"""Error statistics: the size of prediction errors, and the order that predictions put runs in."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from math import sqrt
from typing import Any

import numpy as np

from tpusim.hardware import chip_names
from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.outcome import RUN_FAMILIES, RunOutcome, families_of, kinds_of
from tpusim.validation.pairs import DECISIONS, RunGroup, cost, pair_document

Point = tuple[float, float]
"""Predicted and measured."""


def summarise(outcomes: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return counts of runs and failures, errors, ranges, and Kendall's tau-b of the MFU."""
    errors = [o.error for o in outcomes if o.error is not None]
    points = [(o.mfu, o.measured_mfu) for o in outcomes if o.mfu and o.measured_mfu]
    return _counted(len(outcomes), errors) | range_statistics(outcomes) | {"tau_b": tau_b(points)}


def range_statistics(outcomes: Sequence[RunOutcome]) -> dict[str, float | None]:
    """Return how many runs are in their range, and the median of half its width.

    Both are fractions, the second of the predicted time; None without ranges.
    """
    ranges = [o.error_range for o in outcomes if o.error_range is not None]
    inside = [bool(o.in_range) for o in outcomes if o.error_range is not None]
    return {
        "coverage_80": float(np.mean(inside)) if ranges else None,
        "median_half_width": float(np.median([r.half_width for r in ranges])) if ranges else None,
    }


def summarise_spans(outcomes: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return how many runs have a span, how many are measured inside it, and which are not."""
    spans = [one for one in outcomes if one.span is not None]
    outside = [one.run.id for one in spans if not one.in_span]
    return {"runs": len(spans), "inside": len(spans) - len(outside), "outside": outside}


def summarise_guess(outcomes: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return the same statistics of the guess, without tau-b."""
    return _counted(len(outcomes), [o.guess_error for o in outcomes if o.guess_error is not None])


def _counted(runs: int, errors: Sequence[float]) -> dict[str, Any]:
    return {"runs": runs, "failed": runs - len(errors)} | error_statistics(errors)


def error_statistics(errors: Sequence[float]) -> dict[str, float | None]:
    """Return median, mean and 90th percentile of absolute errors, and the mean signed error.

    The percentile is interpolated linearly between ranks. All are None if there are no errors.
    """
    sizes = np.abs(errors)
    statistics: dict[str, Callable[[], Any]] = {
        "median_abs_error": lambda: np.median(sizes),
        "mean_abs_error": lambda: np.mean(sizes),
        "p90_abs_error": lambda: np.percentile(sizes, 90),
        "mean_error": lambda: np.mean(errors),
    }
    return {name: float(rule()) if errors else None for name, rule in statistics.items()}


def tau_b(
    points: Sequence[Point], pairs: Iterable[tuple[Point, Point]] | None = None
) -> float | None:
    """Return Kendall's tau-b: 1 if both numbers order the points alike, -1 if they reverse them.

    tau_b = (C - D) / sqrt((P - T)(P - U)) over P pairs of points, of which C are concordant, D
    discordant, T tied in the first and U in the second number (Kendall 1945, "The treatment of
    ties in ranking problems"). None if either number is the same throughout.

    pairs: the pairs to compare, instead of all pairs of `points`.

    >>> tau_b([(1, 1), (2, 3), (3, 2)])
    0.3333333333333333
    """
    compared = list(combinations(points, 2) if pairs is None else pairs)
    signs = [(_sign(b[0] - a[0]), _sign(b[1] - a[1])) for a, b in compared]
    score = sum(first * second for first, second in signs)
    untied = [sum(abs(pair[side]) for pair in signs) for side in (0, 1)]
    return score / sqrt(untied[0] * untied[1]) if all(untied) else None


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def tau_b_within_chips(outcomes: Sequence[RunOutcome]) -> float | None:
    """Return tau-b over pairs of runs on the same chip: it ranks plans, not generations."""
    found = [(o.run.chip, (o.mfu, o.measured_mfu)) for o in outcomes if o.mfu and o.measured_mfu]
    pairs = [(a, b) for (chip, a), (other, b) in combinations(found, 2) if chip == other]
    return tau_b((), pairs)


def summarise_pairs(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return how far off ratios of pairs are, and how many pairs are ordered right.

    `sharp` counts only pairs without anything that one source alone states; then come the same of
    each decision, the groups with the costs of their runs, and the pairs.
    """
    decisions = {
        name: [group for group in groups if group.decision == name]
        for name in DECISIONS
        if any(group.decision == name for group in groups)
    }
    return {
        **_paired(groups),
        "sharp": _paired(groups, sharp=True),
        "by_decision": {name: _paired(found) for name, found in decisions.items()},
        "each_group": [_group_document(group) for group in groups],
        "each": [pair_document(pair) for group in groups for pair in group.pairs],
    }


def _paired(groups: Sequence[RunGroup], sharp: bool = False) -> dict[str, Any]:
    """Return counts of pairs, errors of their ratios, tau-b of both orders, and the share right.

    Of the share count pairs whose measured costs differ (`RunPair.differs`), of tau-b all. No pair
    is of two groups, so tau-b compares runs that differ in one decision only.
    """
    kept = [[pair for pair in one.pairs if not (sharp and pair.also)] for one in groups]
    pairs = [pair for group in kept for pair in group]
    errors = [pair.error for pair in pairs if pair.error is not None]
    decided = [pair.right for pair in pairs if pair.differs and pair.right is not None]
    ratios = [(p.predicted_ratio, p.measured_ratio) for p in pairs if p.predicted_ratio]
    return {
        "groups": sum(map(bool, kept)),
        "pairs": len(pairs),
        "failed": len(pairs) - len(errors),
        **error_statistics(errors),
        "tau_b": tau_b((), [((1.0, 1.0), ratio) for ratio in ratios]),
        "differing": len(decided),
        "ordered_right": sum(decided),
        "share_ordered_right": sum(decided) / len(decided) if decided else None,
    }


def _group_document(group: RunGroup) -> dict[str, Any]:
    """Return a group as plain data, with costs in chip-seconds per sequence."""
    runs = [
        {
            "id": one.run.id,
            "measured_cost": cost(one, one.run.step_s),
            "predicted_cost": None if one.predicted_s is None else cost(one, one.predicted_s),
        }
        for one in group.outcomes
    ]
    order = _paired([group])
    told = ("pairs", "tau_b", "differing", "ordered_right")
    return {"decision": group.decision, **{name: order[name] for name in told}, "runs": runs}


def by_chip(outcomes: Sequence[RunOutcome]) -> dict[str, list[RunOutcome]]:
    """Return the outcomes of each chip, from the first generation to the last."""
    groups = _grouped(outcomes, lambda run: (run.chip,))
    known = [name for name in chip_names() if name in groups]
    return {name: groups[name] for name in (*known, *(groups.keys() - set(known)))}


def by_family(outcomes: Sequence[RunOutcome]) -> dict[str, list[RunOutcome]]:
    """Return the outcomes of each family that has any; a run may have several families."""
    groups = _grouped(outcomes, families_of)
    return {name: groups[name] for name in RUN_FAMILIES if name in groups}


def by_kind(outcomes: Sequence[RunOutcome]) -> dict[str, list[RunOutcome]]:
    """Return the outcomes of each kind (`kinds_of`), in the order of the table."""
    return _grouped(outcomes, kinds_of)


def _grouped(
    outcomes: Sequence[RunOutcome], names_of: Callable[[MeasuredRun], Iterable[str]]
) -> dict[str, list[RunOutcome]]:
    """Return the outcomes by the names of their runs."""
    groups: dict[str, list[RunOutcome]] = {}
    for one in outcomes:
        for name in names_of(one.run):
            groups.setdefault(name, []).append(one)
    return groups


def with_guesses(outcomes: Sequence[RunOutcome]) -> tuple[RunOutcome, ...]:
    """Return each outcome with the time that the median MFU of its chip's other runs gives.

    This guess is the baseline to beat: of the mesh it knows nothing, of the model its FLOPs only.
    """
    return tuple(replace(one, guess_s=_guess(one, outcomes)) for one in outcomes)


def _guess(one: RunOutcome, outcomes: Sequence[RunOutcome]) -> float | None:
    others = [
        other.measured_mfu
        for other in outcomes
        if other is not one and other.run.chip == one.run.chip and other.measured_mfu
    ]
    if not others or not one.measured_mfu:
        return None
    return one.run.step_s * one.measured_mfu / float(np.median(others))
