"""Writes `bounds.csv`: for each run, the size of today's error plus 2 points.

Bounds only become tighter. A run whose prediction became worse is named on the command line:

    python tests/validation/bounds.py --loosen TR-v6e-GPT3-bf16
"""

import argparse
import csv
from collections.abc import Collection
from pathlib import Path

from tpusim.validation import Validation, validate_file

HERE = Path(__file__).parent
RUNS, BOUNDS = HERE / "training_runs.csv", HERE / "bounds.csv"
HEADROOM = 0.02
SLACK = 0.01
"""Fractions of the measured time: above today's error, and how much laxer a bound may be."""

Bounds = dict[str, float | None]


def read_bounds() -> Bounds:
    if not BOUNDS.exists():
        return {}
    with BOUNDS.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return {row["id"]: float(row["bound"]) if row["bound"] else None for row in rows}


def todays_bounds(validation: Validation) -> Bounds:
    return {
        one.run.id: None if one.error is None else round(abs(one.error) + HEADROOM, 4)
        for one in validation.outcomes
    }


def new_bounds(old: Bounds, today: Bounds, loosen: Collection[str]) -> Bounds:
    """Today's bounds, but no laxer than the old ones except for the runs in `loosen`."""
    return {name: _new(old.get(name), bound, name in loosen) for name, bound in today.items()}


def _new(old: float | None, today: float | None, loosen: bool) -> float | None:
    if old is None or loosen:
        return today
    return old if today is None else min(old, today)


def write_bounds(bounds: Bounds) -> None:
    with BOUNDS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("id", "bound"))
        writer.writerows((name, "" if bound is None else bound) for name, bound in bounds.items())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write bounds.csv.")
    parser.add_argument("--loosen", nargs="*", default=(), metavar="ID")
    loosen = parser.parse_args().loosen
    today = todays_bounds(validate_file(RUNS))
    unknown = sorted(set(loosen) - set(today))
    if unknown:
        parser.error(f"no run is called {', '.join(unknown)}")
    bounds = new_bounds(read_bounds(), today, loosen)
    write_bounds(bounds)
    for name, bound in bounds.items():
        if bound is not None and (today[name] is None or bound < today[name]):
            print(f"{name}: worse than its bound allows; --loosen {name} accepts it")


if __name__ == "__main__":
    main()
