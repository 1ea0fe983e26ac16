"""The files of a comparison, and what its figure shows."""

import csv
import json
from pathlib import Path

import pytest
from twins import compared

from tpusim.base import FileError
from tpusim.report import check_data, plot_check, write_check

TOTALS = (
    *("plan_step_s", "program_step_s", "plan_flops", "program_flops"),
    *("plan_hbm_bytes", "program_hbm_bytes", "same_mode_share"),
)


def test_it_writes_five_files_twice_the_same(tmp_path: Path) -> None:
    found = compared("asynchronous")
    for folder in ("a", "b"):
        write_check(found, tmp_path / folder)
    names = {"check.txt", "check.json", "differences.csv", "check.png", "report.html"}
    assert {file.name for file in (tmp_path / "a").iterdir()} == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    facts = json.loads((tmp_path / "a" / "check.json").read_text())
    assert [facts[key] for key in TOTALS] == [getattr(found, key) for key in TOTALS]
    with (tmp_path / "a" / "differences.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["words"] for row in rows] == [row.words for row in found.differences]
    whole = sum(float(row["program_s"]) for row in rows)
    assert whole == pytest.approx(found.program_step_s, abs=1e-9)
    assert (tmp_path / "a" / "check.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file is a file; give a folder"):
        write_check(compared("rings"), tmp_path / "file")


@pytest.mark.parametrize("kind", ["rings", "merged", "tensor"])
def test_the_figure_shows_both_steps_whole(kind: str) -> None:
    found = compared(kind)
    data = check_data(found)
    assert sum(row.plan for row in data.times) == pytest.approx(found.plan_step_s)
    assert sum(row.program for row in data.times) == pytest.approx(found.program_step_s)
    wire = sum(sum(modes.values()) for *_, modes in data.wire)
    assert wire == pytest.approx(sum(sum(row.wire_bytes) for row in found.collectives), rel=2e-3)
    axes = plot_check(found)
    assert len(axes) == 4
    labels = [label.get_text() for label in axes[0].get_yticklabels()]
    assert labels == ["plan", "program"]
