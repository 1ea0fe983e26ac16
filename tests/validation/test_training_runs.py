"""Predicted against measured step times of MaxText runs, none of which has a constant of its own.

`training_runs.csv` says for each run what was given (dimensions, mesh, batch), what was measured
and how far the prediction may be from it. Guessed: the placement (chosen), and that MaxText's
attention kernel was on in the 32-billion-parameter run.
"""

import csv
from pathlib import Path

import pytest

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.partition import Plan
from tpusim.simulation import simulate

Row = dict[str, str]
DIMENSIONS = ("layers", "embed", "mlp", "heads", "kv_heads", "head_dim", "vocab")


def rows() -> list[Row]:
    path = Path(__file__).with_name("training_runs.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def model_of(row: Row) -> Transformer:
    return Transformer(
        name=row["id"], gated=row["gated"] == "1", activation=row["activation"],
        tied_embeddings=row["tied_embeddings"] == "1",
        **{name: int(row[name]) for name in DIMENSIONS},
    )  # fmt: skip


def plan_of_row(row: Row) -> Plan:
    mesh = dict(part.split("=") for part in row["mesh"].split(";"))
    return Plan(
        mesh={axis: int(size) for axis, size in mesh.items()}, seq_len=int(row["seq_len"]),
        global_batch=int(row["global_batch"]), style="maxtext",
        save=tuple(filter(None, row["save"].split(";"))),
    )  # fmt: skip


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["id"])
def test_the_step_time_is_near_the_measured_one(row: Row) -> None:
    result = simulate(model_of(row), plan_of_row(row), Slice(row["chip"], row["topology"]))
    assert result.step_time_s == pytest.approx(float(row["step_s"]), rel=float(row["tolerance"]))


PARAMETERS = {
    "MT-v5e-32B-1x": 32.548e9,
    "MT-v5p-1024B-1x2048": 1031.469e9,
    "TR-v6e-Llama3.1-70B-256": 70.554e9,
}
"""As the sources print them."""


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["id"])
def test_the_model_is_the_one_that_ran(row: Row) -> None:
    assert model_of(row).parameter_count == pytest.approx(PARAMETERS[row["id"]], rel=0.001)
