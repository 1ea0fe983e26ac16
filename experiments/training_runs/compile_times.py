"""Compile programs of plan_vs_compiler to code, and add their processor seconds to the table.

    python experiments/training_runs/compile_times.py systems 302 402

Each is compiled afresh (an empty cache) and becomes a row of `compile_times.csv` as one that was
not fitted; one that the compiler refuses, or that takes longer than the limit, is named on stderr.
Needs `pip install 'tpusim[xla]'`, and takes 1 to 5 minutes a program.
"""

import argparse
import csv
import os
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "plan_vs_compiler"))

from sample import FLAGS  # noqa: E402
from table import SAMPLES  # noqa: E402

TABLE = HERE / "compile_times.csv"
TIME_LIMIT_S = 900.0


def row_of(sample: str, number: int) -> dict[str, str]:
    """Return the row of a program that is compiled to code now."""
    import tpusim as ts
    from tpusim.training.compile_time import program_size

    twin = SAMPLES[sample].draw(number)
    assert twin is not None, f"{sample} has no program {number}"
    model, plan, pod = twin.arguments()
    before = processor_seconds()
    made = ts.check(
        model, plan, pod, full=True, time_limit=TIME_LIMIT_S, compiler_options=FLAGS[twin.flags]
    )
    return {
        "sample": sample,
        "number": str(number),
        "system": twin.system or "transformer",
        "slice": str(pod),
        "operations": str(program_size(made.plan.programs)),
        "instructions": str(made.compiled.hlo.count(" = ")),
        "cpu_s": f"{processor_seconds() - before:.1f}",
        "held_out": "1",
    }


def processor_seconds() -> float:
    """Return the processor seconds of the child processes that have ended: those of compilers."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def main() -> None:
    """Compile the programs that are named, and add their rows."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("sample", choices=SAMPLES)
    given.add_argument("numbers", type=int, nargs="+")
    asked = given.parse_args()
    with TABLE.open(encoding="utf-8") as file:
        columns = csv.DictReader(file).fieldnames or ()
    for number in asked.numbers:
        with TemporaryDirectory() as cache:
            os.environ["TPUSIM_CACHE"] = cache
            try:
                row = row_of(asked.sample, number)
            except Exception as error:
                print(f"{asked.sample} {number}: {error}", file=sys.stderr)
                continue
        with TABLE.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, columns, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()
