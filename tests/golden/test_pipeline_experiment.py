"""Pathways' pipelines: 8 stages are as fast as 4, as measured, and the page says by how much."""

import pytest
from extent import thorough
from scripts import experiment
from test_topology_experiments import bold

import tpusim as ts

NAME = "pathways_pipeline"


def ratio(seq_len: int, tensor: int) -> float:
    run = experiment(NAME)
    four, eight = (
        ts.simulate(run.MODEL, run.plan(stages, microbatches, seq_len, tensor), run.POD)
        for stages, microbatches in run.TOKENS_PER_S
    )
    return eight.tokens_per_s / four.tokens_per_s


@pytest.mark.parametrize(("seq_len", "tensor"), [(512, 1), thorough(512, 4), thorough(1024, 2)])
def test_the_ratio_of_the_two_pipelines_is_the_measured_one(seq_len: int, tensor: int) -> None:
    four, eight = experiment(NAME).TOKENS_PER_S.values()
    assert ratio(seq_len, tensor) == pytest.approx(eight / four, rel=0.05)


def test_the_page_answers_with_the_ratio_of_today() -> None:
    assert bold(NAME)[0] == f"{ratio(512, 1):.3f}"
