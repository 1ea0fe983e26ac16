"""From modules to programs: the order of issue, loops, what runs beside the core, and names."""

from functools import cache

import pytest
from compiler_parts import DeviceIds, read_module
from hlo import DATA, module_of

from tpusim.base import Phase, PlanError
from tpusim.compiler import TranslatedModule
from tpusim.compiler.to_program.translate_module import translate_module
from tpusim.costs import Task, TaskLoop, cost_program
from tpusim.engine import run
from tpusim.hardware import parse_slice
from tpusim.program import (
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Loop,
    Mode,
    Transfer,
    TransferKind,
    WaitOp,
    walk_ops,
)

POD = parse_slice("v5e:2x2")
IN_ORDER = DeviceIds.in_order(POD)


@cache
def program(name: str, slice_: str = "v5e:2x2", costs: str = "model") -> TranslatedModule:
    text = (DATA / "by_hand" / f"{name}.hlo").read_text("utf-8")
    pod, module = parse_slice(slice_), module_of(text)
    devices = DeviceIds.in_order(pod)
    return translate_module(
        module, pod, devices, costs="compiler" if costs == "compiler" else "model"
    )


def test_a_loop_of_steps_of_two_stays_a_loop_with_half_the_trips() -> None:
    loop, reduced, out = program("ring").program.body
    assert isinstance(loop, Loop)
    assert (loop.name, loop.trips) == ("loop", 3)
    assert [type(op) for op in loop.body] == [Collective, Compute, WaitOp]
    assert isinstance(reduced, Collective)
    assert isinstance(out, Compute)


def test_a_start_runs_beside_the_core_and_its_done_is_waited_for() -> None:
    start, dot, wait = program("ring").program.body[0].body
    assert (start.kind, start.mode) == (CollectiveKind.PERMUTE, Mode.ASYNC)
    assert start.bytes == 2 * 4096 * 4096
    assert dot.deps == ()
    assert wait.deps == (Dep("start"),)


def test_a_collective_that_stands_alone_keeps_the_core() -> None:
    reduced = program("ring").program.body[1]
    assert (reduced.kind, reduced.mode) == (CollectiveKind.ALL_REDUCE, Mode.SYNC)
    assert reduced.bytes == 2 * 4096 * 4096


def test_passes_come_from_names_and_flops_are_of_all_devices() -> None:
    found = {op.name: op for op, _ in walk_ops(program("ring").program.body)}
    assert found["dot"].phase is Phase.RECOMPUTE
    assert found["sum"].phase is Phase.BACKWARD
    assert found["out"].phase is Phase.OPTIMIZER
    assert found["dot"].flops.recompute == 4 * 2 * 4096**3
    assert found["dot"].flops.model == 0


def test_what_crosses_slices_is_waited_for_where_it_arrives() -> None:
    module = read_module((DATA / "pipeline_v5e_2x2_x4.hlo.gz").read_bytes())
    pod = parse_slice("v5e:2x2 x 4")
    program = translate_module(module, pod, DeviceIds.in_order(pod)).program
    bodies = (op.body for op in program.body if isinstance(op, Loop))
    forward = next(body for body in bodies if any(op.name == "send.17" for op in body))
    plain = [op for op in forward if not isinstance(op, Loop)]
    waits = {dep.op: op.name for op in plain for dep in op.deps if dep.op.startswith("send")}
    assert waits == {
        "send.17": "constant_dynamic-update-slice_fusion.8",
        "send.16": "select_dynamic-update-slice_fusion.2",
        "send.15": "select_maximum_fusion.3",
    }


def test_a_rotation_over_slices_in_two_shares_no_network_card() -> None:
    """Forward the last stage sends to the first, and beside it all others to the next."""
    module = read_module((DATA / "pipeline_v5e_2x2_x4.hlo.gz").read_bytes())
    pod = parse_slice("v5e:2x2 x 4")
    found = translate_module(module, pod, DeviceIds.in_order(pod))
    body = cost_program(found.program, pod, found.placement).body
    tasks = {task.name: dict(task.uses) for loop in body if isinstance(loop, TaskLoop)
             for task in loop.body if isinstance(task, Task)}  # fmt: skip
    back, on = (tasks[name].keys() - {"hbm"} for name in ("send.16", "send.15"))
    assert back == {"dcn:3+", "dcn:0-"}
    assert on == {"dcn:0+", "dcn:1..2+", "dcn:1..2-", "dcn:3-"}
    assert tasks["send.17"].keys() - {"hbm"} == back | on


def test_casts_of_weights_before_the_forward_pass_belong_to_it() -> None:
    module = read_module((DATA / "encoder_v4_2x2x4.hlo.gz").read_bytes())
    pod = parse_slice("v4:2x2x4")
    body = translate_module(module, pod, DeviceIds.in_order(pod)).program.body
    first = next(at for at, op in enumerate(body) if isinstance(op, Loop))
    assert {op.phase for op in body[:first] if not isinstance(op, Loop)} == {Phase.FORWARD}
    assert body[-2].phase is Phase.OPTIMIZER


def test_operations_without_a_name_bear_that_of_their_loop() -> None:
    start = program("ring").program.body[0].body[0]
    assert start.phase is Phase.BACKWARD
    assert start.scope == ""


def test_the_time_is_that_of_the_longer_of_matmul_and_permute_in_each_trip() -> None:
    found = program("ring")
    costed = cost_program(found.program, POD, found.placement)
    timeline = run([costed])
    unfolded = run([costed], fold=False)
    assert timeline.total_ps == unfolded.total_ps
    by_label = {label for label, _ in timeline.core_ps}
    assert {"matmul", "vector"} <= by_label


def test_copies_to_the_chip_and_to_the_host_run_beside_the_core() -> None:
    brought, left, neg, last = program("copies").program.body
    assert isinstance(brought, Transfer)
    assert isinstance(left, Transfer)
    assert (brought.kind, brought.bytes) == (TransferKind.DMA, 2 * 4096**2)
    assert (left.kind, left.bytes) == (TransferKind.TO_HOST, 2 * 4096**2)
    assert neg.deps == (Dep("in"),)
    assert last.deps == (Dep("out"),)
    assert neg.work.read_bytes == 0, "its operand is on the chip"


def test_a_conditional_runs_its_costliest_branch_and_says_so() -> None:
    found = program("branches")
    assert [op.name for op in found.program.body] == ["little", "little (2)", "much"]
    (note,) = (note for note in found.notes if "conditional" in note)
    assert note == "conditional either runs large, the costliest of its 2 branches"


def test_notes_say_which_line_of_the_user_they_are_about() -> None:
    text = (DATA / "by_hand" / "branches.hlo").read_text("utf-8")
    line = (
        'false_computation=%large, metadata={op_name="f" source_file="/me/mine.py" source_line=7}'
    )
    found = translate_module(
        module_of(text.replace("false_computation=%large", line)), POD, IN_ORDER
    )
    assert any(note.startswith("conditional either (mine.py:7) runs large") for note in found.notes)


UNNAMED = """HloModule step, is_scheduled=true, num_partitions=4

ENTRY %main (p: bf16[256,256]) -> (bf16[256,256], bf16[256,256], bf16[256,256]) {
  %p = bf16[256,256]{1,0:T(8,128)(2,1)} parameter(0)
  %down = bf16[256,256]{1,0:T(8,128)(2,1)} negate(%p), metadata={op_name="jit(f)/transpose(jvp())/neg"}
  %new = bf16[256,256]{1,0:T(8,128)(2,1)} add(%p, %down), metadata={op_name="jit(f)/add"}
  %moved = bf16[256,256]{0,1:T(8,128)(2,1)} copy(%down)
  %product = bf16[256,256]{1,0:T(8,128)(2,1)} convolution(%down, %p), dim_labels=bf_io->bf
  ROOT %out = (bf16[256,256], bf16[256,256], bf16[256,256]) tuple(%new, %moved, %product)
}
"""  # noqa: E501


def test_a_product_without_a_name_is_of_the_pass_of_what_it_multiplies() -> None:
    found = {op.name: op for op in translate_module(module_of(UNNAMED), POD, IN_ORDER).program.body}
    assert found["moved"].phase is Phase.OPTIMIZER, "a copy: of the pass in which it is issued"
    assert found["product"].phase is Phase.BACKWARD


def test_an_end_without_a_beginning_in_sight_is_noted() -> None:
    text = (DATA / "by_hand" / "ring.hlo").read_text("utf-8")
    text = text.replace("collective-permute-done(%start)", "copy-done(%x)")
    found = translate_module(module_of(text), POD, DeviceIds.in_order(POD))
    assert "done ends a transfer that starts elsewhere: nothing waits for it" in found.notes


ALONE = """HloModule step, is_scheduled=true, num_partitions=4

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(128)} parameter(0)
  %t = token[] after-all()
  %r = (f32[8]{0:T(128)}, u32[], token[]) recv(%t), channel_id=1
  %e = (f32[8]{0:T(128)}, token[]) recv-done(%r), channel_id=1
  %got = f32[8]{0:T(128)} get-tuple-element(%e), index=0
  ROOT %out = f32[8]{0:T(128)} add(%p, %got)
}
"""


def test_what_is_received_and_never_sent_is_noted() -> None:
    found = translate_module(module_of(ALONE), POD, IN_ORDER)
    assert "e ends a transfer that starts elsewhere: nothing waits for it" in found.notes
    assert [op.deps for op in found.program.body] == [()]


def test_the_compilers_cycles_are_taken_where_they_are_asked_for() -> None:
    body = program("branches", costs="compiler").program.body
    assert [op.work.cycles for op in body] == [10, 10, 1000]


def test_a_module_of_other_devices_than_the_slice_is_refused() -> None:
    with pytest.raises(PlanError, match="for 4 devices, but v5e:4x4 has 16"):
        program("ring", "v5e:4x4")


def test_what_is_not_understood_is_costed_by_its_bytes_and_counted() -> None:
    found = program("strange")
    (op,) = found.program.body
    assert list(found.unknown) == ["what"]
    assert "SomethingNew" in found.unknown["what"]
    assert op.work.read_bytes + op.work.write_bytes == 2 * 2 * 4096**2


def test_operands_that_the_chip_cannot_multiply_are_multiplied_as_bf16() -> None:
    text = """HloModule narrow, is_scheduled=true

ENTRY %main (p: f8e4m3fn[256,256]) -> bf16[256,256] {
  %p = f8e4m3fn[256,256]{1,0:T(8,128)(4,1)} parameter(0)
  ROOT %d = bf16[256,256]{1,0:T(8,128)(2,1)} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""  # noqa: E501
    dtypes = {}
    for chip in ("v5e", "v6e"):
        pod = parse_slice(f"{chip}:1x1")
        (op,) = translate_module(module_of(text), pod, DeviceIds.in_order(pod)).program.body
        dtypes[chip] = op.work.dtype
    assert dtypes == {"v5e": "bf16", "v6e": "fp8"}
