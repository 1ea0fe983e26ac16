"""A profile of which only totals are published, diagnosed against its MaxText config."""

import argparse
from pathlib import Path

import pandas as pd

import tpusim as ts
from tpusim.diagnosis import Diagnosis, write_diagnosis

HERE = Path(__file__).parent
STEP_MS = 237.618721276
"""The mean of three steps, as published."""

PROGRAM = "jit_train_step"
PS_OF_MS = 1e9


def profile() -> ts.Profile:
    """Return one step whose operations are the totals by category, one after the other."""
    totals = pd.read_csv(HERE / "totals.csv", keep_default_na=False)
    took = (totals["milliseconds"] * PS_OF_MS).round().astype("int64")
    rows = totals.rename(columns={"operation": "instruction"}).assign(
        device="TPU:0", program=PROGRAM, step=0, start_ps=took.cumsum() - took, duration_ps=took,
        self_ps=took, wait=False, asynchronous=False, loops=0, layer=-1, source="", text="",
    )  # fmt: skip
    step = {"device": "TPU:0", "step": 0, "program": PROGRAM, "start_ps": 0}
    length = {"duration_ps": round(STEP_MS * PS_OF_MS), "busy_ps": int(took.sum())}
    return ts.Profile(
        name="totals.csv", kind="TPU v6 Lite", chip="v6e", clock_hz=0.0, operations=rows,
        steps=pd.DataFrame([step | length]), programs={},
    )  # fmt: skip


def diagnosis() -> Diagnosis:
    """Return the diagnosis of the totals against the plan of the config."""
    run = ts.from_maxtext(HERE / "v6e_272m.yml", pod="v6e-8")
    return ts.diagnose(profile(), ts.simulate(run.model, run.plan, run.pod))


def main() -> None:
    """Print the diagnosis, and write its files if a folder is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    folder = parser.parse_args().out
    found = diagnosis()
    print(found)
    if folder is not None:
        write_diagnosis(found, folder)


if __name__ == "__main__":
    main()
