"""GNMT: weights and FLOPs in closed form, and where the gradients of weights are added up."""

import pytest

import tpusim as ts
from tpusim.base import PlanError
from tpusim.graph import Einsum, Remat, Scan, TensorRole, training_step, walk
from tpusim.models import Gnmt

U, V = 1024, 32320
POD = ts.Slice("v4", "2x2x2")


def plan(**keys: object) -> ts.Plan:
    return ts.Plan(**({"mesh": {"data": 8}, "seq_len": 32, "global_batch": 256} | keys))


def lstm(inputs: int) -> int:
    """Weights of an LSTM: of its inputs and of its own state, four gates each."""
    return 4 * U * (inputs + U)


ENCODER = 2 * lstm(U) + lstm(2 * U) + 2 * lstm(U)
DECODER = lstm(2 * U) + 3 * lstm(2 * U)


def test_weights_are_those_of_the_layers() -> None:
    """Biases are not counted; attention has two matrices and a vector."""
    others = ENCODER + DECODER + 2 * U**2 + U
    assert Gnmt().parameter_count == others + 2 * V * U
    assert Gnmt(shared_embedding=False).parameter_count == others + 3 * V * U


def test_flops_are_those_of_the_weights() -> None:
    """Scores and contexts are element-wise, and count none."""
    source, target, batch = 40, 32, 4
    flops = 2 * batch * (source * (ENCODER + U**2) + target * (DECODER + U**2 + U * V))
    graph = Gnmt(target_len=target).graph(batch=batch, seq_len=source)
    assert graph.model_flops() == flops


@pytest.mark.parametrize("after", [False, True])
def test_the_backward_pass_costs_twice_the_forward_pass(after: bool) -> None:
    """Whether gradients of weights are added up in the loops or made after them."""
    forward = Gnmt(weights_after=after).graph(batch=4, seq_len=32)
    step = training_step(forward, Remat())
    assert step.model_flops() == 3 * forward.model_flops()
    assert {name for name, _ in step.gradients} == {p.tensor.name for p in step.parameters}


def test_gradients_of_weights_leave_the_loops() -> None:
    """But that of the queries' weight, whose gradients the steps do not stack."""

    def summed(after: bool) -> set[str]:
        step = training_step(Gnmt(weights_after=after).graph(batch=4, seq_len=32), Remat())
        scans = [op for op in step.ops if isinstance(op, Scan) and op.name.endswith("/d")]
        weights = {p.tensor.name for p in step.parameters}
        return {t.primal for scan in scans for _, t in scan.sums if t.primal in weights}

    assert summed(True) == {"decoder_0_query", "decoder_0_v"}
    assert summed(False) > summed(True) | {"encoder_0_forward_wh", "decoder_0_wa"}


def test_a_gradient_after_the_loop_is_over_all_steps() -> None:
    step = training_step(Gnmt().graph(batch=4, seq_len=32), Remat())
    made = [
        op for op, _ in walk(step.ops)
        if isinstance(op, Einsum) and op.output.primal == "encoder_1_wh"
    ]  # fmt: skip
    (one,) = made
    assert one in step.ops
    assert set(one.lhs.dims) & set(one.rhs.dims) == {"batch", "seq"}
    assert one.flops(step.sizes) == 2 * 4 * 32 * U * 4 * U


def test_steps_are_not_computed_again() -> None:
    """The sums of the gates are saved, and states as they enter a step."""
    step = training_step(Gnmt().graph(batch=4, seq_len=32), Remat())
    scans = {op.name: op for op in step.ops if isinstance(op, Scan)}
    assert {t.short for t in scans["encoder_1"].saves} == {"encoder_1_gates", "encoder_1_c_in"}
    again = {op.name for op in scans["encoder_1/d"].body if op.phase == "recompute"}
    assert not again


@pytest.mark.parametrize("mesh", [{"data": 8}, {"fsdp": 8}, {"fsdp": 4, "tensor": 2}])
def test_it_runs_on_any_mesh(mesh: dict[str, int]) -> None:
    result = ts.simulate(Gnmt(), plan(mesh=mesh), POD)
    assert 0 < result.mfu < 1


def test_it_has_no_layers_to_cut() -> None:
    with pytest.raises(PlanError, match="gnmt cannot be cut into stages"):
        ts.simulate(Gnmt(), plan(mesh={"stage": 2, "data": 4}, microbatches=2), POD)


def test_weights_and_inputs_are_no_activations() -> None:
    graph = Gnmt().graph(batch=1, seq_len=8)
    scans = [op for op in graph.ops if isinstance(op, Scan)]
    for scan in scans:
        assert scan.steps in ("seq", "target_seq")
        assert not scan.over_layers
        assert any(t.role is TensorRole.PARAM for t in scan.shared)


def step_writes(name: str, batch: int, pod: ts.Slice) -> float:
    """Bytes that the steps of a loop read and write in HBM for one matmul."""
    result = ts.simulate(
        Gnmt(weights_after=False), plan(global_batch=batch, mesh={"data": pod.devices}), pod
    )
    loops = [op for op in result.program.body if op.name == "encoder_1/d"]
    (made,) = [op for loop in loops for op in loop.body if op.name.endswith(name)]
    return made.work.read_bytes + made.work.write_bytes


def test_weights_and_their_sums_stay_on_the_chip_of_a_recurrence() -> None:
    """On v4, with CMEM, all do: a step reads the gradient of its gates, and writes that of a state.

    On v3 half a chip has 16 MiB, less than the weight of 8 MiB and the sum of 16 MiB together.
    """
    batch, gates, state, weight, total = 256, 8 * U, 2 * U, 8 * U**2, 16 * U**2
    own = batch // 8
    assert step_writes("wh/dx", batch, POD) == own * (gates + state)
    assert step_writes("wh/dw", batch, POD) == own * (gates + state)
    small = ts.Slice("v3", "2x2")
    assert step_writes("wh/dx", batch, small) == own * (gates + state)
    assert step_writes("wh/dw", batch, small) == own * (gates + state) + 2 * total
    assert weight < small.chip.device.vmem_bytes < weight + total
