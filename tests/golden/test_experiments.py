"""The experiments in the repository: each runs, and its page and figure say what it gives."""

import re
from functools import cache
from pathlib import Path

import pytest

import tpusim as ts
from tpusim.base import format_seconds
from tpusim.report.figures.breakdown import breakdown_title
from tpusim.results import Result

FOLDER = Path(__file__).parents[2] / "experiments"

NAMES = sorted(path.parent.name for path in FOLDER.glob("*/run.toml"))


@cache
def result(name: str) -> Result:
    run = ts.read_run(FOLDER / name / "run.toml")
    return ts.simulate(run.model, run.plan, run.pod)


def test_the_flagship_is_among_them() -> None:
    assert "bert_480b" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_answers_with_the_number_of_today(name: str) -> None:
    """The first bold number of each page is the simulated step time."""
    page = (FOLDER / name / "README.md").read_text("utf-8")
    answers = re.findall(r"\*\*([\d.]+ m?s)\*\*", page)
    assert answers[:1] == [format_seconds(result(name).step_time_s)]


@pytest.mark.parametrize("name", NAMES)
def test_the_figure_is_the_one_of_today(name: str) -> None:
    page = (FOLDER / name / "README.md").read_text("utf-8")
    figures = re.findall(r"!\[[^]]+\]\((\S+)\)", page)
    assert figures
    for figure in figures:
        drawn = (FOLDER / name / figure).read_text("utf-8")
        assert f"<title>{breakdown_title(result(name))}</title>" in drawn
