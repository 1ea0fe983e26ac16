"""Prints the runs whose prediction moved between two validations, as a Markdown table.

Run it as `python tests/validation/moved.py BEFORE/validation.csv AFTER/validation.csv`.
"""

import argparse
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

SMALLEST_MOVE = 0.03
"""Fraction of the prediction before; smaller moves are left out."""

Row = Mapping[str, str]


def read_outcomes(path: Path) -> dict[str, Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def moved_table(before: Mapping[str, Row], after: Mapping[str, Row]) -> Iterator[str]:
    """Yield the lines of the table: runs in both that moved, or became simulated or refused."""
    yield "| run | measured | before | after | error before | after | moved |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name in (each for each in after if each in before):
        old, new = before[name], after[name]
        times = [float(row["predicted_s"]) if row["predicted_s"] else None for row in (old, new)]
        move = times[1] / times[0] - 1 if times[0] and times[1] else None
        if times[0] is times[1] is None or (move is not None and abs(move) <= SMALLEST_MOVE):
            continue
        cells = (
            f"{float(new['measured_s']):.4g} s",
            *("-" if time is None else f"{time:.4g} s" for time in times),
            *(_signed(float(row["error"]) if row["error"] else None) for row in (old, new)),
            _signed(move),
        )
        yield f"| {name} | {' | '.join(cells)} |"


def _signed(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:+.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the runs whose prediction moved.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    given = parser.parse_args()
    print("\n".join(moved_table(*map(read_outcomes, (given.before, given.after)))))


if __name__ == "__main__":
    main()
