"""Compile programs to code, and add their processor seconds to the table.

    python experiments/training_runs/compile_times.py                     all of compile_sample.py
    python experiments/training_runs/compile_times.py t5 gnmt systems/302

A program is one of `compile_sample.py`, or a number of a sample of plan_vs_compiler. Each that the
table has not is compiled afresh and becomes a row of `compile_times.csv`; one that the compiler
refuses, or that takes longer than the limit, is named on stderr. `yardstick_s` are the user seconds
of the benchmarks' yardstick at the time, 0.11 on the machine of the table: processor seconds on a
slower machine are to be divided by what it takes longer. Needs `pip install 'tpusim[xla]'`, and
takes 1 to 5 minutes a program.
"""

import argparse
import csv
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "plan_vs_compiler"))

from compile_sample import FIT, HELD_OUT, Sampled  # noqa: E402
from sample import FLAGS, Twin  # noqa: E402
from table import SAMPLES  # noqa: E402

TABLE = HERE / "compile_times.csv"
YARDSTICK = HERE.parent / "benchmarks" / "yardstick.py"
TIME_LIMIT_S = 1500.0

PROGRAMS = {each.name: each for each in (*FIT, *HELD_OUT)}


def program(name: str) -> Sampled | Twin:
    """Return a program by its name."""
    if name in PROGRAMS:
        return PROGRAMS[name]
    sample, _, number = name.partition("/")
    twin = SAMPLES[sample].draw(int(number))
    assert twin is not None, f"{sample} has no program {number}"
    return twin


def row_of(name: str) -> dict[str, str]:
    """Return the row of a program that is compiled to code now."""
    import tpusim as ts
    from tpusim.compiler.topologies import versions
    from tpusim.compiler_check.compile_step import StepCompilation, compile_step
    from tpusim.export.plan_to_jax import export_step
    from tpusim.training.compile_time import program_size

    asked = program(name)
    model, plan, pod = asked.arguments()
    planned = ts.simulate(model, plan, pod)
    step = StepCompilation(
        step=export_step(planned.model, planned.plan, pod),
        planned=planned,
        options=FLAGS[asked.flags] if isinstance(asked, Twin) else {},
        full=True,
        time_limit=TIME_LIMIT_S,
    )
    slow, spent, began = yardstick_s(), processor_seconds(), time.perf_counter()
    with TemporaryDirectory() as cache:
        os.environ["TPUSIM_CACHE"] = cache
        compiled = compile_step(step)
    wall, spent = time.perf_counter() - began, processor_seconds() - spent
    size = program_size(planned.programs, scanned=planned.plan.remat.scan_layers)
    found = versions()
    return {
        "program": name,
        "system": asked.system if isinstance(asked, Twin) else asked.kind,
        "slice": str(pod),
        "operations": str(size.operations),
        "decades": f"{size.decades:.1f}",
        "instructions": str(compiled.hlo.count(" = ")),
        "cpu_s": f"{spent:.1f}",
        "wall_s": f"{wall:.1f}",
        "yardstick_s": f"{slow:.3f}",
        "held_out": str(int(asked not in FIT)),
        "jax": found["jax"],
        "libtpu": found["libtpu"],
    }


def processor_seconds() -> float:
    """Return the processor seconds of the child processes that have ended: those of compilers."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def yardstick_s() -> float:
    """Return the user seconds of the yardstick now, the median of three."""
    command = [sys.executable, str(YARDSTICK)]
    found = [
        subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(3)
    ]
    return median(map(float, found))


def main() -> None:
    """Compile the programs that are named, and add their rows."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("programs", nargs="*", default=list(PROGRAMS))
    names = given.parse_args().programs
    with TABLE.open(encoding="utf-8") as file:
        reader = csv.DictReader(file)
        done = {row["program"] for row in reader}
        columns = reader.fieldnames or ()
    for name in names:
        if name in done:
            continue
        try:
            row = row_of(name)
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        with TABLE.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, columns, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()
