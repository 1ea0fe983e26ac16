"""Random numbers of stochastic rounding: how many, how large, and where they are drawn."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from plans import plan_of, program_of, small

from tpusim.base import Phase, PlanError
from tpusim.export import export_step
from tpusim.hardware import Slice
from tpusim.plan import Plan
from tpusim.program import Compute, Loop, Op, Program, VectorWork
from tpusim.simulation import simulate

EMBED, MLP, HEADS, HEAD_DIM, SEQ = 64, 256, 8, 32, 16
MODEL = small(gated=False, fused_qkv=True, rotary=False)
POD = Slice("v5e", "2x4")
INT8 = {"matmul_dtype": "int8", "gather_dtype": "int8"}
BYTES = {"u16": 2, "u32": 4}


def int8(mesh: Mapping[str, int], **keys: Any) -> Plan:
    return plan_of(dict(mesh), **{**INT8, "quantisation_noise": "u32", **keys})


def computes(ops: tuple[Op, ...]) -> Iterator[Compute]:
    for op in ops:
        if isinstance(op, Loop):
            yield from computes(op.body)
        elif isinstance(op, Compute):
            yield op


def passes(program: Program, start: str) -> dict[str, VectorWork]:
    """The work of the passes of a layer whose names start so, by what they write."""
    return {
        op.name.removeprefix(start): op.work
        for op in computes(program.body)
        if op.name.startswith(start) and isinstance(op.work, VectorWork)
    }


@pytest.mark.parametrize("noise", BYTES)
def test_each_gradient_is_rounded_once_for_each_of_its_two_matmuls(noise: str) -> None:
    """Eight a layer with four matrices, as MaxText's program of GPT-3 has generators."""
    plan = int8({"fsdp": 8}, quantisation_noise=noise)
    drawn = passes(program_of(MODEL, plan, POD), "noise/")
    tokens = plan.global_batch // 8 * SEQ
    made = 3 * HEADS * HEAD_DIM + EMBED + MLP + EMBED
    assert len(drawn) == 8
    assert sum(work.write_bytes for work in drawn.values()) == 2 * tokens * made * BYTES[noise]
    assert all(work.read_bytes == 0 for work in drawn.values())


def test_the_pass_that_quantises_reads_them_and_no_other_does() -> None:
    plan = int8({"fsdp": 8})
    with_noise = passes(program_of(MODEL, plan, POD), "quantise/")
    without = passes(program_of(MODEL, plan.replace(quantisation_noise=""), POD), "quantise/")
    drawn = passes(program_of(MODEL, plan, POD), "noise/")
    assert with_noise.keys() == without.keys()
    for name, work in with_noise.items():
        more = drawn[name].write_bytes if name in drawn else 0
        assert work.read_bytes - without[name].read_bytes == more
        assert work.write_bytes == without[name].write_bytes


def test_forward_and_recomputed_operands_are_rounded_to_the_nearest() -> None:
    program = program_of(MODEL, int8({"fsdp": 8}), POD)
    phases = {op.phase for op in computes(program.body) if op.name.startswith("noise/")}
    assert phases == {Phase.BACKWARD}


def test_a_gathered_gradient_is_rounded_where_its_shards_are() -> None:
    """With activations sharded by embed, the gradient of a layer's result is gathered in int8."""
    plan = int8({"fsdp": 4, "tensor": 2}, rules={"act_embed": "tensor"})
    drawn = passes(program_of(MODEL, plan, POD), "noise/")
    tokens = plan.global_batch // 4 * SEQ
    made = (3 * HEADS * HEAD_DIM + EMBED + MLP + EMBED) / 2
    assert sum(work.write_bytes for work in drawn.values()) == 2 * tokens * made * 4


def test_without_quantised_matmuls_there_is_nothing_to_round() -> None:
    plan = plan_of({"fsdp": 8}, quantisation_noise="u32")
    quiet = plan.replace(quantisation_noise="")
    assert not passes(program_of(MODEL, plan, POD), "noise/")
    assert simulate(MODEL, plan, POD).step_time_s == simulate(MODEL, quiet, POD).step_time_s


def test_gradients_in_bf16_have_none() -> None:
    plan = int8({"fsdp": 8}, matmul_dtype_dx="bf16", matmul_dtype_dw="bf16", gather_dtype="")
    assert not passes(program_of(MODEL, plan, POD), "noise/")


def test_other_numbers_are_refused() -> None:
    with pytest.raises(PlanError, match=r"plan\.quantisation_noise is 'f32'"):
        plan_of({"fsdp": 8}, quantisation_noise="f32")


def test_an_exported_step_rounds_to_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"plan.dtypes.noise is 'u32'.*leave it out"):
        export_step(MODEL, int8({"fsdp": 8}, seq_len=128), POD)
