"""Compile the training step of run files for TPU slices, without TPUs, and keep what HBM holds.

    JAX_PLATFORMS=cpu python compile.py plans/*.toml --out compiled_memory.json --dumps DIR

Needs jax[tpu] alone (README.md beside this file says which), and no tpusim. A plan that is in the
output already is compiled again only when it is named.
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

from report import read_dump


def compiled(plan, dumps):
    """The verdict and the sizes of one plan, compiled in a process of its own."""
    folder = dumps / plan.stem
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.txt"):
        old.unlink()
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(plan)], capture_output=True, text=True,
        env={**os.environ, "XLA_FLAGS": flags},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{plan}: {done.stderr[-3000:]}")
    message = json.loads(done.stdout.splitlines()[-1])
    verdict = {"verdict": "refused", "message": message} if message else {"verdict": "fits"}
    sizes, peak, at = read_dump(folder)
    return {**verdict, **sizes, "peak_at": at, "peak": peak}


def write(path, found):
    """One line a buffer, so that a change shows in a diff."""
    text = json.dumps(found, indent=1)
    text = re.sub(r"\[\s+(\d+),\s+(\"[^\n]*\"),\s+(\"[^\n]*\")\s+\]", r"[\1, \2, \3]", text)
    path.write_text(text + "\n", "utf-8")


def main():
    """Compile what is named; one plan in this process with `--one`, which prints the message."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("compiled_memory.json"))
    parser.add_argument("--dumps", type=Path, default=Path("dumps"))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        from step import compile_step

        print(json.dumps(compile_step(tomllib.loads(given.plans[0].read_text("utf-8")))))
        return
    for plan in given.plans:
        one = compiled(plan, given.dumps)
        found = json.loads(given.out.read_text("utf-8")) if given.out.exists() else {"plans": {}}
        found["versions"] = {name: version(name) for name in ("jax", "jaxlib", "libtpu")}
        found["plans"] = dict(sorted({**found["plans"], plan.stem: one}.items()))
        write(given.out, found)
        print(plan.stem, *(one[k] for k in ("verdict", "total")), flush=True)


if __name__ == "__main__":
    main()
