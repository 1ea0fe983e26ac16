"""What a search found: a table of the plans that it simulated, and a short report."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpusim.base.text_table import folded_table
from tpusim.base.text_width import unbroken
from tpusim.base.units import format_bytes, format_seconds
from tpusim.searches.best import SearchResult
from tpusim.searches.hunt import FoundPlan
from tpusim.searches.objectives import OBJECTIVES
from tpusim.searches.plan_space import PlanSpace
from tpusim.sweeps.format import TABLE_INDENT, TEXT_INDENT
from tpusim.sweeps.frame import cell

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN_PLANS, SHOWN_REASONS = 10, 4


def space_text(space: PlanSpace) -> str:
    """Return how many plans a space has: `407,440 plans in 312 groups on 12 slices`."""
    slices = f"{len(space.slices):,} slice{'s' * (len(space.slices) > 1)}"
    return f"{len(space):,} plans in {space.groups:,} groups on {slices}"


def left_out_lines(space: PlanSpace, found: SearchResult | None = None) -> Iterator[str]:
    """Yield how many combinations of a space are no plans, and how many plans of a search are out.

    Each with its reasons, the most frequent first.
    """
    for what, reasons in (
        ("combinations are not plans", space.left_out),
        ("plans are ruled out", found.left_out if found else {}),
    ):
        if reasons:
            yield f"{sum(reasons.values()):,} {what}:"
            yield from (f"- {count:,}: {why}" for why, count in [*reasons.items()][:SHOWN_REASONS])
            if len(reasons) > SHOWN_REASONS:
                yield f"- and {len(reasons) - SHOWN_REASONS:,} more reasons"


def search_frame(found: SearchResult, space: PlanSpace) -> "DataFrame":
    """Return a row for each plan that was simulated and has a step, the best first.

    The columns are `rank` (from 1, of the best plans; 0 of the others), `slice`, `chips`, the sizes
    of the axes, the varied keys, `placement`, the objectives (`step_time` in s, `chip_time` in
    chip-seconds, `cost` in USD and `energy` in J for each token), `bound` (of the first objective),
    `step_time_s, mfu, tokens_per_s, hbm_peak_bytes` as in `Result`, and `admitted` (it fits, and is
    within the limits).
    """
    from pandas import DataFrame

    best = {id(each) for each in found.best}
    others = [each for each in found.tried if id(each) not in best]
    others.sort(key=lambda each: (not each.admitted, each.values))
    rows = [
        {
            "rank": rank if rank <= len(found.best) else 0,
            "slice": str(each.pod),
            "chips": each.pod.chips,
            **_inputs(each, space),
            "placement": each.placement,
            **dict(zip(found.objectives, each.values, strict=True)),
            "bound": each.bound,
            "step_time_s": each.step_time_s,
            "mfu": each.mfu,
            "tokens_per_s": each.tokens_per_s,
            "hbm_peak_bytes": each.hbm_peak_bytes,
            "admitted": each.admitted,
        }
        for rank, each in enumerate([*found.best, *others], 1)
    ]
    return DataFrame(rows)


def search_facts(found: SearchResult) -> dict[str, Any]:
    """Return the numbers of a search, for JSON; infinite ones are None.

    How long it took is not among them, so that the same search gives the same bytes.
    """
    numbers = {"gap": found.gap, "possible": found.possible}
    return {
        "objectives": list(found.objectives),
        "proved": found.proved,
        "interrupted": found.interrupted,
        "plans": found.plans,
        "admitted": found.admitted,
        "left_out": dict(found.left_out),
        "simulated": found.simulated,
        **{name: value if value < float("inf") else None for name, value in numbers.items()},
    }


def search_text(found: SearchResult, space: PlanSpace, model: str, *, timed: bool = False) -> str:
    """Return the counts, what is proved, and the best plans.

    timed: say also how long the search took.
    """
    took = f", in {found.seconds:.1f} s" if timed else ""
    return "\n".join(_lines(found, space, f"{space_text(space)}, of {model}{took}"))


def _lines(found: SearchResult, space: PlanSpace, what: str) -> Iterator[str]:
    yield from unbroken(what, "search      ", TEXT_INDENT)
    share = f" ({found.simulated / found.plans:.1%} of all)" if found.plans else ""
    may = f"{found.admitted:,} may be the answer by their bounds"
    simulated = f"{may}, {found.simulated:,} simulated{share}"
    for text in (*left_out_lines(space, found), simulated, verdict(found)):
        yield from unbroken(text, TEXT_INDENT, TEXT_INDENT)
    if not found.best:
        return
    yield ""
    shown = found.best[:SHOWN_PLANS]
    front = len(found.objectives) > 1
    yield f"the Pareto front of {' and '.join(found.objectives)}" if front else "the best plans"
    cells = list(_cells(shown, found.objectives, space))
    yield from folded_table(cells, 1 + len(_inputs(shown[0], space)), TABLE_INDENT)
    if len(found.best) > len(shown):
        yield f"  and {len(found.best) - len(shown):,} more (--out writes them all)"


def verdict(found: SearchResult) -> str:
    """Return what is known of the best plan, as a clause."""
    if found.proved:
        return "proved: no plan of the space is better" if found.best else "proved: no plan fits"
    ended = "interrupted; " if found.interrupted else ""
    if not found.best:
        return f"{ended}no plan that fits was found"
    if not found.possible:
        return f"{ended}nothing is proved: a local search, each plan the best of its neighbourhood"
    possible = OBJECTIVES[found.objectives[0]].words(found.possible)
    return f"{ended}the best so far is at most {found.gap:.1%} above the best possible, {possible}"


def _inputs(found: FoundPlan, space: PlanSpace) -> Mapping[str, Any]:
    """Return the cells that tell plans apart, besides their slice."""
    values = {key: cell(found.plan.value(key)) for key in space.vary}
    return {**{axis: found.plan.mesh[axis] for axis in space.names}, **values}


def _head(objective: str) -> str:
    """Return the head of a column of values: `USD/M tokens`, or `time to train [s]`."""
    unit, each, _ = OBJECTIVES[objective].unit.partition(" per token")
    return f"{unit}/M tokens" if each else f"{objective.replace('_', ' ')} [{unit}]"


def _cells(
    shown: Sequence[FoundPlan], objectives: Sequence[str], space: PlanSpace
) -> Iterator[Sequence[str]]:
    named = [name for name in objectives if name != "step_time"]
    heads = map(_head, named)
    yield ("slice", *_inputs(shown[0], space), *heads, "step time", "MFU", "HBM peak")
    for each in shown:
        values = dict(zip(objectives, each.values, strict=True))
        yield (
            str(each.pod),
            *map(str, _inputs(each, space).values()),
            *(OBJECTIVES[name].shown(values[name]) for name in named),
            format_seconds(each.step_time_s),
            f"{each.mfu:.1%}",
            format_bytes(each.hbm_peak_bytes),
        )
