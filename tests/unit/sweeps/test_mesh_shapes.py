"""The experiment on mesh shapes: it runs, and its page says the number of today."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tpusim as ts
from tpusim.base import format_seconds

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "experiments" / "mesh_shapes"


@pytest.mark.thorough
def test_the_quick_experiment_writes_its_table_and_figures(tmp_path: Path) -> None:
    script = [sys.executable, str(FOLDER / "run.py"), "--quick", "--workers", "1"]
    answer = subprocess.run(
        [*script, "--out", str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert answer.stdout.startswith("36 plans, ")
    assert {file.name for file in tmp_path.iterdir()} == {"plans.csv", "mfu.svg", "ranking.svg"}


def test_the_readme_answers_with_the_number_of_today() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    plan = ts.Plan(
        mesh={"fsdp": 128, "tensor": 16}, seq_len=512, global_batch=4096, optimizer="adafactor",
        rules={"act_embed": "tensor"},
    )  # fmt: skip
    result = ts.simulate(ts.models.load("bert-480b"), plan, ts.Slice("v4", "8x16x16"))
    assert re.findall(r"\*\*([\d.]+ m?s)\*\*", page) == [format_seconds(result.step_time_s)]
    assert f"{result.mfu:.1%}".replace("%", " %") in page


def test_its_figures_exist() -> None:
    figures = re.findall(r"!\[[^]]+\]\((\S+)\)", (FOLDER / "README.md").read_text("utf-8"))
    assert figures == ["mfu.svg", "ranking.svg"]
    assert all((FOLDER / figure).is_file() for figure in figures)
