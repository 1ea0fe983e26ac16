"""The experiment on training runs: its table, and the compile times that were not fitted."""

import csv
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tpusim.training.compile_time import FIXED_S, PER_OPERATION_S, SPREAD

FOLDER = Path(__file__).parents[2] / "experiments" / "training_runs"


def compile_times() -> list[dict[str, str]]:
    with (FOLDER / "compile_times.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicted_over_measured(row: dict[str, str]) -> float:
    return (FIXED_S + PER_OPERATION_S * int(row["operations"])) / float(row["cpu_s"])


def test_compile_times_that_were_not_fitted_are_in_the_range() -> None:
    """All nine of the first table, and four of the five that were compiled later."""
    found = [predicted_over_measured(row) for row in compile_times() if row["held_out"] == "1"]
    within = [SPREAD[0] < each < SPREAD[1] for each in found]
    assert all(within[:9])
    assert (sum(within), len(found)) == (13, 14)


@pytest.mark.parametrize(
    ("experiment", "table"), [("run", "runs"), ("checkpoints", "checkpoints")]
)
def test_the_page_shows_what_the_experiment_prints(
    experiment: str,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, experiment, raising=False)
    import_module(experiment).main()
    monkeypatch.delitem(sys.modules, experiment)
    page = (FOLDER / "README.md").read_text("utf-8")
    shown = page.split(f"<!-- {table} -->\n")[1].split(f"<!-- /{table} -->")[0]
    assert shown == capsys.readouterr().out


def test_checkpoints_take_what_independent_sources_say() -> None:
    """BLOOM, whose hosts are known and which no constant has seen; others bracketed by storage."""
    page = (FOLDER / "README.md").read_text("utf-8")
    rows = page.split("<!-- checkpoints -->\n")[1].split("<!-- /checkpoints -->")[0].splitlines()
    found = {
        cells[1].split(",")[0].strip(): [
            [float(each) for each in cell.replace(" s ", "").split(",")] for cell in cells[2:4]
        ]
        for cells in (row.split("|") for row in rows[2:])
    }
    (published,), (predicted,) = found["BLOOM"]
    assert predicted == pytest.approx(published, rel=0.1)
    for (published, *_), (least, *_) in found.values():
        assert least < 1.1 * published
