"""Compare the HBM of plans with what the compiler said: python open_held_out.py [--learnt]

Opens the third of `memory.py` that is held out, computes the plans afresh, prints the errors by
kind, and records the opening in `memory_openings.json`: date, commit, versions, and all numbers. A
round is opened once: its rows are moved to those to learn from, and a fresh third is another
`ROUND` of `memory.py`, compiled afresh. With `--learnt` the rows to learn from are compared, which
opens nothing.
"""

import argparse
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from multiprocessing import get_context
from statistics import fmean, median, quantiles
from typing import Any

from memory import KINDS, ROUND, MemoryTwin
from memory_rows import HERE, open_rows, open_sealed, sealed_rows
from sample import slice_of

OPENINGS = HERE / "memory_openings.json"
WORKERS = 2


def planned(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with what its plan needs by today's code, and with that of its compilation.

    plan: bytes; `before`: those when the row was compiled.
    """
    import tpusim as ts

    twin = MemoryTwin(
        row["number"], slice_of(row["slice"]), row["model"], row["plan"], row["flags"], row["kind"]
    )
    made = {"number": row["number"], "kind": row["kind"], "error": row["error"]}
    try:
        plan = ts.simulate(*twin.arguments())
    except ts.TpusimError as error:
        return made | {"error": str(error)}
    return made | {
        "plan": plan.hbm_peak_bytes,
        "before": row.get("plan_hbm_bytes"),
        "program": row.get("program_hbm_bytes"),
        "refused": row["refused"] or row.get("program_hbm_bytes", 0) > row["usable_bytes"],
        "usable": row["usable_bytes"],
    }


def errors(rows: Iterable[Mapping[str, Any]], side: str = "plan") -> list[float]:
    """Return the part by which plans are above their programs, of rows that have both."""
    return [row[side] / row["program"] - 1 for row in rows if row.get("program") and row.get(side)]


def cells(rows: Sequence[Mapping[str, Any]], side: str = "plan") -> dict[str, float]:
    """Return number, median, 90th percentile and largest of the errors, and their signed mean.

    wrong: verdicts that differ from the compiler's.
    """
    found = errors(rows, side)
    sizes = sorted(map(abs, found))
    if not sizes:
        return {"number": 0}
    ninth = quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]
    wrong = sum((row[side] > row["usable"]) != row["refused"] for row in rows if row.get("program"))
    return {
        "number": len(found),
        "median": median(sizes),
        "p90": ninth,
        "largest": sizes[-1],
        "signed": fmean(found),
        "wrong": wrong,
    }


def by_kind(rows: Sequence[Mapping[str, Any]], side: str = "plan") -> dict[str, dict[str, float]]:
    """Return the errors of all rows, and by kind."""
    groups = {"all": list(rows)}
    groups |= {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    return {name: cells(group, side) for name, group in groups.items()}


def table(now: Mapping[str, Mapping[str, float]], was: Mapping[str, Mapping[str, float]]) -> str:
    """Return the errors as a Markdown table, with those at the time of the compilation."""
    head = (
        "| kind | plans | median before | median | 90th percentile before | 90th percentile | "
        "signed mean | verdicts that differ |\n| --- |" + 7 * " ---: |"
    )
    return "\n".join([head, *(_line(kind, was[kind], now[kind]) for kind in now)])


def _line(kind: str, was: Mapping[str, float], now: Mapping[str, float]) -> str:
    if not now["number"]:
        return f"| {kind} | 0 | | | | | | |"
    shares = [each[key] for key in ("median", "p90") for each in (was, now)]
    percent = " | ".join(f"{share:.1%}" for share in shares)
    return f"| {kind} | {now['number']} | {percent} | {now['signed']:+.1%} | {now['wrong']:.0f} |"


def opened() -> list[dict[str, Any]]:
    """Return the record of all openings."""
    return json.loads(OPENINGS.read_text()) if OPENINGS.exists() else []


def record(rows: list[dict[str, Any]], found: Mapping[str, Any], versions: object) -> None:
    """Write down an opening: when, of which code, and its numbers."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE
    )
    opening = {
        "round": ROUND,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "versions": versions,
        **found,
        "rows": rows,
    }
    OPENINGS.write_text(json.dumps([*opened(), opening], indent=1) + "\n")


def main() -> None:
    """Print the errors by kind, and record the opening."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--learnt", action="store_true", help="of the rows to learn from")
    asked = given.parse_args()
    if not asked.learnt and any(each["round"] == ROUND for each in opened()):
        raise SystemExit(
            f"the held-out third of round {ROUND} was opened already ({OPENINGS.name}); draw a "
            "fresh one with another ROUND in memory.py, and compile it by memory_rows.py"
        )
    rows = open_rows() if asked.learnt else sealed_rows()
    if not rows:
        raise SystemExit("there are no rows; compile them by memory_rows.py")
    with get_context("spawn").Pool(WORKERS) as pool:
        made = pool.map(planned, rows, chunksize=4)
    now, was = by_kind(made), by_kind(made, "before")
    if not asked.learnt:
        versions = next((row["versions"] for row in rows if "versions" in row), None)
        record(made, {"now": now, "before": was}, versions)
        open_sealed()
    failed = [row for row in made if row["error"]]
    print(f"{table(now, was)}\n\n{len(failed)} of {len(made)} were not compiled")


if __name__ == "__main__":
    main()
