"""The experiment on training runs: its table, and the compile times that were not fitted."""

import csv
import sys
from importlib import import_module
from pathlib import Path

import pytest
from extent import thorough

import tpusim as ts
from tpusim.hardware import parse_slice
from tpusim.training import program_size
from tpusim.training.compile_time import SPREAD, ProgramSize, seconds_of_size

FOLDER = Path(__file__).parents[2] / "experiments" / "training_runs"


def compile_times() -> list[dict[str, str]]:
    with (FOLDER / "compile_times.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicted_over_measured(row: dict[str, str]) -> float:
    size = ProgramSize(int(row["operations"]), float(row["decades"]))
    return seconds_of_size(size, parse_slice(row["slice"]).chip) / float(row["cpu_s"])


def test_compile_times_that_were_not_fitted_are_in_the_range() -> None:
    found = {
        row["program"]: predicted_over_measured(row)
        for row in compile_times()
        if row["held_out"] == "1"
    }
    within = [name for name, each in found.items() if SPREAD[0] < each < SPREAD[1]]
    assert (len(within), len(found)) == (30, 30), sorted(found.items(), key=lambda each: each[1])


def test_sizes_of_the_table_are_those_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the programs; none that judges was fitted."""
    monkeypatch.syspath_prepend(str(FOLDER))
    sample = import_module("compile_sample")
    rows = {row["program"]: row for row in compile_times()}
    assert sum(row["held_out"] == "0" for row in rows.values()) == 30
    held_out = {name for name, row in rows.items() if row["held_out"] == "1"}
    assert held_out == {each.name for each in sample.HELD_OUT}
    for each in (*sample.FIT, *sample.HELD_OUT)[::3]:
        model, plan, pod = each.arguments()
        found = ts.simulate(model, plan, pod)
        size = program_size(found.programs, scanned=found.plan.remat.scan_layers)
        row = rows[each.name]
        assert size.operations == int(row["operations"]), each.name
        assert size.decades == pytest.approx(float(row["decades"]), abs=0.06), each.name


@pytest.mark.parametrize(
    ("experiment", "table"), [thorough("run", "runs"), thorough("checkpoints", "checkpoints")]
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
