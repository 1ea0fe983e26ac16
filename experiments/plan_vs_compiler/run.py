"""Compile a sample: python run.py [--sample NAME] [--count N] [--full N] [--workers N]

Each twin is checked in a process of its own pool, and kept as a row of the sample's table,
`twins.parquet` for the sample `twins`: what it is, the numbers of both sides, and as JSON the
comparison, and the program's work and transfers. A run continues where the last one ended.
"""

import argparse
import json
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd
from inventory import inventory
from sample import FLAGS, Twin
from table import SAMPLES, TWINS, table_of

TIME_LIMIT_S = 240.0
KEPT = ("plan_step_s", "program_step_s", "plan_flops", "program_flops", "plan_hbm_bytes",
        "program_hbm_bytes", "same_mode_share", "same_algorithm_share")  # fmt: skip


def row_of(number: int, full: bool, sample: str = TWINS) -> dict[str, Any] | None:
    """Return the row of a twin; None if nothing was drawn that fits, or that fits in HBM."""
    twin = SAMPLES[sample].draw(number)
    if twin is None:
        return None
    import tpusim as ts

    facts: dict[str, Any] = {}
    row = _about(twin, full)
    began = monotonic()
    try:
        model, plan, pod = twin.arguments()
        if not ts.simulate(model, plan, pod).fits:
            return None
        made = ts.check(
            model, plan, pod, full=full, time_limit=TIME_LIMIT_S, compiler_options=FLAGS[twin.flags]
        )
        facts = dict(made.comparison.facts())
        row["versions"] = json.dumps(dict(made.compiled.versions))
        row["compile_s"] = made.compiled.seconds
        row["hlo_bytes"] = len(made.compiled.data)
        row["inventory"] = json.dumps(_short(inventory(made.compiled, made.program)))
    except ts.TpusimError as error:
        row["error"] = str(error)
    except Exception as error:
        row["error"] = f"defect: {error!r} {traceback.format_exc(limit=-3)}"
    row["seconds"] = monotonic() - began
    row |= {name: facts.get(name) for name in KEPT}
    kept = ("times", "flops", "collectives", "memory", "differences", "placement")
    row["facts"] = json.dumps({name: _short(facts.get(name)) for name in kept})
    return row


def _about(twin: Twin, full: bool) -> dict[str, Any]:
    return {
        "number": twin.number,
        "full": full,
        "held_out": twin.held_out,
        "system": twin.system,
        "slice": str(twin.pod),
        "generation": twin.pod.chip.generation,
        "devices": twin.pod.devices,
        "model": json.dumps(twin.model),
        "plan": json.dumps(twin.plan),
        "flags": twin.flags,
        "error": "",
    }


def _short(value: Any) -> Any:
    """Return plain data without the names of operations, which only the program has."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items() if not str(k).endswith("operations")}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def journal_of(sample: str) -> Path:
    """Return the file of the rows that a run has made so far."""
    return table_of(sample).with_suffix(".jsonl")


def known(sample: str) -> list[dict[str, Any]]:
    """Return the rows of earlier runs: of the table, and of the journal of one that was ended."""
    table, journal = table_of(sample), journal_of(sample)
    rows = pd.read_parquet(table).to_dict("records") if table.exists() else []
    if journal.exists():
        rows += [json.loads(line) for line in journal.read_text().splitlines()]
    return rows


def main() -> None:
    """Compile what is missing of a sample, and write its table."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--sample", choices=SAMPLES, default=TWINS)
    given.add_argument("--count", type=int, default=500)
    given.add_argument("--full", type=int, default=60)
    given.add_argument("--workers", type=int, default=2)
    asked = given.parse_args()
    for full, count in ((False, asked.count), (True, asked.full)):
        _fill(asked.sample, count, full, asked.workers)
    rows = pd.DataFrame(known(asked.sample)).drop_duplicates(["number", "full"], keep="last")
    table = table_of(asked.sample)
    rows.sort_values(["full", "number"]).to_parquet(table, compression="zstd", index=False)
    journal_of(asked.sample).unlink(missing_ok=True)
    print(f"{len(rows)} twins in {table}")


def _fill(sample: str, count: int, full: bool, workers: int) -> None:
    """Compile twins, in the order of their numbers, until there are `count` or no more."""
    rows = [row for row in known(sample) if bool(row["full"]) == full]
    done, made = {int(row["number"]) for row in rows}, sum(not row["error"] for row in rows)
    numbers = (number for number in SAMPLES[sample].numbers() if number not in done)
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, max_tasks_per_child=25) as pool:
        waiting = set()
        while made < count:
            ready = islice(numbers, workers + 1 - len(waiting))
            waiting |= {pool.submit(row_of, number, full, sample) for number in ready}
            if not waiting:
                break
            finished = next(as_completed(waiting))
            waiting.discard(finished)
            row = finished.result()
            if row is None:
                continue
            with journal_of(sample).open("a") as journal:
                journal.write(json.dumps(row) + "\n")
            made += not row["error"]
            print(_line(row, made), file=sys.stderr, flush=True)
        for future in waiting:
            future.cancel()


def _line(row: dict[str, Any], made: int) -> str:
    if row["error"]:
        return f"{made} {row['number']} {row['slice']}: {row['error'][:200]}"
    ratio = row["plan_step_s"] / row["program_step_s"] - 1
    mesh = json.loads(row["plan"])["mesh"]
    return f"{made} {row['number']} {row['slice']} {mesh} {ratio:+.1%} in {row['seconds']:.1f} s"


if __name__ == "__main__":
    main()
