"""A slice goes at the pace of its slowest chip."""

import pytest

from tpusim.costs.program_costs import expected_maximum, slowest_chip
from tpusim.hardware import Slice, load_chip
from tpusim.plan import Plan
from tpusim.simulation import simulate

PLAN = Plan(mesh={"fsdp": 8}, seq_len=2048, global_batch=8)


def test_the_slowest_of_more_chips_is_slower_and_one_chip_is_the_mean() -> None:
    jitter = load_chip("v6e").costs.chip_jitter
    factors = [slowest_chip(Slice("v6e", shape)) for shape in ("1x1", "2x4", "16x16")]
    assert factors[0] == 1
    assert factors[1] == pytest.approx(1 + 1.4236 * jitter, rel=1e-4)
    assert factors[2] == pytest.approx(1 + expected_maximum(256) * jitter)
    assert slowest_chip(Slice("v5p", "4x4x4")) == 1


def test_matmuls_and_attention_take_longer_and_vector_work_does_not() -> None:
    """HBM's bandwidth is the same on all chips."""
    with_it, without = (
        simulate("llama3.2-1b", PLAN, Slice(load_chip("v6e").replace(chip_jitter=jitter), "2x4"))
        for jitter in (0.04, 0.0)
    )
    factor = slowest_chip(with_it.pod)
    for kind, share in (("matmul", factor), ("attention", factor), ("vector", 1.0)):
        ratio = with_it.breakdown_s[kind] / without.breakdown_s[kind]
        assert ratio == pytest.approx(share, rel=1e-6)
