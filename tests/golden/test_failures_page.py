"""The experiment on failures: published numbers are met, and the page shows what it prints."""

import pytest
from extent import thorough
from scripts import EXPERIMENTS, experiment

FOLDER = EXPERIMENTS / "failures"

BOUNDS = {"MTTF": 0.03, "elastic recovery": 0.2, "throughput,": 0.02, "ETTR": 0.01}
"""How far a value may be from a published one, as a share of it."""


@pytest.mark.parametrize(
    "part",
    ["mean_times", "ettr_runs", thorough("gemini"), "elastic_recovery", "blocking_saves"],
)
def test_published_numbers_are_met_and_shown(part: str) -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    points = list(getattr(experiment("failures"), part)())
    assert points
    for point in points:
        assert str(point) in page
        bound = next((share for name, share in BOUNDS.items() if point.name.startswith(name)), None)
        if point.low < point.high:
            assert point.low < point.published < point.high, point
        else:
            assert bound is not None
            assert point.low == pytest.approx(point.published, rel=bound), point
