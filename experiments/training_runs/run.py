"""Whole runs of MLPerf logs, with the logged step and with the predicted one.

python experiments/training_runs/run.py
"""

import csv
from pathlib import Path
from statistics import median

import tpusim as ts
from tpusim.training import Checkpoints, Evaluations, TrainingRun, train_step

HERE = Path(__file__).parent
SYSTEMS = HERE.parents[1] / "tests" / "measured" / "systems"


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def error(row: dict[str, str], system: Path, *, logged: bool) -> float:
    """Return the error of a run's time, from its first step to its end, as a fraction.

    system: the run file of its step.
    logged: with the step of the log, in place of the simulated one.
    """
    read = ts.read_run(system)
    step = ts.simulate(read.model, read.plan, read.pod)
    every, steps, save_s = int(row["evaluate_every"]), int(row["steps"]), float(row["save_s"])
    run = TrainingRun(
        steps=steps,
        step_time_s=float(row["step_s"]) if logged else None,
        initialization_s=float(row["init_s"]),
        compile_s=0.0,
        warm_up_s=float(row["first_s"]),
        evaluations=Evaluations(every=every, time_s=float(row["evaluation_s"])) if every else None,
        checkpoints=Checkpoints(every=steps, mode="blocking", time_s=save_s) if save_s else None,
    )
    wall = train_step(step, run).wall_s.value - float(row["init_s"])
    return wall / float(row["measured_run_s"]) - 1


def main() -> None:
    """Print the errors of all runs."""
    errors: dict[bool, dict[str, float]] = {True: {}, False: {}}
    print("| run | steps | measured | with the logged step | with the predicted step |")
    print("| --- | --- | ---: | ---: | ---: |")
    found = rows(HERE / "whole_runs.csv")
    for row in found:
        system = SYSTEMS / f"{row['system']}.toml"
        for logged, each in errors.items():
            each[row["id"]] = error(row, system, logged=logged)
        measured = f"{float(row['measured_run_s']):,.1f} s"
        cells = " | ".join(f"{each[row['id']]:+.1%}" for each in errors.values())
        print(f"| {row['id']} | {row['steps_are']} | {measured} | {cells} |")
    stated = [row["id"] for row in found if row["steps_are"] == "logged"]
    for of, ids in (("logged", stated), ("all", [row["id"] for row in found])):
        cells = " | ".join(
            f"{median(abs(each[one]) for one in ids):.1%}" for each in errors.values()
        )
        print(f"| median of {len(ids)} | {of} | | {cells} |")


if __name__ == "__main__":
    main()
