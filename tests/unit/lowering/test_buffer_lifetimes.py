"""When buffers are taken and given back: who writes over what, what outlives its last reader."""

import pytest
from plans import any_program_of, loop, plan_of, small

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.program import Collective, Compute, Op

POD = Slice("v5e", "4x4")
RESIDUAL, HIDDEN = 2 * 16 * 64, 2 * 16 * 256
"""Bytes of a sequence of 16 tokens: of the residual stream, of the MLP's hidden layer."""


def step(model: Transformer, **changes: object) -> tuple[Op, ...]:
    plan = plan_of({"fsdp": 16}, global_batch=16, style="maxtext", **changes)
    return any_program_of(model, plan, POD).body


def named(body: tuple[Op, ...], name: str) -> Compute | Collective:
    (found,) = (op for op in body if op.name == name)
    assert isinstance(found, Compute | Collective)
    return found


def taken(op: Compute | Collective) -> dict[str, float]:
    return {alloc.tensor: float(alloc.bytes) for alloc in op.allocs}


def test_an_epilogue_writes_over_what_it_is_the_last_to_read() -> None:
    """The gradients of gate and up, which the matmul before them makes in its epilogue."""
    backward = loop(step(small()), "layers/d").body
    matmul = named(backward, "bwd/layer/wo_mlp/dx")
    assert not taken(matmul)
    freed = [name for op in backward for name in getattr(op, "frees", ())]
    assert {"bwd/layer/mlp_in_0", "bwd/layer/mlp_in_1"} <= set(freed)


def test_a_product_never_writes_over_its_own_operands() -> None:
    """Square matrices: an output as large as the input that dies with it."""
    body = loop(step(small(mlp=64, gated=False)), "layers").body
    assert taken(named(body, "layer/wi")) == {"layer/mlp_hidden": RESIDUAL}


def test_the_loss_holds_the_logits_and_their_gradient() -> None:
    """A softmax reads its operand twice, so its gradient is no write in place."""
    body = step(small(vocab=512))
    assert taken(named(body, "loss/d")) == {"d(logits)": 2 * 16 * 512}
    assert "logits" in named(body, "loss/d").frees


def test_a_gathered_weight_is_given_back_by_its_last_matmul() -> None:
    """No attention kernel that follows later holds it."""
    backward = loop(step(small()), "layers/d").body
    (gather,) = (op for op in backward if op.name == "all-gather/bwd/layer/wo_mlp@fsdp")
    assert isinstance(gather, Collective)
    (key,) = taken(gather)
    assert key in named(backward, "bwd/layer/wo_mlp/dx").frees


@pytest.mark.parametrize("name", ["mlp_in_0", "q"])
def test_a_saved_tensor_is_copied_out_of_its_stack_while_a_layer_reads_it(name: str) -> None:
    backward = loop(step(small(), save=(name,)), "layers/d").body
    key = f"bwd/layer/{name}"
    owners = [op for op in backward if isinstance(op, Compute) and key in taken(op)]
    givers = [op for op in backward if isinstance(op, Compute) and key in op.frees]
    size = {"mlp_in_0": HIDDEN, "q": 2 * 16 * 8 * 32}[name]
    assert [taken(op)[key] for op in owners] == [size]
    assert len(givers) == 1
    assert backward.index(owners[0]) <= backward.index(givers[0])
