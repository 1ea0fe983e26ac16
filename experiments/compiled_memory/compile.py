"""Compile the training step of run files for TPU slices, without TPUs, and record HBM use.

    JAX_PLATFORMS=cpu python compile.py plans/*.toml --out compiled_memory.json --dumps DIR

Needs jax[tpu] only (version in README.md), not tpusim. Plans in the output that are not named are
kept.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir

from report import read_dump

CHIPS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "7x")
_USABLE = re.compile(r"available HBM \(([\d.]+)G\)")


def in_child(*arguments, flags=""):
    """Return the compiler's answer from a separate process: nothing, or its refusal."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True,
        env={**os.environ, "XLA_FLAGS": flags},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{arguments}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def usable():
    """Return the GiB of HBM of one device of each chip, as the compiler's refusals state them."""
    return {chip: float(_USABLE.search(in_child("--chip", chip))[1]) for chip in CHIPS}


def compiled(plan, dumps):
    """Return the verdict and the sizes of one plan."""
    folder = dumps / plan.stem
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.txt"):
        old.unlink()
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    message = in_child("--one", str(plan), flags=flags)
    verdict = {"verdict": "refused", "message": message} if message else {"verdict": "fits"}
    sizes, peak, at = read_dump(folder)
    return {**verdict, **sizes, "peak_at": at, "peak": peak}


def write(path, found):
    """Write all plans, one line per buffer."""
    text = json.dumps(found, indent=1)
    text = re.sub(r"\[\s+(\d+),\s+(\"[^\n]*\"),\s+(\"[^\n]*\")\s+\]", r"[\1, \2, \3]", text)
    path.write_text(text + "\n", "utf-8")


def main():
    """Compile the plans. `--one` and `--chip` are for child processes: they print a message."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=Path("compiled_memory.json"))
    parser.add_argument("--dumps", type=Path, default=Path(gettempdir()) / "dumps")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--chip", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one or given.chip:
        print(json.dumps(answer(given.one, given.chip)))
        return
    found = json.loads(given.out.read_text("utf-8")) if given.out.exists() else {"plans": {}}
    found["versions"] = {name: version(name) for name in ("jax", "jaxlib", "libtpu")}
    found["usable_gib"] = usable()
    for plan in given.plans:
        one = compiled(plan, given.dumps)
        found["plans"] = dict(sorted({**found["plans"], plan.stem: one}.items()))
        write(given.out, found)
        print(plan.stem, *(one[k] for k in ("verdict", "total")), flush=True)


def answer(plan, chip):
    """Return the compiler's message about a plan, or about a chip."""
    from step import compile_step, compile_too_much

    if chip:
        return compile_too_much(chip)
    return compile_step(tomllib.loads(plan.read_text("utf-8")))


if __name__ == "__main__":
    main()
