"""Replay the programs that compile.py made, and lay them beside what was measured.

    python table.py programs/*.hlo.gz

prints the table of README.md: of each row the measured step, the plan's prediction and the replay's
by both choices of costs, and the median of their errors.
"""

import sys
from pathlib import Path
from statistics import median

import tpusim as ts
from tpusim.validation.measured import measured_runs
from tpusim.validation.outcome import outcome
from tpusim.validation.read import read_rows

TABLE = Path(__file__).resolve().parents[2] / "tests/validation/training_runs.csv"
CHOICES = ("model", "compiler")


def rows(paths):
    """Name, measured seconds, and predicted ones by the plan, the model and the compiler."""
    runs = {run.id: run for run in measured_runs(*read_rows(TABLE))[0]}
    for path in paths:
        program = ts.xla.load(path)
        run = runs[program.name]
        replays = [ts.simulate(program, costs=costs) for costs in CHOICES]
        steps = [outcome(run).predicted_s, *(one.step_time_s for one in replays)]
        yield run.id, run.step_s, steps, replays


def main():
    """Print the table, in Markdown, and below it where each replayed step goes."""
    print("| run | measured | plan | replay, model | replay, compiler |\n| --- |" + " ---: |" * 4)
    errors, breakdowns = [], []
    for name, measured, steps, replays in rows(sys.argv[1:]):
        errors.append([step / measured - 1 for step in steps])
        cells = (f"{s:.3f} s ({e:+.1%})" for s, e in zip(steps, errors[-1], strict=True))
        print(f"| {name} | {measured:.3f} s | {' | '.join(cells)} |", flush=True)
        breakdowns += [(name, one) for one in replays]
    columns = list(zip(*errors, strict=True))
    cells = (f"{median(map(abs, column)):.1%}, {median(column):+.1%}" for column in columns)
    print(f"| **median error, absolute and signed** | | {' | '.join(cells)} |\n")
    for name, one in breakdowns:
        parts = (f"{label} {seconds:.3f}" for label, seconds in one.breakdown_s.items())
        print(f"{name} ({one.costs}):", ", ".join(parts))


if __name__ == "__main__":
    main()
