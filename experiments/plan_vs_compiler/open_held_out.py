"""Compare plans with their programs: python open_held_out.py [--sample NAME] [--learnt]

Opens the third of a sample by kind that is held out, computes the plans afresh, prints the errors
of steps and of HBM by kind, and records the opening in `memory_openings.json` or
`fresh_openings.json`: date, commit, versions, and all numbers. A round is opened once: its rows are
moved to those to learn from, and a fresh third is another round of the sample, compiled afresh.
With `--learnt` the rows to learn from are compared, which opens nothing. Steps of programs are
replayed with today's costs, from the compiler's cache where it has them; those before are as at
the compilation, on both sides.
"""

import argparse
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from multiprocessing import get_context
from statistics import fmean, median, quantiles
from typing import Any

import fresh
import memory
from sample import FLAGS, slice_of
from sealed_rows import SEALED_SAMPLES, TIME_LIMIT_S, open_rows, open_sealed, sealed_rows
from sealed_sample import KindTwin, SealedSample

WORKERS = 2
HBM, STEP = "", "_step"
"""What is compared: the end of the names of a row's numbers."""


def planned(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the numbers of its plan by today's code, and of its compilation.

    plan, before, program: bytes, `before` those of the plan when the row was compiled; `_step`:
    seconds, of the program `before` too.
    """
    import tpusim as ts

    twin = KindTwin(
        row["number"], slice_of(row["slice"]), row["model"], row["plan"], row["flags"], row["kind"]
    )
    made = {"number": row["number"], "kind": row["kind"], "error": row["error"]}
    arguments, seconds = twin.arguments(), row.get("program_step_s")
    try:
        plan = ts.simulate(*arguments)
        if seconds and row["kind"] in fresh.SAMPLE.kinds:
            flags = FLAGS[twin.flags]
            again = ts.check(*arguments, time_limit=TIME_LIMIT_S, compiler_options=flags)
            plan, seconds = again.plan, again.program.step_time_s
    except ts.TpusimError as error:
        return made | {"error": str(error)}
    return made | {
        "plan": plan.hbm_peak_bytes,
        "before": row.get("plan_hbm_bytes"),
        "program": row.get("program_hbm_bytes"),
        "plan_step": plan.step_time_s,
        "before_step": row.get("plan_step_s"),
        "program_step": seconds,
        "program_step_before": row.get("program_step_s"),
        "refused": row["refused"] or row.get("program_hbm_bytes", 0) > row["usable_bytes"],
        "usable": row["usable_bytes"],
    }


def errors(rows: Iterable[Mapping[str, Any]], side: str, what: str = HBM) -> list[float]:
    """Return the part by which plans are above their programs, of rows that have both."""
    then = f"program{what}_before" if what == STEP and side == "before" else f"program{what}"
    pairs = ((row.get(side + what), row.get(then)) for row in rows)
    return [plan / program - 1 for plan, program in pairs if plan and program]


def cells(
    rows: Sequence[Mapping[str, Any]], side: str = "plan", what: str = HBM
) -> dict[str, float]:
    """Return number, median, 90th percentile and largest of the errors, and their bias.

    wrong: of HBM, verdicts that differ from the compiler's.
    """
    found = errors(rows, side, what)
    sizes = sorted(map(abs, found))
    if not sizes:
        return {"number": 0}
    ninth = quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]
    made = {
        "number": len(found),
        "median": median(sizes),
        "p90": ninth,
        "largest": sizes[-1],
        "signed": fmean(found),
    }
    if what == HBM:
        there = [row for row in rows if row.get("program")]
        made["wrong"] = sum((row[side] > row["usable"]) != row["refused"] for row in there)
    return made


def by_kind(
    rows: Sequence[Mapping[str, Any]], kinds: Iterable[str], side: str = "plan", what: str = HBM
) -> dict[str, dict[str, float]]:
    """Return the errors of all rows, and by kind."""
    groups = {"all": list(rows)}
    groups |= {kind: [row for row in rows if row["kind"] == kind] for kind in kinds}
    return {name: cells(group, side, what) for name, group in groups.items()}


def table(now: Mapping[str, Mapping[str, float]], was: Mapping[str, Mapping[str, float]]) -> str:
    """Return the errors as a Markdown table, with those at the time of the compilation."""
    names = ["median", "90th percentile", "bias"]
    heads = [f"{name}{before}" for name in names for before in (" before", "")]
    if "wrong" in now["all"]:
        heads.append("verdicts that differ")
    head = f"| kind | plans | {' | '.join(heads)} |\n| --- |{(len(heads) + 1) * ' ---: |'}"
    return "\n".join([head, *(_line(kind, was[kind], now[kind]) for kind in now)])


def _line(kind: str, was: Mapping[str, float], now: Mapping[str, float]) -> str:
    if not now["number"]:
        return f"| {kind} | 0 |"
    shares = [f"{each[key]:.1%}" for key in ("median", "p90") for each in (was, now)]
    shares += [f"{each['signed']:+.1%}" for each in (was, now)]
    verdicts = [f"{now['wrong']:.0f}"] if "wrong" in now else []
    return f"| {kind} | {now['number']} | {' | '.join(shares + verdicts)} |"


def opened(sample: SealedSample) -> list[dict[str, Any]]:
    """Return the record of all openings."""
    return json.loads(sample.openings.read_text()) if sample.openings.exists() else []


def record(
    sample: SealedSample, rows: list[dict[str, Any]], found: Mapping[str, Any], versions: object
) -> None:
    """Write down an opening: when, of which code, and its numbers."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=sample.openings.parent,
    )
    opening = {
        "round": sample.round,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "versions": versions,
        **found,
        "rows": rows,
    }
    sample.openings.write_text(json.dumps([*opened(sample), opening], indent=1) + "\n")


def main() -> None:
    """Print the errors by kind, and record the opening."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--sample", choices=SEALED_SAMPLES, default=memory.SAMPLE.name)
    given.add_argument("--learnt", action="store_true", help="of the rows to learn from")
    asked = given.parse_args()
    sample = SEALED_SAMPLES[asked.sample]
    if not asked.learnt and any(each["round"] == sample.round for each in opened(sample)):
        raise SystemExit(
            f"the held-out third of round {sample.round} was opened already "
            f"({sample.openings.name}); draw a fresh one with another round in {sample.name}.py, "
            "and compile it by sealed_rows.py"
        )
    rows = open_rows(sample) if asked.learnt else sealed_rows(sample)
    if not rows:
        raise SystemExit("there are no rows; compile them by sealed_rows.py")
    with get_context("spawn").Pool(WORKERS) as pool:
        made = pool.map(planned, rows, chunksize=4)
    kinds = {"HBM": HBM, "step": STEP}
    found = {
        name: {side: by_kind(made, sample.kinds, side, what) for side in ("plan", "before")}
        for name, what in kinds.items()
    }
    if not asked.learnt:
        versions = next((row["versions"] for row in rows if "versions" in row), None)
        record(sample, made, found, versions)
        open_sealed(sample)
    for name, sides in found.items():
        print(f"{name}:\n\n{table(sides['plan'], sides['before'])}\n")
    print(f"{sum(bool(row['error']) for row in made)} of {len(made)} were not compiled")


if __name__ == "__main__":
    main()
