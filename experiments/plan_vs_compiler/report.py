"""Print how the plans of `twins.parquet` compare with their programs: python report.py

As the table has them, with the lowering after the rules that were learnt from it and with that of
before; `--again` replays and compares afresh the programs that are in the compiler's cache.
"""

import argparse
import json
from typing import Any

import pandas as pd
from table import until_schedule

FLOPS_TOLERANCE = 0.01
BEFORE = ("plan_step_s", "plan_hbm_bytes", "same_mode_share", "same_algorithm_share")
"""Columns that the table also has for the lowering of before, as `before_...`."""


def rows() -> pd.DataFrame:
    """Return the twins compiled until their schedule, with the differences of both sides."""
    return with_errors(until_schedule())


def with_errors(table: pd.DataFrame) -> pd.DataFrame:
    """Add the fraction by which the plan is above the program, for step, FLOPs and HBM."""
    for name, unit in (("step", "_s"), ("flops", ""), ("hbm", "_bytes")):
        table[f"{name}_error"] = table[f"plan_{name}{unit}"] / table[f"program_{name}{unit}"] - 1
    return table


def before(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the plans as they were lowered before the rules learnt from it."""
    old = {name: table[f"before_{name}"] for name in BEFORE}
    return with_errors(table.assign(**old))


def again(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with today's comparison of each program that is in the cache."""
    from run import KEPT
    from sample import FLAGS, draw

    import tpusim as ts

    found: list[dict[str, Any]] = []
    for row in table.to_dict("records"):
        twin = draw(int(row["number"]))
        if twin is not None:
            made = ts.check(*twin.arguments(), compiler_options=FLAGS[twin.flags])
            facts = made.comparison.facts()
            found.append(row | {name: facts[name] for name in KEPT})
    return with_errors(pd.DataFrame(found))


def summary(table: pd.DataFrame) -> str:
    """Return the agreement as a Markdown table: all, those held out, and by generation."""
    head = (
        "| twins | number | step: median | 90th percentile | HBM: median | 90th percentile | same "
        "mode | same route | FLOPs within 1 % |\n| --- |" + 8 * " ---: |"
    )
    groups = [("all", table), ("to learn from", table[~table.held_out.astype(bool)])]
    groups += [("held out", table[table.held_out.astype(bool)])]
    groups += [(name, part) for name, part in table.groupby("generation")]
    return "\n".join([head, *(f"| {name} | {_cells(part)} |" for name, part in groups)])


def _cells(part: pd.DataFrame) -> str:
    step, hbm = part.step_error.abs(), part.hbm_error.abs()
    numbers = (step.median(), step.quantile(0.9), hbm.median(), hbm.quantile(0.9))
    cells = [str(len(part)), *(f"{number:.1%}" for number in numbers)]
    flops = (part.flops_error.abs() <= FLOPS_TOLERANCE).mean()
    same = (part.same_mode_share.mean(), part.same_algorithm_share.mean(), flops)
    return " | ".join([*cells, *(f"{share:.0%}" for share in same)])


def main() -> None:
    """Print the summary."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--again", action="store_true")
    table = rows()
    if given.parse_args().again:
        table = again(table)
    versions = json.loads(table.versions.iloc[0])
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"{len(table)} twins, {made}\n\n{summary(table)}")
    print(f"\nbefore the rules that were learnt from them:\n\n{summary(before(table))}")


if __name__ == "__main__":
    main()
