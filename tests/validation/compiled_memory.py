"""Predicted HBM of the plans that the TPU compiler was given, against what it reported.

    python tests/validation/compiled_memory.py [--loosen PLAN ...]

writes `compiled_memory_bounds.csv` (the size of today's error plus 1 point; bounds only become
tighter, except for the plans that are named) and the table in experiments/compiled_memory.
"""

import argparse
import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tpusim as ts
from tpusim.results import Result

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "experiments" / "compiled_memory"
REPORTS, BOUNDS = HERE / "compiled_memory.json", HERE / "compiled_memory_bounds.csv"
HEADROOM = 0.01
SLACK = 0.005
"""Fractions of the compiler's total: above today's error, and how much laxer a bound may be."""

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Compared:
    """One plan: the compiler's report and the simulated step."""

    name: str
    report: dict[str, Any]
    result: Result

    @property
    def ratio(self) -> float:
        """Predicted over reported bytes."""
        return self.result.hbm_peak_bytes / int(self.report["total"])

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)

    @property
    def accepted(self) -> bool:
        """True if the compiler accepted the program."""
        return bool(self.report["verdict"] == "fits")


@cache
def _stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(REPORTS.read_text("utf-8"))
    return found


def reports() -> dict[str, dict[str, Any]]:
    """The compiler's report for each plan."""
    plans: dict[str, dict[str, Any]] = _stored()["plans"]
    return plans


def usable_gib() -> dict[str, float]:
    """HBM of one device that the compiler can use, for each chip."""
    usable: dict[str, float] = _stored()["usable_gib"]
    return usable


@cache
def compared(name: str) -> Compared:
    run = ts.read_run(FOLDER / "plans" / f"{name}.toml")
    return Compared(name, reports()[name], ts.simulate(run.model, run.plan, run.pod))


def read_bounds() -> dict[str, float]:
    if not BOUNDS.exists():
        return {}
    with BOUNDS.open(encoding="utf-8", newline="") as file:
        return {row["plan"]: float(row["bound"]) for row in csv.DictReader(file)}


def write_bounds(loosen: list[str]) -> None:
    old = {name: bound for name, bound in read_bounds().items() if name not in loosen}
    today = {name: round(compared(name).error + HEADROOM, 3) for name in reports()}
    with BOUNDS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("plan", "bound"))
        writer.writerows((name, min(old.get(name, new), new)) for name, new in today.items())


def table() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| plan | compiler | of which heap | tpusim | tpusim / compiler | usable | verdicts |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for name, report in reports().items():
        one = compared(name)
        theirs, ours = report["verdict"], "fits" if one.result.fits else "refused"
        verdicts = theirs if theirs == ours else f"{theirs}; tpusim: {ours}"
        sizes = (report["total"], report["heap"], one.result.hbm_peak_bytes)
        cells = " | ".join(f"{size / GIB:.2f} GiB" for size in sizes)
        usable = f"{one.result.hbm_bytes / GIB:.2f} GiB"
        yield f"| {name} | {cells} | {one.ratio:.2f} | {usable} | {verdicts} |"


def in_page(page: str) -> str:
    """The page with today's table in place of its own."""
    return re.sub(r"(?m)^\| plan .*\n(\|.*\n)+", lambda _: table(), page)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write bounds and table.")
    parser.add_argument("--loosen", nargs="*", default=[], metavar="PLAN")
    write_bounds(parser.parse_args().loosen)
    page = FOLDER / "README.md"
    page.write_text(in_page(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
