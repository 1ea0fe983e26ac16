"""The experiment on batch sizes: what its page says is what the simulator says today."""

from itertools import pairwise
from types import ModuleType

import pytest
from scripts import EXPERIMENTS
from scripts import experiment as load_experiment

FOLDER = EXPERIMENTS / "batch_size"


@pytest.fixture(scope="module")
def experiment() -> ModuleType:
    return load_experiment("batch_size")


@pytest.fixture(scope="module")
def page() -> str:
    return (FOLDER / "README.md").read_text("utf-8")


@pytest.mark.thorough
def test_the_page_has_the_tables_of_today(experiment: ModuleType, page: str) -> None:
    sizes, changes = (
        page.split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->")[0].splitlines()[2:]
        for name in ("sizes", "changes")
    )
    assert sizes == [experiment.size_line(row) for row in experiment.sizes()]
    assert changes == [experiment.change_line(what, row) for what, row in experiment.changed()]


def test_the_answer_has_the_numbers_of_today(experiment: ModuleType, page: str) -> None:
    few, many = experiment.fewest("8x8", 512), experiment.fewest("16x16", 512)
    assert f"**{few.days / many.days:.1f}** times less time" in page
    assert f"**{many.usd[0] / few.usd[0] - 1:.0%}** more".replace("%**", "** %") in page
    large = [experiment.fewest(shape, 2048).usd[0] for shape in ("8x8", "16x16")]
    assert large[0] == pytest.approx(large[1], rel=0.015)
    changed = dict(experiment.changed())
    base = next(iter(changed.values()))
    for what, said in (
        ("2 microbatches", "2 microbatches take {} % longer"),
        ("4 microbatches", "and 4 take {} %"),
    ):
        longer = changed[what].days / base.days - 1
        assert said.format(round(100 * longer)) in page


def test_time_and_cost_follow_from_the_step(experiment: ModuleType) -> None:
    """The run is its steps and a start that is short beside days; it costs its chip-hours."""
    prices = set()
    for row in experiment.sizes((512, 2048)):
        steps = -(-experiment.TOKENS // (row.batch * experiment.SEQ_LEN))
        stepping = steps * row.step_s / experiment.DAY_S
        assert stepping < row.days < stepping + 300 / experiment.DAY_S
        prices.add(round(row.usd[0] / (row.days * 24 * row.chips), 6))
    assert len(prices) == 1


def test_more_microbatches_than_needed_only_cost(experiment: ModuleType) -> None:
    """Each takes longer and holds less than the one with fewer, at the same global batch."""
    rows = [experiment.trained("8x8", 512, (("microbatches", count),)) for count in (1, 2, 4, 8)]
    for fewer, more in pairwise(rows):
        assert more.step_s > fewer.step_s
        assert more.hbm < fewer.hbm


def test_microbatches_of_the_same_size_have_the_same_mfu(experiment: ModuleType) -> None:
    """But for the optimizer and the launch of the step, which are once for all of them."""
    found = [
        experiment.trained("8x8", 256 * count, (("microbatches", count),)).mfu
        for count in (1, 2, 4, 8)
    ]
    assert found == pytest.approx([found[0]] * 4, rel=0.005)
