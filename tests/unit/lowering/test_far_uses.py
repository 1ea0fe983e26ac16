"""Gathered activations whose uses are far apart, and weights whose shards cross slices."""

import pytest
from plans import plan_of, program_of

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.partition import reshard
from tpusim.program import Collective, CollectiveKind, Loop, Op

MODEL = Transformer(
    layers=2, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=32000, attention="flash"
)
BY_TOKENS = {"act_residual_seq": "tensor"}


def walked(body: tuple[Op, ...]) -> list[Op]:
    """All operations, those of loops too."""
    found: list[Op] = []
    for op in body:
        found += walked(op.body) if isinstance(op, Loop) else [op]
    return found


def gathers_of(body: tuple[Op, ...], tensor: str) -> int:
    """The gathers of a tensor in the backward pass of a layer."""
    (backward,) = [op for op in body if isinstance(op, Loop) and op.name == "layers/d"]
    return sum(
        isinstance(op, Collective) and op.kind is CollectiveKind.ALL_GATHER and op.scope == tensor
        for op in walked(backward.body)
    )


@pytest.mark.parametrize(("remat", "pod", "attention"), [
    ("full", Slice("v4", "4x4x4"), 4),
    ("full", Slice("v6e", "8x8"), 4),
    ("minimal", Slice("v4", "4x4x4"), 1),
    ("full", Slice("7x", "2x4x4"), 1),
])  # fmt: skip
def test_the_input_of_attention_is_gathered_for_each_weight_gradient(
    remat: str, pod: Slice, attention: int
) -> None:
    """Where it is recomputed, once for Q, K and V and once for each gradient; the MLP's once."""
    plan = plan_of(
        {"fsdp": 16, "tensor": 4}, seq_len=2048, global_batch=64, remat=remat, rules=BY_TOKENS
    )
    body = program_of(MODEL, plan, pod).body
    assert gathers_of(body, "layer/attn_norm") == attention
    assert gathers_of(body, "layer/mlp_norm") == 1


@pytest.mark.parametrize(("fsdp", "slices", "batch", "ring"), [
    (16, 2, 256, True), (16, 2, 32, False), (16, 4, 512, False),
])  # fmt: skip
def test_a_weight_goes_round_all_slices_where_that_pays(
    fsdp: int, slices: int, batch: int, ring: bool
) -> None:
    """v4: C / T = tokens x 6.25 GB/s / 275 TFLOP/s, and a ring of 32 pays above 2 / 32.

    That is at 2750 tokens a device: of 256 sequences of 1024 each has 8192, of 32 it has 1024. Of
    64 devices there is no ring.
    """
    plan = plan_of(
        {"dcn_fsdp": slices, "fsdp": fsdp}, seq_len=1024, global_batch=batch, remat="minimal"
    )
    pod = Slice("v4", "2x2x4", num_slices=slices)
    over = {
        (op.kind, op.axes)
        for op in walked(program_of(MODEL, plan, pod).body)
        if isinstance(op, Collective) and op.scope == "layer/wi_0"
    }
    permuted = (CollectiveKind.PERMUTE, ("dcn_fsdp", "fsdp")) in over
    across = (CollectiveKind.ALL_GATHER, ("dcn_fsdp",)) in over
    assert (permuted, across) == (ring, not ring)


KINDS = CollectiveKind


@pytest.mark.parametrize(("partial", "target", "steps"), [
    (("dcn_fsdp", "fsdp"), (("dcn_fsdp", "fsdp"), ()),
     [(KINDS.REDUCE_SCATTER, ("fsdp",)), (KINDS.ALL_REDUCE, ("dcn_fsdp",))]),
    (("dcn_fsdp", "data"), (("dcn_fsdp",), ()),
     [(KINDS.REDUCE_SCATTER, ("data",)), (KINDS.REDUCE_SCATTER, ("dcn_fsdp",)),
      (KINDS.ALL_GATHER, ("data",))]),
    (("dcn_fsdp", "data", "fsdp"), (("dcn_fsdp", "fsdp"), ()),
     [(KINDS.REDUCE_SCATTER, ("fsdp",)), (KINDS.ALL_REDUCE, ("data",)),
      (KINDS.ALL_REDUCE, ("dcn_fsdp",))]),
    (("dcn_data", "data"), ((), ()),
     [(KINDS.REDUCE_SCATTER, ("data",)), (KINDS.ALL_REDUCE, ("dcn_data",)),
      (KINDS.ALL_GATHER, ("data",))]),
])  # fmt: skip
def test_sums_that_cross_slices(
    partial: tuple[str, ...],
    target: tuple[tuple[str, ...], ...],
    steps: list[tuple[CollectiveKind, tuple[str, ...]]],
) -> None:
    """What is scattered within the slice is all-reduced across; otherwise it is scattered there."""
    made = list(reshard(((), ()), partial, target))
    assert [(step.kind, step.axes) for step in made] == steps
    assert {axis for axes in made[-1].after for axis in axes} == {
        a for axes in target for a in axes
    }
