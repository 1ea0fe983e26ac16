"""Writes `bounds.csv`: how wrong sets of runs may be.

A bound is today's statistic and one point, and bounds only fall. A set of runs that became worse
is named on the command line, with the reason in the changelog:

    python tests/validation/bounds.py --loosen MoE
"""

import argparse
import csv
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tpusim.accuracy import COVERAGE
from tpusim.validation import Validation, validate

HERE = Path(__file__).parent
MEASURED = HERE.parent / "measured"
RUNS, BOUNDS = MEASURED / "runs" / "calibration", HERE / "bounds.csv"
STATISTICS = (
    *("median_abs_error", "mean_abs_error", "p90_abs_error", "mean_error"),
    *("median_half_width", "miscoverage"),
)
FEWEST_RUNS = 5
"""Smaller sets have no bounds: they would be bounds of single runs."""
FEWEST_COVERED = 40
"""Smaller sets have no bound on miscoverage, in which one run counts more than 2.5 points."""
HEADROOM = 0.01
SLACK = 0.01
"""Fractions: above today's statistic, and how much laxer than that a bound may be."""
SMALLEST_BIAS = 0.02
"""A smaller bias counts as this fraction: errors of opposite sign cancel by luck."""
SMALLEST_MISCOVERAGE = 0.05
"""What less of the 80 % is missing counts as this fraction."""
LARGEST_ERROR = 0.7
"""No run may be further off than this fraction of its measured time. The aim is 0.60."""

Bounds = dict[tuple[str, str], float]


def sets_of(validation: Validation) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield name and statistics of each set that has bounds: all, chips, families, kinds."""
    found = validation.statistics
    groups = [("all", found)]
    groups += [pair for by in ("chip", "family", "kind") for pair in found[f"by_{by}"].items()]
    yield from ((name, group) for name, group in groups if group["runs"] >= FEWEST_RUNS)


def todays_sizes(validation: Validation) -> Bounds:
    """Return each statistic by set and name; the bias counts without its sign.

    Miscoverage is what `coverage_80` lacks of 80 %. It has no upper side: ranges that hold 80 % of
    the runs to come hold more of the known ones (test_ranges_by_time.py has both sides).
    """
    return {
        (name, statistic): _size(statistic, group)
        for name, group in sets_of(validation)
        for statistic in STATISTICS
        if statistic != "miscoverage" or group["runs"] >= FEWEST_COVERED
    }


def _size(statistic: str, group: Mapping[str, float]) -> float:
    if statistic == "miscoverage":
        return max(COVERAGE - group["coverage_80"], SMALLEST_MISCOVERAGE)
    value = group[statistic]
    return max(abs(value), SMALLEST_BIAS) if statistic == "mean_error" else value


def new_bounds(old: Bounds, sizes: Bounds, loosen: Collection[str] = ()) -> Bounds:
    """Return today's bounds, but none laxer than the old ones except in the sets in `loosen`."""
    return {
        key: bound if key[0] in loosen else min(bound, old.get(key, bound))
        for key, bound in ((key, round(size + HEADROOM, 4)) for key, size in sizes.items())
    }


def read(path: Path) -> Bounds:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
        return {(name, statistic): float(bound) for name, statistic, bound in rows}


def write(path: Path, bounds: Bounds) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("set", "statistic", "bound"))
        writer.writerows((*key, bound) for key, bound in bounds.items())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write bounds.csv.")
    parser.add_argument("--loosen", nargs="*", default=(), metavar="SET")
    loosen = parser.parse_args().loosen
    today = todays_sizes(validate(RUNS))
    if unknown := sorted(set(loosen) - {name for name, _ in today}):
        parser.error(f"no set is called {', '.join(unknown)}")
    bounds = new_bounds(read(BOUNDS), today, loosen)
    write(BOUNDS, bounds)
    for (name, statistic), bound in bounds.items():
        if today[name, statistic] > bound:
            print(f"{statistic} of {name} is worse; --loosen '{name}' accepts it")


if __name__ == "__main__":
    main()
