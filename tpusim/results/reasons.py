"""Why a step takes as long as it does: what its program, timeline and slice show."""

from collections.abc import Iterator

from tpusim.results.operation_times import OperationTimes
from tpusim.results.reason import Reason, ReasonKind
from tpusim.results.result import Result
from tpusim.results.wait_reasons import wait_reasons
from tpusim.results.work_reasons import work_reasons

LEAST_SHARE = 0.02
MOST_REASONS = 5
"""The least fraction of the step that a reason is about, and the most reasons."""


def found_reasons(result: Result) -> tuple[Reason, ...]:
    """Return why a step takes as long as it does, without changes, the largest part first."""
    parts = OperationTimes(result)
    found = [*work_reasons(parts), *wait_reasons(parts), *_warned(result)]
    large = [reason for reason in found if reason.share >= LEAST_SHARE]
    return tuple(sorted(large, key=lambda reason: -reason.share)[:MOST_REASONS])


def _warned(result: Result) -> Iterator[Reason]:
    """Yield what the step loses to its sharding; of FLOPs, as a part of the time of matmuls."""
    matmul = result.breakdown_s.get("matmul", 0.0) / result.step_time_s
    for warning in result.warnings():
        kind = ReasonKind(warning.kind)
        share = warning.share if kind is ReasonKind.RESHARDING else warning.share * matmul
        evidence = {"share": warning.share}
        yield Reason(kind=kind, share=share, because=warning.what, evidence=evidence)
