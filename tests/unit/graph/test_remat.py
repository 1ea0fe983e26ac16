"""What the forward pass keeps, and what is therefore computed again."""

import pytest
from plans import small

from tpusim.base import Phase, PlanError
from tpusim.graph import (
    Attention,
    Einsum,
    Graph,
    Op,
    Pointwise,
    Remat,
    Scan,
    TensorRole,
    training_step,
    walk,
)
from tpusim.models import Transformer

NORMS = {"layer/attn_norm", "layer/mlp_norm"}


def step(model: Transformer, remat: Remat) -> Graph:
    return training_step(model.graph(batch=4, seq_len=16), remat)


def again(model: Transformer, policy: str, *save: str) -> set[str]:
    ops = walk(step(model, Remat(policy, save)).ops)
    return {op.name for op, _ in ops if op.phase is Phase.RECOMPUTE}


def saved(model: Transformer, policy: str, *save: str) -> set[str]:
    (forward,) = (
        op for op in step(model, Remat(policy, save)).ops
        if isinstance(op, Scan) and op.phase is Phase.FORWARD
    )  # fmt: skip
    return {tensor.short for tensor in forward.saves}


def test_full_saves_each_layers_input_and_computes_all_but_the_last_projection_again() -> None:
    model = small(gated=False)
    assert saved(model, "full") == {"layer_in"}
    assert again(model, "full") == NORMS | {
        "layer/wq", "layer/wk", "layer/wv", "layer/q_rotary", "layer/k_rotary", "layer/kernel_in",
        "layer/attention", "layer/kernel_out", "layer/wo", "layer/mid", "layer/wi", "layer/silu",
    }  # fmt: skip


def test_a_parallel_block_has_two_last_projections() -> None:
    found = again(small(parallel=True), "full")
    assert not found & {"layer/wo", "layer/wo_mlp"}
    assert {"layer/wq", "layer/wi_0", "layer/wi_1"} <= found


@pytest.mark.parametrize("attention", ["flash", "dot"])
def test_minimal_recomputes_no_product_with_a_weight_but_attention(attention: str) -> None:
    model = small(attention=attention)
    graph = step(model, Remat("minimal"))
    found = [op for op, _ in walk(graph.ops) if op.phase is Phase.RECOMPUTE]
    products = [op for op in found if isinstance(op, Einsum | Attention)]
    assert not [op for op in products if any(t.role is TensorRole.PARAM for t in op.inputs)]
    kinds = {"flash": {"layer/attention"}, "dot": {"layer/scores", "layer/context"}}[attention]
    assert {op.name for op in products} == kinds
    assert saved(model, "minimal") == {
        "layer_in", "q", "k", "v", "out", "mlp_in_0", "mlp_in_1",
    }  # fmt: skip


def test_dots_recomputes_no_product_but_a_kernel_is_none() -> None:
    def products(model: Transformer) -> set[str]:
        ops = walk(step(model, Remat("dots")).ops)
        kinds = Einsum | Attention
        return {o.name for o, _ in ops if o.phase is Phase.RECOMPUTE and isinstance(o, kinds)}

    assert products(small(attention="dot")) == set()
    assert products(small(attention="flash")) == {"layer/attention"}


def test_none_recomputes_nothing() -> None:
    for attention in ("dot", "flash"):
        assert again(small(attention=attention), "none") == set()


def test_without_a_scan_or_a_checkpoint_the_compiler_keeps_products_and_what_kernels_read() -> None:
    """It computes sums again, in whatever reads them, and reads what the kernel made.

    The result of an activation function is written by the matmul that makes its operand.
    """
    graph = step(small(), Remat("none", scan_layers=False))
    (forward,) = (op for op in graph.ops if isinstance(op, Scan) and op.phase is Phase.FORWARD)
    assert {tensor.short for tensor in forward.saves} == {
        "layer_in", "q_kernel", "k_kernel", "v_kernel", "context", "out", "mlp_in_0",
        "mlp_in_1", "mlp_hidden", "mlp_norm", "attn_norm",
    }  # fmt: skip
    groups = [op for op, _ in walk(graph.ops) if op.phase is Phase.RECOMPUTE]
    assert {op.name for op in groups} == {
        "layer/kernel_out", "layer/mid",
    }  # fmt: skip
    assert all(isinstance(op, Pointwise) and op.inlined for op in groups)


def test_a_checkpoint_keeps_the_same_with_and_without_a_scan() -> None:
    for policy in ("full", "minimal", "dots"):
        one, other = (step(small(), Remat(policy, scan_layers=scan)) for scan in (True, False))
        scans = [[op for op in graph.ops if isinstance(op, Scan)] for graph in (one, other)]
        assert [op.saves for op in scans[0]] == [op.saves for op in scans[1]]
        assert [op.body for op in scans[0]] == [op.body for op in scans[1]]


def test_what_is_offloaded_needs_a_scan() -> None:
    """Its layers are lowered as one: what goes to the host is copied out of stacks."""
    assert Remat("full", scan_layers=False).unrolled
    assert not Remat("full", offload=("layer_in",), scan_layers=False).unrolled


def test_a_save_list_cuts_the_recomputation_short() -> None:
    model = small()
    everything = again(model, "full")
    kept = again(model, "full", "q", "k", "v")
    assert everything - kept == {"layer/wq", "layer/wk", "layer/wv"}
    assert saved(model, "full", "q", "k", "v") == {"layer_in", "q", "k", "v"}
    context = again(model, "full", "q", "k", "v", "context", "out")
    assert "layer/attention" not in context
    assert "layer/wo" not in context


def test_what_is_saved_but_never_read_is_not_kept() -> None:
    """The gradient of a projection's weight reads its input, not its result."""
    assert saved(small(), "full", "mlp_out") == {"layer_in"}


def test_an_unknown_tensor_is_answered_with_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"save lists 'contxt', .*did you mean 'context'\?"):
        step(small(), Remat("full", ("contxt",)))


def test_an_unknown_policy_is_answered_with_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"remat.policy is 'ful': did you mean 'full'\?"):
        Remat("ful")


@pytest.mark.parametrize("policy", ["full", "minimal", "dots", "none"])
def test_every_operand_is_made_before_it_is_read(policy: str) -> None:
    """Forward, recomputed and backward operations in an order that can run."""
    for attention in ("dot", "flash"):
        graph = step(small(attention=attention, kv_heads=2), Remat(policy))
        check_order(graph.ops, set())


def check_order(ops: tuple[Op, ...], made: set[str]) -> None:
    for op in ops:
        for tensor in op.inputs:
            given = tensor.role in (TensorRole.PARAM, TensorRole.INPUT)
            assert given or tensor.name in made, f"{op.name} reads {tensor.name}"
        if isinstance(op, Scan):
            inside = {carry[1].name for carry in op.carries} | {t.name for t in op.loads}
            check_order(op.body, inside)
        made |= {tensor.name for tensor in op.outputs}


@pytest.mark.parametrize(
    ("save", "stacks"),
    [
        (("context", "attended"), {"context"}),
        (("attended",), {"attended"}),
        (("q_rotary", "q_kernel"), {"q_rotary"}),
        (("q_kernel",), {"q_kernel"}),
        (("q", "k", "v", "q_kernel"), {"k", "v", "q_kernel"}),
        (("q", "q_rotary"), {"q_rotary"}),
        (("layer_in", "mlp_out"), set()),
    ],
)
def test_what_is_saved_is_what_the_backward_pass_reads_once(
    save: tuple[str, ...], stacks: set[str]
) -> None:
    """A copy of a saved tensor is none itself, and nothing is saved to compute what is saved."""
    assert saved(small(), "full", *save) == {"layer_in"} | stacks


def test_of_the_copies_of_a_kernel_those_that_are_not_saved_are_made_again() -> None:
    """As the backward pass reads three copies that one operation makes."""
    (copies,) = (
        op for op, _ in walk(step(small(), Remat("full", ("q_kernel",))).ops)
        if op.name == "layer/kernel_in" and op.phase is Phase.RECOMPUTE
    )  # fmt: skip
    assert [tensor.short for tensor in copies.outputs] == ["k_kernel", "v_kernel"]
    assert [tensor.short for tensor in copies.inputs] == ["k_rotary", "v"]
