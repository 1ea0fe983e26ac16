"""Calibrate on one run of a family and predict the others: does it help, and by how much?

python experiments/own_calibration/run.py RUNS --out DIR [--most N]

RUNS is a folder of run files with a section [measured]; runs with one `family` and one chip are
those of one user. Each run of them is the calibration once, each other one the prediction.
"""

import argparse
from collections.abc import Iterator
from itertools import combinations, islice
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tpusim as ts
from tpusim.accuracy import MeasuredErrors, Residual, RunFeatures, residuals
from tpusim.accuracy.residuals import OWN
from tpusim.hardware import Calibration
from tpusim.runfile import SimulationRun
from tpusim.validation.measured_runs import measured_runs


def main() -> None:
    """Write `own_calibration.csv` and `families.csv`, and print the second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=1, help="Runs of a calibration.")
    arguments = parser.parse_args()
    table = pd.DataFrame(pairs(arguments.runs, arguments.most))
    arguments.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(arguments.out / "own_calibration.csv", index=False, float_format="%.5g")
    found = by_family(table)
    found.to_csv(arguments.out / "families.csv", float_format="%.5g")
    print(found.to_string(float_format="{:.2f}".format))
    print(f"\n{better(found)}, by the mean error")
    for name, one in ranges(table).groupby("range"):
        print(
            f"range {name}: holds {one['inside'].mean():.1%} of the families' runs, "
            f"half-width {one['half_width'].mean():.1%} (means of families)"
        )


def better(found: pd.DataFrame) -> str:
    """Return how many families have a smaller mean error, in words."""
    less = found["after"] < found["before"]
    return f"{less.sum()} of {len(found)} families are better"


def ranges(table: pd.DataFrame) -> pd.DataFrame:
    """Return how the ranges of the others do, without and with the calibration's runs in them.

    The runs of the family are in neither, but for those of the calibration.
    """
    family = dict(zip(table["run"], table["family"], strict=True))
    rows = []
    for (name, learnt), group in table.groupby(["family", "learnt_from"]):
        left = [row for row in residuals() if family.get(row.id) != name]
        own = [residual(row) for row in group[group["learnt"]].to_dict("records")]
        kinds = {"before": MeasuredErrors(left), "after": MeasuredErrors([*left, *own])}
        for other in group[~group["learnt"]].to_dict("records"):
            for when, errors in kinds.items():
                found = errors.range(residual(other).features)
                inside = log(found.low) <= other[when] <= log(found.high)
                rows.append((name, learnt, when, inside, found.half_width))
    heads = ["family", "learnt_from", "range", "inside", "half_width"]
    means = pd.DataFrame(rows, columns=heads).groupby(["family", "range"])
    return means[["inside", "half_width"]].mean().reset_index()


def residual(row: dict[str, Any]) -> Residual:
    """Return a run as a calibration leaves it over."""
    features = RunFeatures(**{name: row[name] for name in RunFeatures.__dataclass_fields__})
    return Residual(row["run"], OWN, features, row["after"])


def pairs(folder: Path, most: int) -> Iterator[dict[str, object]]:
    """Yield each other run of a family and chip, before and after a calibration on `most` runs."""
    groups: dict[tuple[str, str], list[SimulationRun]] = {}
    for run in measured_runs(folder):
        if run.given is not None and run.measured.family:
            groups.setdefault((run.measured.family, run.chip), []).append(run.given)
    for (family, chip), runs in groups.items():
        before = {run.where: ratio(run, None) for run in runs}
        for some in islice(combinations(runs, most), 40):
            if len(some) == len(runs):
                continue
            made = ts.calibrate(list(some))
            for run in runs:
                after, features = ratio(run, made)
                yield {
                    "family": family,
                    "chip": chip,
                    "learnt_from": " ".join(each.where for each in some),
                    "run": run.where,
                    "learnt": run in some,
                    "before": before[run.where][0],
                    "after": after,
                    **{name: getattr(features, name) for name in RunFeatures.__dataclass_fields__},
                }


def ratio(run: SimulationRun, made: Calibration | None) -> tuple[float, RunFeatures]:
    """Return the logarithm of measured over predicted time, and the features of the prediction."""
    pod = run.pod if made is None else run.pod.changed(chip=run.pod.chip.calibrated(made))
    result = ts.simulate(run.model, run.plan, pod, input=run.input)
    assert run.measured is not None
    return log(run.measured.step_s / result.step_time_s), result.features


def by_family(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean absolute error of the other runs, in per cent, before and after."""
    others = table[~table["learnt"]]
    errors = 100 * np.expm1(-others[["before", "after"]]).abs()
    found = errors.groupby(others["family"]).mean()
    found.insert(0, "pairs", others.groupby("family").size())
    return found


if __name__ == "__main__":
    main()
