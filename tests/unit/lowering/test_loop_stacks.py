"""What a loop copies to its stacks and from them, in passes over bytes; and the gradients' norm."""

import pytest
from plans import flat, loop, plan_of, program_of, small

from tpusim.hardware import Slice
from tpusim.program import Collective, Compute, Program

POD = Slice("v5p", "2x2x4")
TOKENS, EMBED, MLP = 2 * 128, 64, 256


def program(**changes: object) -> Program:
    plan = plan_of({"data": 16}, global_batch=32, seq_len=128, **changes)
    return program_of(small(heads=4), plan, POD)


def copies(program: Program, name: str, way: str) -> dict[str, Compute]:
    body = loop(program.body, name).body
    return {op.scope: op for op in body if op.name.startswith(f"{way}/")}  # type: ignore[misc]


def test_a_layers_input_is_copied_to_its_stack_and_from_it() -> None:
    """Two passes over it each way; nothing else is saved under full rematerialisation."""
    whole = TOKENS * EMBED * 2
    for name, way in (("layers", "save"), ("layers/d", "load")):
        (copy,) = copies(program(), name, way).values()
        assert (copy.work.read_bytes, copy.work.write_bytes) == (whole, whole)


def test_products_write_to_their_stacks_and_all_that_is_saved_is_sliced_from_them() -> None:
    saved = program(remat="minimal")
    assert set(copies(saved, "layers", "save")) == {"layer/layer_in"}
    loaded = copies(saved, "layers/d", "load")
    assert {"layer/layer_in", "layer/q", "layer/k", "layer/v", "layer/out"} <= set(loaded)


@pytest.mark.parametrize("remat", ["full", "minimal", "dots", "none"])
def test_layers_without_a_scan_have_no_stacks(remat: str) -> None:
    """Neither copies of what is saved, nor of gradients; all else of a checkpointed layer stays."""
    scanned, written = (program(remat=remat, scan_layers=scan) for scan in (True, False))
    names = [[op.name for op, _ in flat(one.body)] for one in (scanned, written)]
    copied = [name for name in names[0] if name.startswith(("load/", "save/", "stack/"))]
    assert copied
    if remat != "none":
        assert names[1] == [name for name in names[0] if name not in copied]
    assert not [name for name in names[1] if name.startswith(("load/", "save/", "stack/"))]


def test_without_a_checkpoint_a_matmul_reads_what_its_operand_is_computed_of() -> None:
    """What the kernel made is read in its own layout.

    No pass computes a norm, nor an activation function. Where nothing is gathered in a layer, the
    matmuls that read their results compute them: of the gated hidden layer two operands are read,
    of a norm one.
    """
    saved, chosen = (
        {
            op.scope: op.work
            for op in loop(program(remat="none", scan_layers=scan).body, "layers/d").body
            if isinstance(op, Compute)
        }
        for scan in (True, False)
    )
    hidden = TOKENS * MLP * 2
    more = {
        weight: chosen[f"layer/{weight}/dw"].read_bytes - saved[f"layer/{weight}/dw"].read_bytes
        for weight in ("wo_mlp", "wq", "wo")
    }
    assert more == {"wo_mlp": hidden, "wq": EMBED * 2, "wo": 0}
    assert chosen["layer/wo/dw"].epilogue_flops == 0
    assert all(chosen[f"layer/{weight}/dw"].epilogue_flops > 0 for weight in ("wo_mlp", "wq"))
    assert "layer/kernel_out" not in chosen
    assert not {"layer/silu", "layer/mlp_norm", "layer/attn_norm"} & chosen.keys()


def test_a_perfect_compiler_copies_nothing() -> None:
    names = [op.name for op, _ in flat(program(lowering="ideal").body)]
    assert not [name for name in names if name.startswith(("load/", "save/", "stack/"))]


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 2), ("f32", 4)])
def test_replicated_gradients_are_copied_to_cleared_stacks(dtype: str, size: int) -> None:
    """Of pure data parallelism, whole on every chip: one read in bf16, two writes as stacked."""
    made = program(grad_dtype=dtype)
    (stack,) = (op for op in loop(made.body, "layers/d").body if op.name.startswith("stack/"))
    layer = sum(
        a.bytes / 4 / loop(made.body, "layers").trips
        for a in made.resident
        if a.tensor.startswith("layer/") and not a.tensor.endswith("moments")
    )
    assert stack.work.read_bytes == 2 * layer
    assert stack.work.write_bytes == 2 * size * layer


def test_the_norm_is_one_pass_over_the_gradients_before_any_update() -> None:
    made = program()
    names = [op.name for op in made.body]
    norm = next(op for op in made.body if op.name == "gradient_norm")
    parameters = small(heads=4).parameter_count
    assert (norm.work.read_bytes, norm.work.write_bytes) == (2 * parameters, 0)
    updates = [place for place, name in enumerate(names) if name.startswith("update/")]
    assert names.index("gradient_norm") < min(updates)
    assert not [op for op in made.body if isinstance(op, Collective) and op.scope == norm.scope]


def test_shards_of_the_norm_are_added_up_over_the_axes_that_shard_weights() -> None:
    plan = plan_of({"data": 4, "fsdp": 4}, global_batch=32, seq_len=128)
    made = program_of(small(heads=4), plan, POD)
    (total,) = (op for op in made.body
                if isinstance(op, Collective) and op.scope == "gradient_norm")  # fmt: skip
    assert (total.axes, total.bytes) == (("fsdp",), 4)
    assert not any(op.name == "gradient_norm" for op, _ in flat(program(optimizer="sgd").body))
