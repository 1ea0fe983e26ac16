"""Steps and devices that differ, before anything is averaged."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from tpusim.diagnosis.finding import Finding, duration, more, spelled
from tpusim.diagnosis.kinds import COLLECTIVES, INPUT, WAITS
from tpusim.diagnosis.measured import MeasuredSteps

SLOW_DEVICE, SLOW_LINK = 1.03, 1.2
"""The work of a device over the median of all, from which it is slow; its time in collectives."""

ONE_CAUSE, LEAST_SHARE = 0.5, 0.1
"""Shares of what slow steps take longer: of an operation that is named alone, and of a kind."""

LEAST_VARIATION = 0.005
"""Of a step: what varies by less is not looked at."""

LATE = 3.0
"""A pause between steps is late if it takes so many times the median of all pauses."""


def variation(steps: MeasuredSteps, predicted_ps: int = 0) -> Iterator[Finding]:
    """Yield slow steps, slow devices, and waits for the host and for the input.

    predicted_ps: predicted waits for the host and the input, which are no finding.
    """
    yield from _slow_steps(steps)
    yield from _slow_devices(steps)
    for finding in (*_between(steps), *_input(steps)):
        if finding.picoseconds > predicted_ps:
            yield replace(finding, picoseconds=finding.picoseconds - predicted_ps)


def _slow_steps(steps: MeasuredSteps) -> Iterator[Finding]:
    runs = steps.executions
    slow = runs[runs["slow"]]
    if slow.empty:
        return
    typical = steps.typical["duration_ps"].mean()
    longer = int((slow["duration_ps"] - typical).sum())
    numbers = runs.groupby("device")["step"].rank().astype(int)[slow.index].unique()
    count = int(runs.groupby("device").size().max())
    which, most, each = f"{len(numbers)} of {count} steps take", "up to ", " each"
    if len(numbers) == 1:
        which, most, each = f"step {numbers[0]} of {count} takes", "", ""
    text = (
        f"{which} {most}{slow['duration_ps'].max() / typical:.2f} times as long as the others: "
        f"{more(longer / len(slow))}{each}, {_grown(steps, slow, longer)}"
    )
    yield Finding("slow steps", round(longer / len(runs)), text)


def _grown(steps: MeasuredSteps, slow: pd.DataFrame, longer: float) -> str:
    """Return what takes the time that slow executions take longer, in words."""
    mine, rest = (steps.picoseconds(runs, "operation") for runs in (slow, steps.typical))
    grown = mine.sub(rest * (len(slow) / len(steps.typical)), fill_value=0)
    if grown.max() >= ONE_CAUSE * longer:
        return f"of which `{grown.idxmax()}` takes {min(grown.max() / longer, 1):.0%}"
    kinds = grown.groupby(steps.facts["kind"].reindex(grown.index)).sum() / longer
    most = kinds[kinds >= LEAST_SHARE].sort_values(ascending=False).head(3)
    if most.empty:
        return "in no operation: the core is idle"
    return "of which " + spelled([f"{kind} {share:.0%}" for kind, share in most.items()])


def _slow_devices(steps: MeasuredSteps) -> Iterator[Finding]:
    """Yield a finding for devices that work for longer than others, or else wait for longer."""
    if steps.devices < 2:
        return
    collectives = steps.facts["kind"].isin(COLLECTIVES)
    for does, times, factor, why in (
        ("works", work_by_device(steps), SLOW_DEVICE, "the others wait in collectives"),
        ("is in collectives", _by_device(steps, collectives), SLOW_LINK, "its links are slow"),
    ):
        middle = float(times.quantile(0.5, interpolation="lower"))
        slow = times[times > factor * middle]
        if len(slow):
            worst = float(slow.max())
            names = spelled([*map(str, slow.index)]) + ", each" * (len(slow) > 1)
            yield Finding(
                "slow device",
                round(worst - middle),
                f"{names} {does} for {duration(worst)} per step and the other devices for "
                f"{duration(middle)}, {worst / middle:.2f} times as long; {why}",
            )
            return


def work_by_device(steps: MeasuredSteps) -> pd.Series:
    """Return the picoseconds of each device's own work, in its mean step."""
    return _by_device(steps, ~steps.facts["kind"].isin(WAITS))


def _by_device(steps: MeasuredSteps, mine: pd.Series) -> pd.Series:
    """Return the picoseconds of each device in its mean step, in the operations that are mine."""
    typical = steps.typical
    own = steps.picoseconds(typical, "device", "operation").reset_index()
    own = own[own["operation"].map(mine)]
    times = own.groupby("device", observed=True, sort=False)["self_ps"].sum()
    return times / typical.groupby("device", sort=False).size().reindex(times.index)


def pauses(steps: MeasuredSteps) -> tuple[pd.Series, pd.Series]:
    """Return the picoseconds of all pauses between steps, and of those that are late.

    None is late unless late ones take most of the time of all.
    """
    runs = steps.executions
    order = runs.groupby("device", sort=False).cumcount()
    known = runs["gap_ps"] >= 0
    gaps = runs[known].groupby(order[known])["gap_ps"].mean()
    late = gaps[gaps > LATE * max(gaps.median(), 1)]
    return gaps, late if late.sum() > 0.5 * gaps.sum() else late[:0]


def _between(steps: MeasuredSteps) -> Iterator[Finding]:
    gaps, late = pauses(steps)
    if gaps.empty or not gaps.sum():
        return
    mean, middle = gaps.mean(), gaps.median()
    if len(late):
        text = (
            f"{len(late)} of {len(gaps)} pauses between steps {'is' if len(late) == 1 else 'are'} "
            f"late, up to {duration(gaps.max())} (median {duration(middle)}): devices wait for "
            "the host, or for its input"
        )
        yield Finding("late host", round(mean), text)
        return
    text = (
        f"devices wait {duration(mean)} between steps for the host: for the next input, or for "
        "the call of the next step"
    )
    yield Finding("host", round(mean), text)


def _input(steps: MeasuredSteps) -> Iterator[Finding]:
    times = steps.picoseconds(steps.executions, "operation")
    times = times[steps.facts["kind"].reindex(times.index) == INPUT]
    if times.sum():
        mean = times.sum() / len(steps.executions)
        text = f"`{times.idxmax()}` waits {duration(mean)} per step for the input of the hosts"
        yield Finding("input", round(mean), text)
