"""Advice beside an exhaustive search over a grid.

    python experiments/advice/run.py [--out README.md]

For each run of `runs.py` the proposals of `tpusim advise`, beside the fastest plan of the grid that
fits (`grid.csv`, made by `grid.py` with the same code). Prints the table, and with `--out` writes
it between the marks of a file.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path

from runs import RUNS

from tpusim.results import Fit
from tpusim.results.proposal import Effort

HERE = Path(__file__).parent
MARKS = "<!-- advice -->", "<!-- /advice -->"
FIRST = 3
"""Proposals that count."""

HEAD = """\
| run | step | grid | of plans | advice | CPU |
| --- | ---: | ---: | ---: | --- | ---: |
"""


def seconds(value: float) -> str:
    """Return seconds to four digits."""
    return f"{value:.4g} s"


def row(name: str, grid: dict[str, str]) -> str:
    """Return the row of a run."""
    base = RUNS[name].simulated()
    began = time.process_time()
    made = base.advice().proposals[:FIRST]
    took = time.process_time() - began
    fitting = [each for each in made if each.fit is Fit.FITS]
    best_s = float(grid["best_s"])
    fastest = f"{seconds(best_s)} ({best_s / base.step_time_s - 1:+.1%})"
    cells = [
        f"{each.step_time_s:.4g} s ({-each.saves:+.1%}): {each.what}"
        for each in fitting
        if max(part.effort for part in each.parts) < Effort.NUMERICS
    ]
    return " | ".join(
        (
            f"| {name}",
            seconds(base.step_time_s) + ("" if base.fit is Fit.FITS else f", {base.fit}"),
            fastest if best_s < float("inf") else "none fits",
            grid["plans"],
            "<br>".join(cells) or "nothing",
            f"{took:.0f} s |",
        )
    )


def rows() -> Iterator[str]:
    """Yield the rows of the table."""
    with (HERE / "grid.csv").open(encoding="utf-8") as file:
        grid = {found["run"]: found for found in csv.DictReader(file)}
    for name in RUNS:
        line = row(name, grid[name])
        print(line, flush=True)
        yield line


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", metavar="FILE", type=Path)
    out = parser.parse_args().out
    table = HEAD + "\n".join(rows())
    if out is not None:
        text = out.read_text("utf-8")
        before, _, rest = text.partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        out.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}", "utf-8")


if __name__ == "__main__":
    main()
