"""Write the residuals from which the odds of HBM are made: python residuals.py [--print]

What the compiler took of what plans are predicted to need by today's code, for the programs that
are kept to judge by: the held-out plans of all tables, those near the limit (`limit.py`), and
of the sample about HBM the third that is held out, once it was opened. `--print` leaves the
package's table as it is. It prints how well the odds of each program, made without it, say what the
compiler did. `docs/tools/generate.py` then writes what the documents say of it.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from math import exp, log
from multiprocessing import get_context
from statistics import fmean, median
from typing import NamedTuple

import limit
import memory
from open_held_out import opened
from sample import Twin, slice_of
from sealed_rows import open_rows
from table import SAMPLES, until_schedule

from tpusim import simulate
from tpusim.accuracy import (
    HbmErrors,
    HbmResidual,
    hbm_residuals_path,
    hbm_residuals_text,
    read_hbm_residuals,
)
from tpusim.base.text_files import write_file
from tpusim.results import fit_of_odds

WORKERS = 2


class Taken(NamedTuple):
    """A plan, the bytes that the compiler took, and whether it refused the program."""

    id: str
    twin: Twin
    taken: float
    refused: bool


def compared() -> Iterator[Taken]:
    """Yield the plans that are kept to judge by."""
    for sample in SAMPLES:
        table = until_schedule(sample)
        for row in table[table.held_out.astype(bool)].to_dict("records"):
            name = f"{sample}-{row['number']}"
            yield Taken(name, _twin(row, json.loads), row["program_hbm_bytes"], False)
    near = limit.twins()
    for row in limit.rows():
        name = f"limit-{row['number']}"
        yield Taken(name, near[row["number"]], row["program_hbm_bytes"], row["refused"])
    judged = {each["number"] for each in opened(memory.SAMPLE)[-1]["rows"]}
    for row in open_rows(memory.SAMPLE):
        if row["number"] in judged and (taken := row.get("program_hbm_bytes")):
            refused = row["refused"] or taken > row["usable_bytes"]
            yield Taken(f"memory-{row['number']}", _twin(row), taken, refused)


def _twin(row: dict, read=lambda value: value) -> Twin:
    return Twin(
        row["number"], slice_of(row["slice"]), read(row["model"]), read(row["plan"]), row["flags"]
    )


def residual(row: Taken) -> HbmResidual:
    """Return what the compiler took of what the plan is predicted to need."""
    plan = simulate(*row.twin.arguments())
    ratio = row.taken / plan.hbm_peak_bytes
    return HbmResidual(row.id, plan.hbm_features, row.refused, log(ratio))


def summary(rows: tuple[HbmResidual, ...]) -> str:
    """Return the errors, and how often the odds were right about programs left out of them."""
    errors = [abs(1 / ratio - 1) for ratio in (exp(row.residual) for row in rows)]
    left_out = list(HbmErrors(rows).left_out())
    inside = fmean(log(found.low) <= row.residual <= log(found.high) for row, found in left_out)
    verdicts = Counter(
        (str(fit_of_odds(found.fits, row.features.fill, 1.0)), row.refused)
        for row, found in left_out
    )
    said = ", ".join(
        f"{fit}: {verdicts[fit, False]} compiled and {verdicts[fit, True]} refused"
        for fit in ("fits", "borderline", "does not fit")
    )
    return (
        f"{len(rows)} programs, {sum(row.refused for row in rows)} refused: HBM is off by "
        f"{median(errors):.1%} in the median\n{inside:.1%} are in their range of 90 %\n{said}"
    )


def main() -> None:
    """Write the table, and print its summary."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--print", action="store_true", help="write nothing")
    asked = given.parse_args()
    with get_context("spawn").Pool(WORKERS) as pool:
        rows = tuple(pool.map(residual, list(compared()), chunksize=1))
    text = hbm_residuals_text(rows)
    if not asked.print:
        write_file(hbm_residuals_path(), text.encode())
        print(f"{len(rows)} residuals in {hbm_residuals_path().name}")
    print(summary(read_hbm_residuals(text)))


if __name__ == "__main__":
    main()
