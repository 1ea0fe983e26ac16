"""The core's time in one layer of a profile, and in the same layer of its prediction."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tpusim.diagnosis.measured import MeasuredSteps
from tpusim.diagnosis.predicted import core_bars
from tpusim.profiles import Profile
from tpusim.report.figures.two_timelines import CoreBar
from tpusim.results import PlanResult, Result

MOST_BARS = 5000


def layer_timelines(
    profile: Profile, steps: MeasuredSteps, result: Result | None, kinds: Mapping[str, str]
) -> tuple[str, Mapping[str, Sequence[CoreBar]]]:
    """Return the name of a layer, and the bars of its core by side: measured, and predicted.

    It is the middle one of those that the profile knows, in the pass that takes longest; the whole
    step if it knows none. kinds: of the profile's operations.
    """
    frame = _first_execution(profile, steps)
    layer, rows = _longest_run(frame)
    measured = [
        CoreBar(str(name), kinds.get(str(name), ""), int(start), int(own))
        for name, start, own in zip(
            rows["operation"],
            rows["start_ps"] - rows["start_ps"].min(),
            rows["self_ps"],
            strict=True,
        )
        if own > 0
    ]
    sides = {"measured": measured[:MOST_BARS]}
    if result is not None:
        known = {bar.operation for bar in measured}
        transposed = None if isinstance(result, PlanResult) else steps.transposed
        predicted = _same_run(core_bars(result, transposed), layer, known)
        sides["predicted"] = _from_zero(predicted)[:MOST_BARS]
    where = "the step" if layer < 0 else f"layer {layer}"
    return where, {name: bars for name, bars in sides.items() if bars}


def _first_execution(profile: Profile, steps: MeasuredSteps) -> pd.DataFrame:
    run = steps.typical.iloc[0]
    table = profile.operations
    mine = (table["device"] == run["device"]) & (table["step"] == run["step"])
    frame: pd.DataFrame = table[mine & ~table["asynchronous"] & (table["program"] == steps.program)]
    names = steps.operation_of.reindex(frame["instruction"].astype("object"))
    frame = frame.assign(operation=names.to_numpy())
    return frame.sort_values("start_ps")


def _runs(layers: np.ndarray) -> np.ndarray:
    """Return the number of the run that each row is in: rows of one layer without another's.

    Rows of no layer belong to the run before them.
    """
    known = pd.Series(layers).where(layers >= 0).ffill().fillna(-1)
    return np.asarray((known != known.shift()).cumsum())


def _longest_run(frame: pd.DataFrame) -> tuple[int, pd.DataFrame]:
    """Return the middle layer, and its rows in the pass that takes longest; all rows for none."""
    inside = frame[frame["layer"] >= 0]
    if inside["self_ps"].sum() < 0.5 * frame["self_ps"].sum():
        return -1, frame
    layer = int(np.sort(inside["layer"].unique())[inside["layer"].nunique() // 2])
    runs = _runs(frame["layer"].to_numpy())
    mine = frame.assign(run=runs)
    mine = mine[mine["layer"] == layer]
    longest = mine.groupby("run")["self_ps"].sum().idxmax()
    return layer, mine[mine["run"] == longest]


def _same_run(
    bars: Sequence[tuple[int, CoreBar]], layer: int, known: set[str]
) -> Sequence[CoreBar]:
    """Return the bars of a layer in the pass that has most of the known operations."""
    if layer < 0:
        return [bar for _, bar in bars]
    runs = _runs(np.array([number for number, _ in bars]))
    found: dict[int, list[CoreBar]] = {}
    for run, (number, bar) in zip(runs, bars, strict=True):
        if number == layer:
            found.setdefault(int(run), []).append(bar)
    lengths = {
        run: (sum(bar.operation in known for bar in mine), sum(bar.duration_ps for bar in mine))
        for run, mine in found.items()
    }
    return found[max(lengths, key=lambda run: lengths[run])] if found else []


def _from_zero(bars: Sequence[CoreBar]) -> list[CoreBar]:
    first = min((bar.start_ps for bar in bars), default=0)
    return [bar._replace(start_ps=bar.start_ps - first) for bar in bars]
