"""Names to save in place of computing them again: those that save most time for their bytes."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from tpusim.base.phase import Phase
from tpusim.program import Compute
from tpusim.results import PlanResult
from tpusim.results.time_by_operation import TimeByOperation
from tpusim.simulation.fit_moves import saved_names

ALL_PRODUCTS = "dots"
"""The policy that saves every name that is worth it: what products make."""

MOST_NAMES = 8
"""Names among which is chosen, those that take longest."""

ROOMS = (0.9, 0.7, 0.5)
"""Fractions of the free HBM that names may fill, each of which gives a choice of names."""


def names_to_save(result: PlanResult) -> Iterator[tuple[str, ...]]:
    """Yield choices of names to save besides those that a plan saves, the largest choice first.

    A name's time is that of the operations that compute it again and of the gathers for them, its
    bytes those of all layers. What the plan with a choice needs, only its simulation says.
    """
    seconds, sizes = _recomputed(result)
    free = result.hbm_bytes - result.hbm_peak_bytes
    worth = sorted(seconds, key=lambda name: -seconds[name])[:MOST_NAMES]
    choices = [
        (sum(seconds[name] for name in names), sum(sizes[name] for name in names), names)
        for count in range(1, len(worth) + 1)
        for names in combinations(worth, count)
    ]
    known = set[tuple[str, ...]]()
    for part in ROOMS:
        able = [each for each in choices if each[1] <= part * free]
        best = max(able, key=lambda each: (each[0], -each[1]), default=None)
        if best is not None and best[2] not in known:
            known.add(best[2])
            yield best[2]


def _recomputed(result: PlanResult) -> tuple[dict[str, float], dict[str, float]]:
    """Return the time and the bytes of each name that is computed again and may be saved."""
    model, plan = result.model, result.plan
    more = plan.replace(remat=ALL_PRODUCTS)
    names = set(saved_names(model, more)) - set(saved_names(model, plan))
    parts = TimeByOperation(result)
    rows = parts.where(lambda row: row.phase is Phase.RECOMPUTE and row.op is not None)
    by_scope: Counter[str] = Counter()
    for row in rows:
        by_scope[getattr(row.op, "scope", "")] += row.picoseconds
    seconds: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for row in rows:
        if not isinstance(row.op, Compute):
            continue
        for alloc in row.op.allocs:
            name = alloc.tensor.rpartition("/")[2]
            if name in names:
                times = row.runs / result.timeline.core_count / plan.microbatches
                seconds[name] += by_scope[row.op.scope]
                sizes[name] += round(times * float(alloc.bytes))
    return dict(seconds), {name: float(size) for name, size in sizes.items()}
