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


def test_the_page_shows_what_the_experiment_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "run", raising=False)
    import_module("run").main()
    monkeypatch.delitem(sys.modules, "run")
    page = (FOLDER / "README.md").read_text("utf-8")
    shown = page.split("<!-- runs -->\n")[1].split("<!-- /runs -->")[0]
    assert shown == capsys.readouterr().out
