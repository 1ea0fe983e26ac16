"""Fit the host times of an engine without one family of runs, and predict that family.

python experiments/serving/left_out.py TABLE.csv ENGINE_PRESET...

The fitted constants of a preset are searched on a grid. For each family, the point with the least
error on the others, the median of the families' means, predicts its times per token; what the
preset itself predicts stands beside it. One family that is far off does not choose the constants.
Errors of several presets are also shown together.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, median

import numpy as np
from errors import RowError, row_errors
from predictions import predict_setup
from row_setup import RowSetup, row_setup
from serving_row import ServingRow, read_table

from tpusim.base.errors import TpusimError
from tpusim.serving.engines import Engine
from tpusim.serving.engines.presets import presets

BETWEEN = {
    "host_s": (0.0, 0.5e-3, 1.5e-3, 3e-3),
    "sequence_s": (0.0, 35e-6, 70e-6),
}
BESIDE = {
    "host_s": (0.0, 0.5e-3, 1.5e-3),
    "schedule_s": (3e-3, 4.5e-3, 7e-3),
    "sequence_s": (50e-6, 100e-6),
    "page_s": (0.0, 65e-9),
}
"""Values of the constants, in seconds: of hosts that work between steps, and beside the devices.

A page has one time for all presets, which each family of SGLang-JAX of 2025 gives without the
other: 65 ns. Where it is not listed, it is kept.
"""

HOST_FACTS = ("host_s", "schedule_s", "sequence_s", "page_s")

FITTED = ("itl_p50_s", "tpot_mean_s", "tpot_p50_s")

Point = tuple[float, ...]
Errors = Mapping[Point, Mapping[str, list[float]]]
"""Absolute errors by point of the grid and family."""


def main() -> None:
    """Print the errors of each family, and the constants that the others choose for it."""
    arguments = _arguments()
    pooled: dict[str, list[float]] = {}
    try:
        rows = read_table(arguments.table)
        for preset in arguments.presets:
            for name, sizes in _fitted(list(_setups(rows, preset)), preset).items():
                pooled.setdefault(name, []).extend(sizes)
    except TpusimError as error:
        raise SystemExit(f"error: {error}") from error
    if len(arguments.presets) > 1:
        print("together")
        _summary(pooled)


def _fitted(setups: list[RowSetup], preset: str) -> dict[str, list[float]]:
    """Print the errors of a preset; return those left out, and those of its own constants."""
    if len({setup.row.family for setup in setups}) < 2:
        raise SystemExit(f"error: {preset} has not two families with times per token")
    grid = BESIDE if setups[0].engine.schedule_s else BETWEEN
    errors = {point: _errors(setups, grid, point) for point in product(*grid.values())}
    own = tuple(getattr(setups[0].engine, key) for key in grid)
    print(f"{preset}: {', '.join(grid)} of {_shown(own)}")
    return _print(errors, _errors(setups, grid, own))


def _setups(rows: Iterable[ServingRow], preset: str) -> Iterator[RowSetup]:
    for row in rows:
        measured = any(row.text(column) for column in FITTED)
        if not row.judged or not measured or row.text("arrival") == "static":
            continue
        setup = row_setup(row)
        if setup.engine.name == preset or _has_host_of(setup.engine, preset):
            yield setup


def _has_host_of(engine: Engine, preset: str) -> bool:
    """Return True for an engine whose host times are those of a preset that it is like."""
    own, other = engine.facts, presets()[preset].facts
    return all(own.get(key) is not None and own[key] == other.get(key) for key in HOST_FACTS)


def _errors(
    setups: Iterable[RowSetup], grid: Iterable[str], point: Point
) -> dict[str, list[float]]:
    """Return the absolute errors of each family with these constants."""
    found: dict[str, list[float]] = {}
    for setup in setups:
        given = dict(zip(grid, point, strict=True))
        plan = replace(setup.plan, page_s=given.get("page_s", setup.plan.page_s))
        changed = replace(setup, plan=plan, engine=setup.engine.changed(**given))
        own = found.setdefault(setup.row.family, [])
        own += [abs(each.error) for each in _row(changed)]
    return found


def _row(setup: RowSetup) -> Iterator[RowError]:
    predicted = predict_setup(setup, FITTED)
    return (each for each in row_errors(setup.row, predicted, ()) if each.metric in FITTED)


def _print(errors: Errors, stored: Mapping[str, list[float]]) -> dict[str, list[float]]:
    left_out: list[float] = []
    print(f"{'family left out':40} rows  left out  preset")
    for family in stored:
        best = min(errors, key=lambda point: _error_of_others(errors[point], family))
        left_out += errors[best][family]
        shares = f"{median(errors[best][family]):7.1%}  {median(stored[family]):6.1%}"
        print(f"{family:40} {len(stored[family]):4}  {shares}  {_shown(best)}")
    fitted = [each for family in stored.values() for each in family]
    found = {"left out by family": left_out, "preset": fitted}
    _summary(found)
    return found


def _summary(found: Mapping[str, list[float]]) -> None:
    for name, sizes in found.items():
        at = f"median {median(sizes):.1%}, p90 {np.quantile(sizes, 0.9):.1%}"
        print(f"{name}: {len(sizes)} times, {at}")


def _error_of_others(errors: Mapping[str, list[float]], family: str) -> float:
    return median(fmean(sizes) for other, sizes in errors.items() if other != family)


def _shown(point: Point) -> str:
    return ", ".join(f"{value * 1e6:g} us" for value in point)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("table", type=Path, help="one row a run, one column a fact")
    parser.add_argument("presets", nargs="+", help="names of presets, such as sglang-jax")
    return parser.parse_args()


if __name__ == "__main__":
    main()
