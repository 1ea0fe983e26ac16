"""The experiment on practices: what its page says is what the simulator says today."""

from types import ModuleType
from typing import Any

import pytest
from scripts import EXPERIMENTS
from scripts import experiment as load_experiment

FOLDER = EXPERIMENTS / "tpu_practice"


@pytest.fixture(scope="module")
def experiment() -> ModuleType:
    return load_experiment("tpu_practice")


@pytest.fixture(scope="module")
def gains(experiment: ModuleType) -> dict[str, Any]:
    return {gain.practice.what: gain for gain in experiment.gains()}


@pytest.fixture(scope="module")
def page() -> str:
    return (FOLDER / "README.md").read_text("utf-8")


@pytest.mark.thorough
def test_the_page_has_the_table_of_today(gains: dict[str, Any], page: str) -> None:
    shown = page.split("<!-- gains -->\n")[1].split("<!-- /gains -->")[0].splitlines()[2:]
    assert shown == [str(gain) for gain in gains.values()]


@pytest.mark.thorough
def test_the_answer_has_the_numbers_of_today(gains: dict[str, Any], page: str) -> None:
    for what in (
        "reads of 8 MiB",
        "mixed precision (ResNet-50, batch 2048)",
        "int8 matmuls and gathers",
        "pipeline over 4 slices",
    ):
        assert f"**{gains[what].times}**" in page


def test_starved_rates_are_those_of_the_slow_stage(
    gains: dict[str, Any], experiment: ModuleType
) -> None:
    """In images per second of two hosts, from the numbers of the input alone."""
    hosts, read_s = 2, 0.05
    expected = {
        "a thread for each vCPU decodes": hosts * 8 / 2.1e-3,
        "batches copied in one pass": hosts * 2_650,
        "reads of 8 MiB": hosts * 32 / (read_s + experiment.IMAGE_BYTES / 210e6),
        "images compressed (JPEG)": hosts
        * (32 * 2**23 / (read_s + 2**23 / 210e6))
        / experiment.RAW_BYTES,
    }
    for what, rate in expected.items():
        assert gains[what].before == pytest.approx(rate, rel=1e-3), what


def test_one_practice_differs_between_the_runs(experiment: ModuleType) -> None:
    """But for the parallelism, whose chips may differ too, the two runs have the same model."""
    for practices in (experiment.of_input, experiment.of_computation, experiment.of_batch):
        for each in practices():
            without, followed = each.without, each.followed
            assert str(without.pod) == str(followed.pod)
            parts = ("model", "plan", "input")
            changed = [part for part in parts if getattr(without, part) != getattr(followed, part)]
            assert len(changed) == 1, each.what
