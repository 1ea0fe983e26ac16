"""Print how the plans of a sample compare with their programs: python report.py [--sample systems]

As the table has them, and for `twins` also with the lowering of before the rules that were learnt
from it; `--again` replays and compares the programs afresh, compiling those that are not in the
compiler's cache, and `--write` puts the numbers of that into the table; `--numbers N ...` takes
these twins alone.
"""

import argparse
import json
from collections import Counter
from multiprocessing import get_context
from typing import Any

import pandas as pd
from table import SAMPLES, TWINS, table_of, until_schedule

WORKERS = 2
FLOPS_TOLERANCE, BYTES_TOLERANCE = 0.01, 0.05
BEFORE = ("plan_step_s", "plan_hbm_bytes", "same_mode_share", "same_algorithm_share")
"""Columns that the table also has for the lowering of before, as `before_...`."""


def rows(sample: str = TWINS) -> pd.DataFrame:
    """Return the twins compiled until their schedule, with the differences of both sides."""
    return with_errors(until_schedule(sample))


def with_errors(table: pd.DataFrame) -> pd.DataFrame:
    """Add the fraction by which the plan is above the program, for step, FLOPs and HBM.

    Of the bytes that devices receive, the sum of the differences by axes and kind of collective.
    """
    for name, unit in (("step", "_s"), ("flops", ""), ("hbm", "_bytes")):
        table[f"{name}_error"] = table[f"plan_{name}{unit}"] / table[f"program_{name}{unit}"] - 1
    table["bytes_error"] = [bytes_error(json.loads(each)["collectives"]) for each in table.facts]
    return table


def bytes_error(collectives: list[dict[str, Any]]) -> float:
    """Return the bytes by axes and kind in which the sides differ, over those of the program."""
    more: Counter[tuple[str, ...]] = Counter()
    total = 0.0
    for each in collectives:
        for side, sign in (("plan", 1), ("program", -1)):
            for kind, nbytes in (each[side] or {"kinds": {}})["kinds"].items():
                more[kind, *each["axes"]] += sign * nbytes
                total += nbytes * (side == "program")
    different = sum(map(abs, more.values()))
    return different / total if total else float(different > 0)


def before(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the plans as they were lowered before the rules learnt from it."""
    old = {name: table[f"before_{name}"] for name in BEFORE}
    return with_errors(table.assign(**old))


def again(table: pd.DataFrame, sample: str = TWINS) -> pd.DataFrame:
    """Return the table with today's comparison of each program."""
    from run import row_of

    given = [(int(number), False, sample) for number in table.number]
    with get_context("spawn").Pool(WORKERS, maxtasksperchild=25) as pool:
        found = pool.starmap(row_of, given, chunksize=1)
    kept = [
        {**old, **new, "seconds": old["seconds"], "compile_s": old["compile_s"]}
        for old, new in zip(table.to_dict("records"), found, strict=True)
        if new is not None
    ]
    return with_errors(pd.DataFrame(kept))


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


def by_system(table: pd.DataFrame) -> str:
    """Return the agreement of a designed sample as a Markdown table: all, and by system."""
    head = (
        "| system | twins | generations | step: median | worst | FLOPs within 1 % | collective "
        "bytes within 5 % | HBM: median | worst |\n| --- | ---: | --- |" + 6 * " ---: |"
    )
    held = table.held_out.astype(bool)
    groups = [*table.groupby("system", sort=False)]
    groups += [("to learn from", table[~held]), ("held out", table[held])]
    return "\n".join(
        [head, *(f"| {name} | {_system_cells(part)} |" for name, part in [*groups, ("all", table)])]
    )


def _system_cells(part: pd.DataFrame) -> str:
    step, hbm = (
        (f"{each.abs().median():.1%}", f"{each[each.abs().idxmax()]:+.1%}")
        for each in (part.step_error, part.hbm_error)
    )
    within = (
        f"{(each.abs() <= least).sum()} of {len(part)}"
        for each, least in (
            (part.flops_error, FLOPS_TOLERANCE), (part.bytes_error, BYTES_TOLERANCE),
        )
    )  # fmt: skip
    generations = ", ".join(sorted(part.generation.unique()))
    return " | ".join([str(len(part)), generations, *step, *within, *hbm])


def main() -> None:
    """Print the summary."""
    given = argparse.ArgumentParser()
    given.add_argument("--sample", choices=SAMPLES, default=TWINS)
    given.add_argument("--again", action="store_true")
    given.add_argument("--write", action="store_true")
    given.add_argument("--numbers", type=int, nargs="*")
    asked = given.parse_args()
    table = rows(asked.sample)
    if asked.numbers:
        table = table[table.number.isin(asked.numbers)]
    if asked.again or asked.write:
        table = again(table, asked.sample)
    if asked.write:
        kept = pd.read_parquet(table_of(asked.sample))
        made = pd.concat([table[kept.columns], kept]).drop_duplicates(["number", "full"])
        made = made.sort_values(["full", "number"])
        made.to_parquet(table_of(asked.sample), compression="zstd", index=False)
    versions = json.loads(table.versions.iloc[0])
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    if asked.sample != TWINS:
        print(f"{len(table)} twins, {said}\n\n{by_system(table)}")
        return
    print(f"{len(table)} twins, {said}\n\n{summary(table)}")
    print(f"\nbefore the rules that were learnt from them:\n\n{summary(before(table))}")


if __name__ == "__main__":
    main()
