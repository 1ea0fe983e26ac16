"""Whole runs of MLPerf logs, with the logged step and with the predicted one.

python experiments/training_runs/run.py
"""

import csv
from pathlib import Path
from statistics import median

from tpusim.training import Evaluations, TrainingRun, train_step
from tpusim.validation.systems.system_rows import system_row
from tpusim.validation.systems.system_run import run_system

HERE = Path(__file__).parent
SYSTEMS = HERE.parent / "systems"
TABLES = ("published_systems.csv", "vision_runs.csv")


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def error(row: dict[str, str], system: dict[str, str], *, logged: bool) -> float:
    """Return the error of a run's time, from its first step to its end, as a fraction.

    logged: with the step of the log, in place of the simulated one.
    """
    step = run_system(system_row(system)).result
    assert step is not None, row["id"]
    every = int(row["evaluate_every"])
    run = TrainingRun(
        steps=int(row["steps"]),
        step_time_s=float(row["step_s"]) if logged else None,
        initialization_s=float(row["init_s"]),
        compile_s=0.0,
        warm_up_s=float(row["first_s"]),
        evaluations=Evaluations(every=every, time_s=float(row["evaluation_s"])) if every else None,
    )
    wall = train_step(step, run).wall_s.value - float(row["init_s"])
    return wall / float(row["measured_run_s"]) - 1


def main() -> None:
    """Print the errors of all runs."""
    systems = {row["id"]: row for table in TABLES for row in rows(SYSTEMS / table)}
    errors: dict[bool, list[float]] = {True: [], False: []}
    print("| run | measured | with the logged step | with the predicted step |")
    print("| --- | ---: | ---: | ---: |")
    for row in rows(HERE / "whole_runs.csv"):
        system = systems.get(row["id"]) or systems[row["id"].replace("mlperf07", "mlperf06")]
        found = {logged: error(row, system, logged=logged) for logged in errors}
        for logged, value in found.items():
            errors[logged].append(abs(value))
        measured = f"{float(row['measured_run_s']):,.1f} s"
        print(f"| {row['id']} | {measured} | {found[True]:+.1%} | {found[False]:+.1%} |")
    print(f"| median | | {median(errors[True]):.1%} | {median(errors[False]):.1%} |")


if __name__ == "__main__":
    main()
