"""GSPMD's three findings on dense models (arXiv:2105.04663), and the page that shows them."""

import pytest
from scripts import EXPERIMENTS, experiment

NAME = "gspmd_dense"


@pytest.fixture(scope="module")
def printed() -> str:
    return "\n".join(experiment(NAME).tables())


@pytest.mark.thorough
def test_the_page_has_the_tables_of_today(printed: str) -> None:
    page = (EXPERIMENTS / NAME / "README.md").read_text("utf-8")
    for table in printed.split("\n\n"):
        assert table in page


def test_the_step_grows_by_a_tenth_from_64b_to_1t() -> None:
    steps = [result.step_time_s for _, result in experiment(NAME).weak_scaling(128)]
    assert max(steps) / steps[0] < 1.11


def test_utilisation_is_that_of_the_paper() -> None:
    """50 to 62 %, within a twentieth."""
    used = [result.hfu for _, result in experiment(NAME).weak_scaling(128)]
    assert 0.50 * 0.95 < min(used) <= max(used) < 0.62 * 1.05


def test_the_best_pipeline_is_a_quarter_slower_than_two_dimensional_sharding() -> None:
    module = experiment(NAME)
    flat = module.best_mesh(module.deep(), module.ts.Slice("v3", module.DEEP_SLICE), 64)
    ratio = module.best_pipeline().step_time_s / flat.step_time_s
    assert ratio == pytest.approx(1.24, rel=0.06)
