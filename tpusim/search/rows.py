"""One candidate becomes one row. What worker processes run: it loads no pandas."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from tpusim.costs.bind import HOST, SKEW
from tpusim.costs.host import DISPATCH, INPUT
from tpusim.errors import TpusimError
from tpusim.hardware import Slice
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.models import Transformer
from tpusim.partition.plan import STAGE_AXES
from tpusim.result import BUBBLE, COMPUTE_LABELS, EXPOSED, Result
from tpusim.search.space import Candidate, shaped
from tpusim.simulation import simulate
from tpusim.summary import infeasible_reason

Row = dict[str, Any]

OK, TOO_LARGE, REFUSED = "ok", "does not fit", "refused"
NUMBERS = (
    *("step_time_s", "mfu", "hfu", "tokens_per_s"),
    *("hbm_peak_bytes", "hbm_bytes", "fits", "exposed_s"),
)


def rows(model: Transformer, pod: Slice, chunk: Sequence[Candidate]) -> list[Row]:
    """What each candidate of a chunk gives, in their order."""
    return [outcome(model, pod, candidate) for candidate in chunk]


def outcome(model: Transformer, pod: Slice, candidate: Candidate) -> Row:
    """The numbers of a candidate under the names of `Result`, its breakdown, status and reason.

    A plan that does not fit has its numbers and a reason; one that model or slice refuse has a
    reason alone.
    """
    pod = shaped(pod, candidate.shape)
    if candidate.refused:
        return _refused(pod, candidate, candidate.refused)
    try:
        result = simulate(model, candidate.plan, pod, placement=candidate.placement)
    except TpusimError as error:
        return _refused(pod, candidate, str(error))
    return {
        "placement": str(result.placement),
        **{name: getattr(result, name) for name in NUMBERS},
        **_breakdown(result),
        "status": OK if result.fits else TOO_LARGE,
        "reason": "" if result.fits else infeasible_reason(result),
    }


def _refused(pod: Slice, candidate: Candidate, reason: str) -> Row:
    return {
        "placement": str(candidate.placement or ""),
        "hbm_bytes": pod.chip.device.hbm_usable_bytes,
        "fits": False,
        "status": REFUSED,
        "reason": reason,
    }


def labels(axes: Iterable[str]) -> tuple[str, ...]:
    """The labels that a breakdown can have: the work, and what is exposed over any of `axes`.

    They depend on the axes alone, so that every part of a sweep has the same columns. Axes of one
    label are in alphabetical order.
    """
    names = sorted(axes)
    groups = [group for size in range(1, len(names) + 1) for group in combinations(names, size)]
    exposed = ["+".join(group) for group in groups] + [HOST, DISPATCH, INPUT]
    if any(axis.startswith(DCN_PREFIX) for axis in names):
        exposed.append(SKEW)
    bubble = (BUBBLE,) if any(axis in STAGE_AXES for axis in names) else ()
    return (*COMPUTE_LABELS, *bubble, *(EXPOSED + label for label in exposed))


def _breakdown(result: Result) -> Mapping[str, float]:
    """The seconds of the labels that occur; sums to the step time."""
    seconds: dict[str, float] = {}
    for label, part in result.breakdown_s.items():
        name = _sorted(label)
        seconds[name] = seconds.get(name, 0.0) + part
    return seconds


def _sorted(label: str) -> str:
    if not label.startswith(EXPOSED):
        return label
    return EXPOSED + "+".join(sorted(label.removeprefix(EXPOSED).split("+")))
