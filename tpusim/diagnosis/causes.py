"""The causes of a difference: groups of operations, each slower or faster by one factor.

A difference is spread over thousands of operations. A cause is a group of them (a kind, a resource,
the collectives over an axis, a single operation) with one factor on their predicted times, the
weighted median of measured over predicted; for collectives, whose waits follow from all that runs
beside them, one sum. What it explains is by how much it lessens the sum of absolute differences
(L1). The cause that explains most is taken first, then the one that explains most of what is left.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tpusim.base.units import format_seconds
from tpusim.diagnosis.alignment import TIMES
from tpusim.diagnosis.finding import Finding, more, spelled
from tpusim.diagnosis.kinds import COLLECTIVES, WAITS
from tpusim.profiles.profile import PS

MOST_CAUSES = 8
LEAST_OF_STEP = 0.005
"""Causes that are looked for, and the least that one explains, as a fraction of the step."""

NEARLY = 0.9
"""A single operation, or a smaller group, is the cause where it explains this fraction of what the
best one does."""

LEAST_SAID, MOST_SAID = 0.01, 3
"""Where nothing is predicted: the least fraction of a step that is said, and so many operations."""

EVERYTHING, UNIFORM = 3, 0.8
"""The rank of the group of all operations, and what it has to explain of all differences."""

HIDDEN = 0.02
"""The fraction of a collective's exposed time that still counts as hidden."""

_PLURALS = {"matmul": "matmuls", "vector": "vector operations", "attention": "attention kernels",
            "kernel": "kernels", "convolution": "convolutions"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Group:
    """Operations that may have one cause.

    rows: their places in the table of units. factor: whether they have one factor, or one sum.
    rank: of groups that explain nearly the same, the first is said.
    """

    kind: str
    words: str
    rows: np.ndarray
    factor: bool
    rank: int = 1


def causes(units: pd.DataFrame, step_ps: int, difference_ps: int) -> Iterator[Finding]:
    """Yield what the difference of two steps comes from, the largest first, then what lessens it.

    units: one row per operation, or part that both steps have, with its name in words as index,
        and `kind`, `axis`, `bound`, `of` (a line of code, or a weight) and the times.
    """
    found = list(_causes(units, LEAST_OF_STEP * step_ps, difference_ps)) if len(units) else []
    yield from sorted(found, key=lambda each: each.picoseconds * difference_ps <= 0)


def _causes(units: pd.DataFrame, least: float, difference_ps: int) -> Iterator[Finding]:
    measured, predicted, left = (units[name].to_numpy(float) for name in TIMES)
    left, groups = left.copy(), list(_groups(units))
    for _ in range(MOST_CAUSES):
        effects = [_effect(group, left, predicted) for group in groups]
        explained = [
            _explained(group, left, each) for group, each in zip(groups, effects, strict=True)
        ]
        alone = int(np.abs(left).argmax())
        best = max([abs(left[alone]), *explained])
        if best < least:
            return
        if abs(left[alone]) >= NEARLY * best:
            group = _Group("operation", str(units.index[alone]), np.array([alone]), False)
            effect = left[group.rows]
        else:
            enough = [at for at, each in enumerate(explained) if each >= NEARLY * best]
            at = min(enough, key=lambda at: (groups[at].rank, len(groups[at].rows), -explained[at]))
            group, effect = groups.pop(at), effects[at]
        total = (measured[group.rows].sum(), predicted[group.rows].sum())
        if effect.sum() * (total[0] - total[1]) > 0:
            yield _finding(group, units, total, float(effect.sum()), difference_ps)
        left[group.rows] -= effect


def largest(units: pd.DataFrame, step_ps: int) -> Iterator[Finding]:
    """Yield what takes most of a step that nothing predicts: kinds of work, then operations."""
    kinds = units.groupby("kind")["measured_ps"].sum().sort_values(ascending=False)
    shares = [f"{kind} {each / step_ps:.0%}" for kind, each in kinds.head(4).items()]
    yield Finding("kinds", step_ps, f"the step is {spelled(shares)}")
    moving = int(kinds.reindex(COLLECTIVES).sum())
    if moving >= LEAST_SAID * step_ps:
        took = f"{format_seconds(moving * PS)}, {moving / step_ps:.1%} of the step"
        yield Finding("collectives", moving, f"the core waits in collectives for {took}")
    top = units.nlargest(MOST_SAID, "measured_ps")["measured_ps"]
    for name, picoseconds in top[top >= LEAST_SAID * step_ps].items():
        took = f"{format_seconds(picoseconds * PS)}, {picoseconds / step_ps:.1%} of the step"
        yield Finding("operation", int(picoseconds), f"{name} takes {took}")


def _groups(units: pd.DataFrame) -> Iterator[_Group]:
    """Yield the operations of a kind, a resource, a line, an axis, and all together."""
    yield _Group("step", "all operations", np.arange(len(units)), True, EVERYTHING)
    work = ~units["kind"].isin(WAITS)
    for kind, mine in units[work].groupby("kind"):
        yield _Group(str(kind), _PLURALS.get(str(kind), str(kind)), _at(units, mine), True)
    for bound, mine in units[work & (units["bound"] != "")].groupby("bound"):
        yield _Group(str(bound), f"operations bound by {bound}", _at(units, mine), True)
    for of, mine in units[work & (units["of"] != "")].groupby("of"):
        if len(mine) > 1:
            yield _Group(str(of), f"operations of `{of}`", _at(units, mine), True, 2)
    moving = units[units["kind"].isin(COLLECTIVES)]
    for axis, mine in moving[moving["axis"] != ""].groupby("axis"):
        yield _Group(f"axis {axis}", f"collectives over {axis}", _at(units, mine), False)
    for kind, mine in moving.groupby("kind"):
        yield _Group(str(kind), f"{kind}s", _at(units, mine), False)


def _at(units: pd.DataFrame, mine: pd.DataFrame) -> np.ndarray:
    return np.asarray(units.index.get_indexer(mine.index))


def _effect(group: _Group, left: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return what a group's cause adds to each of its operations.

    A factor is that of the operations that it brings nearer to what is measured.
    """
    own, base = left[group.rows], predicted[group.rows]
    if not group.factor:
        return np.where(abs(own.sum()) > np.abs(own).sum() / 2, own, 0.0)
    known = base > 0
    if not known.any():
        return np.zeros(len(own))
    ratios = own[known] / base[known]
    order = np.argsort(ratios)
    weights = np.cumsum(base[known][order])
    effect = float(ratios[order][np.searchsorted(weights, weights[-1] / 2)]) * base
    return np.where(np.abs(own - effect) < np.abs(own), effect, 0.0)


def _explained(group: _Group, left: np.ndarray, effect: np.ndarray) -> float:
    own = left[group.rows]
    if not group.factor:
        return float(abs(effect.sum()))
    whole = float(np.abs(own).sum())
    explained = whole - float(np.abs(own - effect).sum())
    return 0.0 if group.rank == EVERYTHING and explained < UNIFORM * whole else explained


def _finding(
    group: _Group, units: pd.DataFrame, total: tuple[float, float], effect: float, whole: float
) -> Finding:
    measured, predicted = total
    kind = str(units["kind"].iloc[group.rows[0]])
    alone = group.kind == "operation"
    if alone and not measured:
        text = f"is not in the profile, and predicted to take {format_seconds(predicted * PS)}"
    elif not predicted:
        text = f"takes {format_seconds(measured * PS)}, which is not predicted"
    elif not group.factor and (kind in COLLECTIVES or not alone):
        text = f"{'is' if alone else 'are'} {_exposed(measured, predicted)}"
    else:
        text = f"{'takes' if alone else 'take'} {measured / predicted:.2f} times the prediction"
    amount = more(effect)
    if whole * effect > 0 and abs(effect) < 0.995 * abs(whole):
        amount = f"{format_seconds(abs(effect) * PS)} of the {more(whole)}"
    return Finding(group.kind, round(effect), f"{group.words} {text}: {amount}")


def _exposed(measured: float, predicted: float) -> str:
    took = f"exposed for {format_seconds(measured * PS)}"
    if predicted <= HIDDEN * measured:
        return f"{took}, predicted hidden"
    if measured <= HIDDEN * predicted:
        return f"hidden, predicted exposed for {format_seconds(predicted * PS)}"
    return f"{took}, predicted {format_seconds(predicted * PS)}"
