"""Sums of gradients of gathered keys: by which algorithm, and what is held beside them."""

import pytest
from plans import any_program_of, loop, plan_of, small

from tpusim.hardware import Slice
from tpusim.program import Collective, Compute, Mode, Op

KEYS = 2 * 1024 * 8 * 128
"""Bytes of the keys of a sequence, all in one device."""

SUMS = tuple(f"reduce-scatter/bwd/d(layer/{each}_kernel)@context" for each in "kv")


def backward(chip: str, **changes: object) -> tuple[Op, ...]:
    pod = {"7x": Slice("7x", "2x2x2"), "v5p": Slice("v5p", "2x2x4")}[chip]
    plan = plan_of({"fsdp": 2, "context": 8}, global_batch=2, seq_len=1024, **changes)
    model = small(attention="flash", kv_heads=8, head_dim=128, heads=8)
    return loop(any_program_of(model, plan, pod).body, "layers/d").body


def sums_of(body: tuple[Op, ...]) -> list[Collective]:
    return [op for op in body if isinstance(op, Collective) and op.name in SUMS]


def frees_keys(body: tuple[Op, ...]) -> str:
    (found,) = (
        op.name for op in body
        if isinstance(op, Collective | Compute) and "bwd/layer/k_kernel@context" in op.frees
    )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("balanced", "algorithm", "part"), [(True, "all-reduce", 1), (False, "", 8)]
)
def test_a_sparsecore_sums_keys_whole_where_they_are_put_in_order(
    balanced: bool, algorithm: str, part: int
) -> None:
    """And the result has a buffer of its own, of which its reader takes a part."""
    sums = sums_of(backward("7x", context={"balanced": balanced}))
    assert [(op.mode, op.algorithm) for op in sums] == [(Mode.ASYNC, algorithm)] * 2
    assert [[float(one.bytes) for one in op.allocs] for op in sums] == [[KEYS / part]] * 2


def test_sums_that_the_core_waits_for_take_place_in_place() -> None:
    sums = sums_of(backward("v5p"))
    assert [(op.mode, op.algorithm) for op in sums] == [(Mode.SYNC, "all-reduce")] * 2
    assert [float(one.bytes) for op in sums for one in op.allocs] == [KEYS / 8] * 2


def test_keys_are_held_for_the_kernel_of_queries_beside_the_sums() -> None:
    """One kernel for all three gradients reads nothing later."""
    assert frees_keys(backward("7x")) == SUMS[-1]
    assert frees_keys(backward("7x", attention_backward="one-kernel")) == "bwd/layer/attention/d"
    assert frees_keys(backward("v5p")) == "bwd/layer/attention/d"
