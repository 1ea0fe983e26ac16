"""The attention kernels of measured runs: what their recipes set, what notes say, and defaults."""

import csv
from pathlib import Path

import pytest

from tpusim.plan import Plan
from tpusim.validation.attention_kernels import RECIPES, attention_kernel_of
from tpusim.validation.measured_runs import measured_runs
from tpusim.validation.run_setup import set_up

TABLE = Path(__file__).parents[2] / "validation" / "training_runs.csv"
with TABLE.open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))
RUNS = {run.id: run for run in measured_runs(tuple(ROWS[0]), ROWS)[0]}


@pytest.mark.parametrize(
    ("name", "forward", "backward", "fused"),
    [
        ("TR-v6e-Llama3.1-70B-256-pdb4", (2048, 2048), (2048, 2048), True),
        ("TR-v7x-70b-128k-bf16-head", (2048, 2048), (1024, 4096), True),
        ("TR-v7x-gemma4-e4b-64", (1024, 1024), (1024, 1024), True),
        ("TR-v7x-gemma4-26b-64", (1024, 1024), (2048, 2048), True),
        ("TR-v7x-qwen3-bf16-head", (1024, 1024), (2048, 2048), True),
        ("TR-v6e-GPT3-bf16", (1024, 512), (2048, 512), False),
        ("TP-v6e-L3-8B-GBS512", (512, 512), (512, 512), False),
        ("TP-v6e-L3-8B-GBS1024", (2048, 2048), (2048, 2048), True),
        ("HY3-v5p-256", (2048, 2048), (2048, 2048), False),
        ("HY3-v5p-256-tuned", (2048, 2048), (2048, 2048), True),
        ("MAR-speed-1.2B-adamw", (512, 512), (512, 512), False),
        ("MT-v5p-Llama2-70B-512chips", (512, 512), (512, 512), False),
    ],
)
def test_a_run_has_the_kernel_of_its_recipe(
    name: str, forward: tuple[int, int], backward: tuple[int, int], fused: bool
) -> None:
    kernel = set_up(RUNS[name]).plan.attention_kernel
    assert kernel.block_of(backward=False) == forward
    assert kernel.block_of(backward=True) == backward
    assert kernel.fused is fused


def test_each_recipe_is_of_some_run_and_sets_keys_of_a_plan() -> None:
    found = [attention_kernel_of(run) for run in RUNS.values()]
    for _, keys in RECIPES:
        assert keys in found
        Plan(mesh={"data": 1}, global_batch=1, **keys)


def test_a_kernel_that_is_not_the_default_is_noted() -> None:
    notes = set_up(RUNS["TR-v6e-GPT3-bf16"]).notes
    expected = "attention in blocks of 1024 x 512 and backward in two kernels, as its recipe has it"
    assert expected in notes
    assert not any("attention in blocks" in note for note in set_up(RUNS["HY3-v5p-256"]).notes)
