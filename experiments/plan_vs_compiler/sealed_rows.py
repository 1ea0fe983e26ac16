"""Compile a sample by kind: python sealed_rows.py [--sample NAME] [--kinds NAME ...] [--count N]

Rows to learn from go to the sample's table, `memory.parquet` or `fresh.parquet`, at the end of a
run. Those that are held out are sealed, as text that nobody reads by accident, in
`memory_sealed.txt` or `fresh_sealed.txt`, and nothing of them is printed but that they are there:
`open_held_out.py` opens them, once, and moves them to the table. A run continues where the last one
ended.
"""

import argparse
import json
import re
import sys
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import fresh
import memory
import pandas as pd
from sample import FLAGS
from sealed_sample import KindTwin, SealedSample

TIME_LIMIT_S = 150.0
PER_PROCESS = 20
"""Rows of a process, whose memory grows with each."""

BUFFERS = 12
"""The largest buffers of a program that a row keeps."""

SEALED_SAMPLES = {each.name: each for each in (memory.SAMPLE, fresh.SAMPLE)}
WRITTEN = ("model", "plan", "versions", "buffers", "compared", "times")
"""Columns of the tables that are JSON."""

_NEEDS = re.compile(
    r"memory required for [^(]*\(([\d.]+)(\w)\) exceeds available HBM \(([\d.]+)(\w)\)"
)
_USED = re.compile(r"Used ([\d.]+)(\w) of ([\d.]+)(\w) hbm")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def row_of(name: str, number: int) -> dict[str, Any] | None:
    """Return the row of a twin of a sample, or None if nothing was drawn that fits together.

    program_hbm_bytes: of a program that the compiler refuses, what it says that it needs.
    buffers: the largest ones at the peak: [bytes, shape, instruction, operation].
    """
    import tpusim as ts

    sample, began = SEALED_SAMPLES[name], monotonic()
    twin = sample.draw(number)
    if twin is None:
        return None
    row = _about(twin) | {"held_out": sample.is_held_out(number)}
    try:
        model, plan, pod = twin.arguments()
        planned = ts.simulate(model, plan, pod)
        row |= {"plan_hbm_bytes": planned.hbm_peak_bytes, "plan_step_s": planned.step_time_s}
        if planned.hbm_peak_bytes > memory.LARGEST * pod.chip.hbm_usable_bytes:
            return None
        flags = FLAGS[twin.flags]
        made = ts.check(model, plan, pod, time_limit=TIME_LIMIT_S, compiler_options=flags)
        row |= _compiled(made)
    except ts.TpusimError as error:
        row |= _refused(error) or {"error": str(error)}
    except Exception as error:
        row["error"] = f"defect: {error!r}"
    return row | {"seconds": monotonic() - began}


def _about(twin: KindTwin) -> dict[str, Any]:
    return {
        "number": twin.number,
        "kind": twin.system,
        "slice": str(twin.pod),
        "model": twin.model,
        "plan": twin.plan,
        "flags": twin.flags,
        "usable_bytes": twin.pod.chip.hbm_usable_bytes,
        "refused": False,
        "error": "",
    }


def _compiled(made: Any) -> dict[str, Any]:
    memory, facts = made.compiled.memory, made.comparison.facts()
    return {
        "refused": bool(made.compiled.refusal),
        "program_hbm_bytes": memory.total,
        "program_step_s": made.program.step_time_s,
        "heap_bytes": memory.heap,
        "argument_bytes": memory.arguments,
        "output_bytes": memory.outputs,
        "host_bytes": memory.host,
        "versions": dict(made.compiled.versions),
        "buffers": list(_buffers(made)),
        "compared": facts["memory"],
        "times": facts["times"],
    }


def _buffers(made: Any) -> Iterator[list[Any]]:
    """Yield the largest buffers that the replay holds at the peak of the heap."""
    text = made.compiled.data.decode("utf-8", "replace")
    held = made.program.timeline.memory[made.program.lane].held
    heap = [tensor for tensor in held if tensor.category != "arguments"]
    for tensor in heap[:BUFFERS]:
        name = re.escape(tensor.tensor.split("#")[0])
        line = re.search(rf"%{name} = (.*)", text)
        shape = line[1][:100].split(" ")[0] if line else ""
        said = re.search(r'op_name="([^"]*)"', line[1]) if line else None
        yield [tensor.bytes, shape, tensor.tensor, said[1] if said else ""]


def _refused(error: Exception) -> dict[str, Any]:
    """Return what the compiler says of a program that does not fit; empty for other errors."""
    said = "\n".join(getattr(error, "__notes__", ()))
    found = _NEEDS.search(said) or _USED.search(said)
    if found is None:
        return {}
    needed, there = (float(found[n]) * _UNITS[found[n + 1]] for n in (1, 3))
    return {"refused": True, "program_hbm_bytes": needed, "usable_bytes": there}


def sealed(row: dict[str, Any]) -> str:
    """Return a row as one line of text that nobody reads by accident."""
    return b64encode(zlib.compress(json.dumps(row).encode())).decode()


def unsealed(line: str) -> dict[str, Any]:
    """Return the row of a sealed line."""
    row: dict[str, Any] = json.loads(zlib.decompress(b64decode(line)))
    return row


def open_rows(sample: SealedSample) -> list[dict[str, Any]]:
    """Return the rows to learn from: of the table, and of the journal of a run that was ended."""
    table = pd.read_parquet(sample.table) if sample.table.exists() else pd.DataFrame()
    rows = [{k: v for k, v in row.items() if v == v} for row in table.to_dict("records")]
    for row in rows:
        row |= {name: json.loads(row[name]) for name in WRITTEN if name in row}
    known = {row["number"] for row in rows}
    journal = map(json.loads, _lines(sample.journal))
    return [*rows, *(row for row in journal if row["number"] not in known)]


def write_table(sample: SealedSample) -> None:
    """Write the rows to learn from as a table, in place of the journal."""
    rows = sorted(open_rows(sample), key=lambda row: int(row["number"]))
    written = [row | {name: json.dumps(row.get(name)) for name in WRITTEN} for row in rows]
    pd.DataFrame(written).to_parquet(sample.table, compression="zstd", index=False)
    sample.journal.unlink(missing_ok=True)


def sealed_rows(sample: SealedSample) -> list[dict[str, Any]]:
    """Return the rows that are held out. Only `open_held_out.py` and a continued run ask."""
    return [unsealed(line) for line in _lines(sample.seal)]


def open_sealed(sample: SealedSample) -> None:
    """Move the rows that are held out to the table: those of a round that was opened."""
    with sample.journal.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in sealed_rows(sample))
    write_table(sample)
    sample.seal.unlink(missing_ok=True)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def main() -> None:
    """Compile what is missing of a sample."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--sample", choices=SEALED_SAMPLES, default=memory.SAMPLE.name)
    given.add_argument("--kinds", nargs="*", help="of the sample; all of them without")
    given.add_argument("--count", type=int, default=10**6, help="rows of this run at most")
    given.add_argument("--sealed", action="store_true", help="the third that is held out first")
    asked = given.parse_args()
    sample = SEALED_SAMPLES[asked.sample]
    done = {row["number"] for row in [*open_rows(sample), *sealed_rows(sample)]}
    kinds = [list(sample.kinds).index(kind) for kind in asked.kinds or sample.kinds]
    missing = [n for n in sample.numbers() if n not in done and n // 100 % 100 in kinds]
    missing.sort(key=lambda number: sample.is_held_out(number) != asked.sealed)
    missing = missing[: asked.count]
    for first in range(0, len(missing), PER_PROCESS):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            rows = pool.map(partial(row_of, sample.name), missing[first : first + PER_PROCESS])
            for row in rows:
                if row is not None:
                    _keep(sample, row)
    write_table(sample)


def _keep(sample: SealedSample, row: dict[str, Any]) -> None:
    hidden = row["held_out"]
    with (sample.seal if hidden else sample.journal).open("a") as file:
        file.write((sealed(row) if hidden else json.dumps(row)) + "\n")
    print(_line(row), file=sys.stderr, flush=True)


def _line(row: dict[str, Any]) -> str:
    about = f"{row['number']} {row['kind']} in {row['seconds']:.0f} s"
    if row["held_out"]:
        return f"{about}: held out"
    if row["error"]:
        return f"{about}: {row['error'][:200]}"
    plan, program, usable = (
        row[key] / 2**30 for key in ("plan_hbm_bytes", "program_hbm_bytes", "usable_bytes")
    )
    verdict = ", refused" if row["refused"] else ""
    step = "" if row["refused"] else f", step {row['plan_step_s'] / row['program_step_s'] - 1:+.1%}"
    return f"{about}: {plan:.2f} -> {program:.2f} of {usable:.1f} GiB{verdict}{step}"


if __name__ == "__main__":
    main()
