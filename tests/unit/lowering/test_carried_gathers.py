"""On v5e, matmuls for gradients of weights wait to carry the gathers of a backward pass."""

from typing import Any

import pytest
from plans import any_program_of, loop, plan_of, small

from tpusim.hardware import Slice
from tpusim.plan import Plan
from tpusim.program import Collective, Compute, Mode, Op

GATHERED = {"act_embed": "tensor"}
MID = "all-gather/bwd/d(layer/mid)@tensor"
AGAIN = "all-gather/bwd/layer/attn_norm@tensor again"


def plan(**keys: Any) -> Plan:
    keys = {"rules": GATHERED, "seq_len": 1024} | keys
    return plan_of({"fsdp": 2, "tensor": 8}, **keys)


def body(chosen: Plan, chip: str) -> dict[str, Op]:
    program = any_program_of(small(embed=1024, mlp=4096, head_dim=128), chosen, Slice(chip, "4x4"))
    return {op.name: op for op in loop(program.body, "layers/d").body}


def test_each_gather_runs_beside_the_matmuls_before_its_reader() -> None:
    """Of three copies for Q, K and V, one is there before the kernel, one beside their inputs'."""
    names = list(operations := body(plan(), "v5e"))
    again = [AGAIN, f"{AGAIN} again", f"{AGAIN} again again"]
    for name in (MID, *again):
        gather = operations[name]
        assert isinstance(gather, Collective)
        assert gather.mode is Mode.ASYNC
    order = [MID, again[0], "bwd/layer/attention/d", again[1], "bwd/layer/wv/dx", again[2]]
    assert sorted(order, key=names.index) == order
    assert names.index("bwd/layer/wo/dw") > names.index("bwd/layer/wq/dx")


def test_a_matmul_that_carries_a_gather_adds_no_other_to_its_result() -> None:
    own = {"bwd/layer/wv/dx", "bwd/layer/wk/dx", "bwd/layer/wq/dx"}
    large = plan(global_batch=512)
    held = {n for n, op in body(large, "v5e").items() if isinstance(op, Compute) and op.allocs}
    without = plan(global_batch=512, without_passes=["carry-gathers"])
    apart = body(without, "v5e").items()
    assert own <= held
    assert len(own & {n for n, op in apart if isinstance(op, Compute) and op.allocs}) < len(own)


@pytest.mark.parametrize(
    ("chip", "keys"),
    [("v6e", {}), ("v5e", {"style": "maxtext"}), ("v5e", {"without_passes": ["carry-gathers"]})],
)
def test_elsewhere_the_core_waits_for_them(chip: str, keys: dict[str, Any]) -> None:
    names = list(operations := body(plan(**keys), chip))
    gather = operations[MID]
    assert isinstance(gather, Collective)
    assert gather.mode is Mode.SYNC
    assert names.index("bwd/layer/wo/dw") < names.index("bwd/layer/attention/d")


@pytest.mark.parametrize(("rules", "waits"), [({"act_residual_seq": "tensor"}, True), ({}, False)])
def test_the_head_waits_to_carry_the_gradient_of_the_embedded_tokens(
    rules: dict[str, str], waits: bool
) -> None:
    """Six of six heads of compiled programs that gather it."""
    chosen = plan(rules=rules, global_batch=64)
    names = [op.name for op in any_program_of(small(), chosen, Slice("v5e", "4x4")).body]
    head = next(i for i, name in enumerate(names) if name.startswith("logits/dw"))
    assert (head > names.index("layers/d")) is waits
