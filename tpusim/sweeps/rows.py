"""The row of a candidate. Worker processes run this module, which loads no pandas."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from tpusim.base.errors import TpusimError
from tpusim.costs import DISPATCH, HOST_LABEL, INPUT, SKEW
from tpusim.hardware import DCN_PREFIX
from tpusim.models import Architecture
from tpusim.plan import STAGE_AXES, Input
from tpusim.results import (
    BUBBLE_LABEL,
    COMPUTE_LABELS,
    EXPOSED,
    PlanResult,
    Result,
    verdict_reason,
    with_sorted_axes,
)
from tpusim.simulation import simulate
from tpusim.sweeps.search_axes import SweepCandidate

SweepRow: TypeAlias = dict[str, Any]

PLAN_STATUSES = PLAN_FITS, PLAN_TOO_LARGE, PLAN_REFUSED = "ok", "does not fit", "refused"

RESULT_NUMBERS = (
    *("step_time_s", "mfu", "hfu", "tokens_per_s"),
    *("hbm_peak_bytes", "hbm_bytes", "fits", "exposed_s"),
)
RANGE_COLUMNS = ("step_time_low_s", "step_time_high_s", "mfu_low", "mfu_high")


def simulate_chunk(
    model: Architecture, chunk: Sequence[SweepCandidate], given: Input | None = None
) -> list[SweepRow]:
    """Return the row of each candidate, in their order; `given` is the hosts' input pipeline."""
    return [_simulate_candidate(model, candidate, given) for candidate in chunk]


def _simulate_candidate(
    model: Architecture, candidate: SweepCandidate, given: Input | None
) -> SweepRow:
    """Return the numbers under the names of `Result`, the breakdown, the status and the reason.

    A plan that does not fit has its numbers and a reason; one that the model or the slice refuses
    has a reason only.
    """
    if candidate.refused:
        return _refused(candidate, candidate.refused)
    try:
        result = simulate(
            model, candidate.plan, candidate.pod, placement=candidate.placement, input=given
        )
    except TpusimError as error:
        return _refused(candidate, str(error))
    return {
        "placement": str(result.placement),
        **{name: getattr(result, name) for name in RESULT_NUMBERS},
        "fit": str(result.fit),
        "fit_odds": None if result.hbm_odds is None else result.hbm_odds.fits,
        **_ranges(result),
        **_breakdown(result),
        "status": PLAN_FITS if result.fits else PLAN_TOO_LARGE,
        "reason": "" if result.fits else verdict_reason(result),
    }


def _ranges(result: PlanResult) -> dict[str, float | None]:
    """Return the ends of the ranges of step time and MFU; None under the lowering `ideal`."""
    found = result.error_range
    if found is None:
        return dict.fromkeys(RANGE_COLUMNS)
    ends = (*found.of(result.step_time_s), *found.of_rate(result.mfu))
    return dict(zip(RANGE_COLUMNS, ends, strict=True))


def _refused(candidate: SweepCandidate, reason: str) -> SweepRow:
    return {
        "placement": str(candidate.placement or ""),
        "hbm_bytes": candidate.pod.chip.device.hbm_usable_bytes,
        "fits": False,
        "fit": "",
        "status": PLAN_REFUSED,
        "reason": reason,
    }


def breakdown_labels(axes: Iterable[str]) -> tuple[str, ...]:
    """Return all labels a breakdown can have: work, and exposed communication over any of `axes`.

    They depend on the axes alone, so every part of a sweep has the same columns. Axes of one label
    are in alphabetical order.
    """
    names = sorted(axes)
    groups = [group for size in range(1, len(names) + 1) for group in combinations(names, size)]
    exposed = ["+".join(group) for group in groups] + [HOST_LABEL, DISPATCH, INPUT]
    if any(axis.startswith(DCN_PREFIX) for axis in names):
        exposed.append(SKEW)
    bubble = (BUBBLE_LABEL,) if any(axis in STAGE_AXES for axis in names) else ()
    return (*COMPUTE_LABELS, *bubble, *(EXPOSED + label for label in exposed))


def _breakdown(result: Result) -> Mapping[str, float]:
    """Return the seconds of each label that occurs; they sum to the step time."""
    seconds: dict[str, float] = {}
    for label, part in result.breakdown_s.items():
        name = with_sorted_axes(label)
        seconds[name] = seconds.get(name, 0.0) + part
    return seconds
