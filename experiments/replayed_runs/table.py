"""Replay the programs that compile.py made, and compare them with measurements.

    python table.py programs/*.hlo.gz

prints the table of README.md: for each row the measured step, the prediction of the plan and of the
replay with both choices of costs, and the median errors.
"""

import sys
from pathlib import Path
from statistics import median

import tpusim as ts
from tpusim.validation import measured_runs
from tpusim.validation.outcome import simulate_run

RUNS = Path(__file__).resolve().parents[2] / "tests/measured/runs"
CHOICES = ("model", "compiler")


def rows(paths):
    """Yield name, measured seconds, predictions by plan, model and compiler, and the replays."""
    runs = {run.id: run for run in measured_runs(RUNS)}
    for path in paths:
        program = ts.xla.load(path)
        run = runs[Path(path).name.removesuffix(".hlo.gz")]
        replays = [ts.simulate(program, costs=costs) for costs in CHOICES]
        steps = [simulate_run(run).predicted_s, *(one.step_time_s for one in replays)]
        yield run.id, run.step_s, steps, replays


def main():
    """Print the table, in Markdown, and below it the breakdown of each replayed step."""
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
