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

from tpusim.diagnosis.alignment import TIMES
from tpusim.diagnosis.finding import Finding, duration, more, spelled
from tpusim.diagnosis.kinds import COLLECTIVES, WAITS

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
        alone = int(np.abs(left).argmax())
        best = max([abs(left[alone]), *(explained for _, explained in effects)])
        if best < least:
            return
        if abs(left[alone]) >= NEARLY * best:
            group = _Group("operation", str(units.index[alone]), np.array([alone]), False)
            effect = left[group.rows]
        else:
            enough = (
                (groups[at].rank, len(groups[at].rows), -each, at)
                for at, (_, each) in enumerate(effects)
                if each >= NEARLY * best
            )
            *_, at = min(enough)
            group, (effect, _) = groups.pop(at), effects[at]
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
        text = f"the core waits in collectives for {_taken(moving, step_ps)}"
        yield Finding("collectives", moving, text)
    top = units.nlargest(MOST_SAID, "measured_ps")["measured_ps"]
    for name, picoseconds in top[top >= LEAST_SAID * step_ps].items():
        text = f"{name} takes {_taken(picoseconds, step_ps)}"
        yield Finding("operation", int(picoseconds), text)


def _taken(picoseconds: float, step_ps: int) -> str:
    return f"{duration(picoseconds)}, {picoseconds / step_ps:.1%} of the step"


def _groups(units: pd.DataFrame) -> Iterator[_Group]:
    """Yield all operations together, and those of a kind, a resource, a line and an axis."""
    yield _Group("step", "all operations", np.arange(len(units)), True, EVERYTHING)
    work, moving = units[~units["kind"].isin(WAITS)], units[units["kind"].isin(COLLECTIVES)]
    for column, some, words, factor in (
        ("kind", work, "{}", True),
        ("bound", work, "operations bound by {}", True),
        ("of", work, "operations of `{}`", True),
        ("axis", moving, "collectives over {}", False),
        ("kind", moving, "{}s", False),
    ):
        for name, mine in some[some[column] != ""].groupby(column):
            if column != "of" or len(mine) > 1:
                kind = f"axis {name}" if column == "axis" else str(name)
                rows = np.asarray(units.index.get_indexer(mine.index))
                text = words.format(_PLURALS.get(kind, name) if column == "kind" else name)
                yield _Group(kind, text, rows, factor, 2 if column == "of" else 1)


def _effect(group: _Group, left: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, float]:
    """Return what a group's cause adds to each of its operations, and how much that explains.

    A factor is that of the operations that it brings nearer to what is measured.
    """
    own, base = left[group.rows], predicted[group.rows]
    whole = float(np.abs(own).sum())
    if not group.factor:
        effect = np.where(abs(own.sum()) > whole / 2, own, 0.0)
        return effect, float(abs(effect.sum()))
    known = base > 0
    if not known.any():
        return np.zeros(len(own)), 0.0
    ratios = own[known] / base[known]
    order = np.argsort(ratios)
    weights = np.cumsum(base[known][order])
    effect = float(ratios[order][np.searchsorted(weights, weights[-1] / 2)]) * base
    effect = np.where(np.abs(own - effect) < np.abs(own), effect, 0.0)
    explained = whole - float(np.abs(own - effect).sum())
    enough = group.rank != EVERYTHING or explained >= UNIFORM * whole
    return effect, explained if enough else 0.0


def _finding(
    group: _Group, units: pd.DataFrame, total: tuple[float, float], effect: float, whole: float
) -> Finding:
    measured, predicted = total
    kind = str(units["kind"].iloc[group.rows[0]])
    alone = group.kind == "operation"
    if alone and not measured:
        text = f"is not in the profile, and predicted to take {duration(predicted)}"
    elif not predicted:
        text = f"takes {duration(measured)}, which is not predicted"
    elif not group.factor and (kind in COLLECTIVES or not alone):
        text = f"{'is' if alone else 'are'} {_exposed(measured, predicted)}"
    else:
        text = f"{'takes' if alone else 'take'} {measured / predicted:.2f} times the prediction"
    amount = more(effect)
    if whole * effect > 0 and abs(effect) < 0.995 * abs(whole):
        amount = f"{duration(abs(effect))} of the {more(whole)}"
    return Finding(group.kind, round(effect), f"{group.words} {text}: {amount}")


def _exposed(measured: float, predicted: float) -> str:
    took = f"exposed for {duration(measured)}"
    if predicted <= HIDDEN * measured:
        return f"{took}, predicted hidden"
    if measured <= HIDDEN * predicted:
        return f"hidden, predicted exposed for {duration(predicted)}"
    return f"{took}, predicted {duration(predicted)}"
