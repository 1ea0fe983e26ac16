"""The experiment on failures: published numbers are met, and the page shows what it prints."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from extent import thorough

FOLDER = Path(__file__).parents[2] / "experiments" / "failures"

BOUNDS = {"MTTF": 0.03, "elastic recovery": 0.2, "throughput,": 0.02, "ETTR": 0.01}
"""How far a value may be from a published one, as a share of it."""


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    sys.modules.pop("run", None)
    yield import_module("run")
    sys.modules.pop("run", None)


@pytest.mark.parametrize(
    "part",
    ["mean_times", "ettr_runs", thorough("gemini"), "elastic_recovery", "blocking_saves"],
)
def test_published_numbers_are_met_and_shown(part: str, experiment: Any) -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    points = list(getattr(experiment, part)())
    assert points
    for point in points:
        assert str(point) in page
        bound = next((share for name, share in BOUNDS.items() if point.name.startswith(name)), None)
        if point.low < point.high:
            assert point.low < point.published < point.high, point
        else:
            assert bound is not None
            assert point.low == pytest.approx(point.published, rel=bound), point
