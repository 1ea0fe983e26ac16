"""Notes of where the compiler's costs and the model's are far apart."""

import pytest
from hlo import DATA

from tpusim.base import Phase
from tpusim.compiler import load
from tpusim.hardware import load_chip
from tpusim.program import Compute, Loop, Program, VectorWork, Work
from tpusim.simulation import replay
from tpusim.simulation.two_costs import far_apart

DEVICE = load_chip("v5e").device
BYTES = 819e6 * DEVICE.costs.hbm_efficiency
"""Bytes that a copy moves in a millisecond."""


def notes(**cycles: float) -> list[str]:
    """The notes of two passes of a millisecond, one of them ten times, with these estimates."""
    work = VectorWork(BYTES, 0, 0)
    once, often = (Compute(name=name, phase=Phase.FORWARD, work=work) for name in ("once", "often"))
    program = Program(name="p", axes=(), body=(once, Loop(name="l", trips=10, body=(often,))))
    both: dict[str, tuple[Work, int]] = {n: (work, int(each)) for n, each in cycles.items()}
    return list(far_apart(program, both, DEVICE))


def test_totals_are_compared_with_each_run_of_a_loop():
    """Eleven milliseconds, and by the estimates one and ten of two: 21."""
    (said,) = notes(once=DEVICE.clock / 1e3, often=DEVICE.clock / 500)
    assert "vector work are 1.9 times apart" in said
    assert "by shapes 11 ms per step, by the compiler's estimates 21 ms" in said


def test_one_operation_among_many_says_nothing():
    assert not notes(once=DEVICE.clock / 200, often=DEVICE.clock / 1e3)


def test_operations_without_an_estimate_are_left_out():
    assert not notes()
    assert not notes(often=DEVICE.clock / 1e3)


@pytest.mark.parametrize("costs", ["model", "compiler"])
def test_a_replay_says_so_under_either_choice(costs: str) -> None:
    pytest.importorskip("jaxlib.xla_client")
    result = replay(load(DATA / "encoder_v4_2x2x4.hlo.gz"), costs=costs)
    assert any("costs of vector work" in remark for remark in result.remarks)
    assert not any("costs of matmul work" in remark for remark in result.remarks)
