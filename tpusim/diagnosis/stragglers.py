"""What varies in a profile as the stragglers of a training run, and as a section of its file."""

from collections.abc import Iterator

from tpusim.base.toml_text import toml_pairs
from tpusim.diagnosis.measured import MeasuredSteps
from tpusim.diagnosis.variation import (
    LEAST_VARIATION,
    SLOW_DEVICE,
    pauses,
    variation,
    work_by_device,
)
from tpusim.profiles.profile import PS
from tpusim.training import HostPauses, SlowChips, Stragglers

DIGITS = 3
"""Significant digits of a measured number."""

MOST_PAUSED = 0.9
"""Of the time of the steps that late pauses may take and still be stragglers."""


def measured_stragglers(steps: MeasuredSteps) -> Stragglers | None:
    """Return what varies in a profile as stragglers that go on alike; None for none.

    A device whose own work takes longer than that of others is a slow chip all the time; without
    one, slow steps are slow chips for their share of the time. Late pauses between steps are pauses
    of all hosts at once, as a profile of devices does not say which host was late.
    """
    least = LEAST_VARIATION * int(steps.mean()["measured_ps"].sum())
    kinds = {each.kind for each in variation(steps) if each.picoseconds >= least}
    chips = _slow_chip(steps) if "slow device" in kinds else None
    if chips is None and "slow steps" in kinds:
        chips = _slow_steps(steps)
    late = _late_hosts(steps) if "late host" in kinds else None
    return Stragglers(chips=chips, pauses=late) if chips or late else None


def section_lines(stragglers: Stragglers) -> Iterator[str]:
    """Yield the section [stragglers] of a run file."""
    yield "[stragglers]"
    yield from toml_pairs(stragglers.written)


def _slow_chip(steps: MeasuredSteps) -> SlowChips | None:
    """Return the slowest device: all of its work takes longer by the same factor."""
    times = work_by_device(steps)
    middle, worst = float(times.quantile(0.5, interpolation="lower")), float(times.max())
    if worst <= SLOW_DEVICE * middle:
        return None
    left = _rounded(middle / worst)
    return SlowChips(time_share=1.0, compute=left, hbm=left)


def _slow_steps(steps: MeasuredSteps) -> SlowChips:
    runs = steps.executions
    slow = runs[runs["slow"]]["duration_ps"]
    longer = float(slow.mean() / steps.typical["duration_ps"].mean())
    share = float(slow.sum() / runs["duration_ps"].sum())
    return SlowChips(time_share=_rounded(share), slowdown=_rounded(longer))


def _late_hosts(steps: MeasuredSteps) -> HostPauses | None:
    """Return the late pauses as devices see them, so that no lead hides a part of them.

    None where they come one upon another: then hosts are too slow, and no stragglers.
    """
    gaps, late = pauses(steps)
    hours = float(steps.executions["duration_ps"].mean()) * len(gaps) * PS / 3600
    length = float(late.mean() - gaps.drop(late.index).median()) * PS
    if len(gaps) == len(late) or length * len(late) > MOST_PAUSED * 3600 * hours:
        return None
    return HostPauses(
        per_hour=_rounded(len(late) / hours),
        seconds=_rounded(length),
        synchronised=True,
        lead_s=0.0,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
