"""Operations of 7x in profiles, predicted from their HLO lines."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from tests.scripts import EXPERIMENTS, script

FOLDER = EXPERIMENTS / "operations"
FEWEST = 10
"""Rows of a kind that its error is held to."""


@pytest.fixture(scope="module")
def run() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    yield script(FOLDER / "run.py")
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def predicted(run: ModuleType) -> pd.DataFrame:
    table = pd.read_csv(FOLDER / "measured_7x.csv").fillna("").to_dict("records")
    return pd.DataFrame([run._predicted(row, run.Measured.of(row, [])) for row in table])


def test_each_row_is_predicted(predicted: pd.DataFrame) -> None:
    assert list(predicted["note"].unique()) == [""]


@pytest.mark.parametrize(
    ("column", "low", "high"),
    [("median_error", 0, 8), ("p90_error", 0, 30), ("median_ratio", 0.96, 1.04)],
)
def test_kinds_of_ten_rows_or_more_are_near(
    run: ModuleType, predicted: pd.DataFrame, column: str, low: float, high: float
) -> None:
    found = run.by_chip_and_kind(predicted)
    many = found[found["rows"] >= FEWEST]
    assert len(many) == 5
    assert many[column].between(low, high).all(), many


def test_the_page_has_the_figures_of_today(run: ModuleType, predicted: pd.DataFrame) -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    for (_, kind), row in run.by_chip_and_kind(predicted).iterrows():
        after = f"{row['median_error']:.1f} | {row['p90_error']:.1f} | {row['median_ratio']:.2f} |"
        assert f"| {kind} | {row['rows']:.0f} |" in page
        assert after in page, kind


@pytest.mark.parametrize(
    "params",
    [
        "% = ",
        "% = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(",
        "% = bf16[8,128]{1,0} fusion(bf16[8,12",
        "% = (f32[8]{0}, f32[8]{0}) custom-call(f32[8]{0} %, (n=2; hbm 1.00 MB vmem 0.00 MB)",
        "% = bf16[8,128]{1,0} all-reduce(bf16[8,128]{1,0} %), replica_groups={{0,",
        "% = bf16[8,128]{1,0:T(8,128)} unknown-opcode(bf16[8,128]{1,0:T(8,128)} %)",
        "% = s32[]{:T(128)} copy(s32[]{:T(128)} %)",
    ],
)
def test_any_line_gives_a_time_or_a_note(run: ModuleType, params: str) -> None:
    row = {"id": "x", "chip": "7x", "kind": "loop fusion", "params": params, "measured_us": 1.0}
    found = run._predicted(row, run.Measured.of(row, []))
    assert found["note"].startswith("no prediction: ") or found["predicted_us"] > 0


def test_a_whole_line_of_a_profile_is_the_one_of_closest_time(run: ModuleType) -> None:
    cut = "x: loop fusion | % = f32[8]{0} negate(f32[8]{0} (n=2; hbm 0.00 MB vmem 0.00 MB)"
    lines = [(f"%negate.{n} = f32[8]{{0}} negate(f32[8]{{0}} %p), m={n}", float(n)) for n in (1, 5)]
    row = {"id": "x", "chip": "7x", "kind": "loop fusion", "params": cut, "measured_us": 4.0}
    assert run.Measured.of(row, [*lines, ("%other = f32[8]{0} copy()", 4.0)]).line == lines[1][0]
    assert Path(run.__file__).name == "run.py"
