"""Programs of an older compiler (jax 0.5.3, libtpu 0.0.11.1), and of before code generation."""

import pytest
from compiler_parts import BEFORE_CODE
from hlo import DATA

import tpusim as ts
from tpusim.base import Phase, PlanError
from tpusim.program import AttentionWork, walk_ops
from tpusim.results import ReplayResult

pytest.importorskip("jaxlib.xla_client")

FORWARD = [(Phase.FORWARD, ""), (Phase.RECOMPUTE, "")]
KERNELS = {
    "splash": [*FORWARD, (Phase.BACKWARD, "dq"), (Phase.BACKWARD, "dkv")],
    "splash_fused": [*FORWARD, (Phase.BACKWARD, "all")],
    "splash_before_code": [*FORWARD, (Phase.BACKWARD, "dq"), (Phase.BACKWARD, "dkv")],
}
"""Attention kernels of each program: the pass, and the part of the backward pass."""


def replay(name: str, costs: str = "model") -> ReplayResult:
    compiled = ts.xla.load(DATA / "older" / f"{name}_v5e_2x2.hlo.gz")
    return ts.simulate(compiled, pod=ts.Slice("v5e", "2x2"), costs=costs)


@pytest.mark.parametrize("name", KERNELS)
def test_programs_of_an_older_compiler_replay_with_nothing_unknown(name: str) -> None:
    """Their kernels run in blocks of 256 x 512, over two examples a device and grouped queries."""
    found = replay(name)
    assert not found.unknown
    kernels = [
        (op, op.work)
        for op, _ in walk_ops(found.program.body)
        if isinstance(getattr(op, "work", None), AttentionWork)
    ]
    seen = sorted((op.phase, work.part) for op, work in kernels)
    assert seen == sorted(KERNELS[name])
    for _, work in kernels:
        assert (work.batch, work.heads, work.q_len, work.block) == (2, 8, 1024, (256, 512))


def test_a_dump_of_before_code_generation_replays_with_a_note() -> None:
    """Its time is that of the same program with its code, to a few percent."""
    before, after = replay("splash_before_code"), replay("splash")
    assert BEFORE_CODE in before.remarks
    assert BEFORE_CODE not in after.remarks
    assert before.step_time_s == pytest.approx(after.step_time_s, rel=0.03)
    assert before.flops.total == after.flops.total


def test_the_compiler_s_costs_of_a_program_without_its_estimates_are_refused() -> None:
    assert replay("splash", "compiler").costs == "compiler"
    with pytest.raises(PlanError, match=r"no cycle estimates .* write costs='model'"):
        replay("splash_before_code", "compiler")
