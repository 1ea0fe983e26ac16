"""Pathways' pipelines: 8 stages are as fast as 4, as measured, and the page says by how much."""

import re
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import tpusim as ts

FOLDER = Path(__file__).parents[2] / "experiments" / "pathways_pipeline"


@cache
def experiment() -> ModuleType:
    spec = spec_from_file_location("pathways_pipeline", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ratio(seq_len: int, tensor: int) -> float:
    run = experiment()
    four, eight = (
        ts.simulate(run.MODEL, run.plan(stages, microbatches, seq_len, tensor), run.POD)
        for stages, microbatches in run.TOKENS_PER_S
    )
    return eight.tokens_per_s / four.tokens_per_s


@pytest.mark.parametrize(("seq_len", "tensor"), [(512, 1), (512, 4), (1024, 2)])
def test_the_ratio_of_the_two_pipelines_is_the_measured_one(seq_len: int, tensor: int) -> None:
    four, eight = experiment().TOKENS_PER_S.values()
    assert ratio(seq_len, tensor) == pytest.approx(eight / four, rel=0.05)


def test_the_page_answers_with_the_ratio_of_today() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    assert re.findall(r"\*\*([\d.]+)\*\*", page)[0] == f"{ratio(512, 1):.3f}"
