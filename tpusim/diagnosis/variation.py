"""Steps and devices that differ, before anything is averaged."""

from collections.abc import Iterator

import pandas as pd

from tpusim.base.units import format_seconds
from tpusim.diagnosis.finding import Finding, more, spelled
from tpusim.diagnosis.kinds import INPUT, WAITS
from tpusim.diagnosis.measured import MeasuredSteps
from tpusim.profiles.profile import PS

SLOW_DEVICE = 1.03
"""The work of a device over the median of all, from which it is slow."""

LATE = 3.0
"""A pause between steps is late if it takes so many times the median of all pauses."""


def variation(steps: MeasuredSteps) -> Iterator[Finding]:
    """Yield slow steps, slow devices, and waits for the host and for the input."""
    yield from _slow_steps(steps)
    yield from _slow_devices(steps)
    yield from _between(steps)
    yield from _input(steps)


def _slow_steps(steps: MeasuredSteps) -> Iterator[Finding]:
    runs = steps.executions
    slow = runs[runs["slow"]]
    if slow.empty:
        return
    typical = steps.typical["duration_ps"].mean()
    longer = int((slow["duration_ps"] - typical).sum())
    order = runs.groupby("device")["step"].rank().astype(int)[slow.index]
    numbers = sorted(set(order))
    count = int(runs.groupby("device").size().max())
    one = len(numbers) == 1
    which = (
        f"step {numbers[0]} of {count} takes" if one else f"{len(numbers)} of {count} steps take"
    )
    worst = slow["duration_ps"].max() / typical
    name, most = _cause(steps, slow)
    text = (
        f"{which} {'' if one else 'up to '}{worst:.2f} times as long as the others: "
        f"{more(longer / len(slow))}{'' if one else ' each'}, {_of_it(name, most, longer)}"
    )
    yield Finding("slow steps", round(longer / len(runs)), text)


def _of_it(name: str, most: float, longer: float) -> str:
    if most <= 0.05 * longer:
        return "spread over all operations or idle"
    return f"of which `{name}` takes {min(most / longer, 1):.0%}"


def _cause(steps: MeasuredSteps, slow: pd.DataFrame) -> tuple[str, float]:
    """Return the operation that grows most in slow executions, and its picoseconds in all."""
    mine = steps.operations.merge(slow[["device", "step"]], on=["device", "step"])
    rest = steps.operations.merge(steps.typical[["device", "step"]], on=["device", "step"])
    sums = (part.groupby("operation", observed=True)["self_ps"].sum() for part in (mine, rest))
    own, others = sums
    grown = own.sub(others * (len(slow) / len(steps.typical)), fill_value=0)
    return str(grown.idxmax()), float(grown.max())


def _slow_devices(steps: MeasuredSteps) -> Iterator[Finding]:
    """Yield a finding for devices whose work takes longer than that of the others."""
    if steps.devices < 2:
        return
    facts = steps.facts
    working = facts.index[~facts["kind"].isin(WAITS)]
    typical = steps.typical
    mine = steps.operations[steps.operations["operation"].isin(working)]
    mine = mine.merge(typical[["device", "step"]], on=["device", "step"])
    sums = mine.groupby("device", observed=True, sort=False)["self_ps"].sum()
    work = sums / typical.groupby("device", sort=False).size().reindex(sums.index)
    middle = work.quantile(0.5, interpolation="lower")
    slow = work[work > SLOW_DEVICE * middle]
    if slow.empty:
        return
    names = spelled([str(name) for name in slow.index])
    text = (
        f"{names} {'works' if len(slow) == 1 else 'work'} for {format_seconds(slow.max() * PS)} a "
        f"step and the other devices for {format_seconds(middle * PS)}, {slow.max() / middle:.2f} "
        "times as long; the others wait in collectives"
    )
    yield Finding("slow device", round(slow.max() - middle), text)


def _between(steps: MeasuredSteps) -> Iterator[Finding]:
    gaps = steps.executions["gap_ps"]
    gaps = gaps[gaps >= 0]
    if gaps.empty or not gaps.sum():
        return
    mean, middle = gaps.mean(), gaps.median()
    late = gaps[gaps > LATE * max(middle, 1)]
    if late.sum() > 0.5 * gaps.sum():
        text = (
            f"devices wait between steps for the host {len(late)} times in {len(gaps)}, up to "
            f"{format_seconds(gaps.max() * PS)} (median {format_seconds(middle * PS)}): its input "
            "or the host is late"
        )
        yield Finding("late host", round(mean), text)
        return
    text = (
        f"devices wait {format_seconds(mean * PS)} between steps for the host: for the next input, "
        "or for the call of the next step"
    )
    yield Finding("host", round(mean), text)


def _input(steps: MeasuredSteps) -> Iterator[Finding]:
    facts = steps.facts
    feeds = facts.index[facts["kind"] == INPUT]
    mine = steps.operations[steps.operations["operation"].isin(feeds)]
    total = int(mine["self_ps"].sum())
    if total:
        mean = total / len(steps.executions)
        text = f"`{feeds[0]}` waits {format_seconds(mean * PS)} a step for the input of the hosts"
        yield Finding("input", round(mean), text)
