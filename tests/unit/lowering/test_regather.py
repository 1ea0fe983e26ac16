"""How often compiled programs gather the input of attention for its gradients."""

import pytest

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, walk_ops
from tpusim.simulation import simulate

PROGRAMS = [
    ("v3", "dot", "silu", True, True, 3),
    ("v3", "dot", "gelu", True, True, 3),
    ("v3", "dot", "gelu", False, True, 3),
    ("v6e", "flash", "silu", True, True, 3),
    ("v6e", "flash", "silu", False, True, 3),
    ("v3", "dot", "silu", True, False, 0),
    ("v3", "dot", "silu", False, True, 0),
    ("v3", "dot", "relu", True, True, 0),
    ("v3", "dot", "relu", False, True, 0),
]
"""Chip, attention, activation, gated, rotary, and gathers besides that of the recomputation, of 32
devices with fsdp 8 x tensor 4 (libtpu 0.0.42.1)."""


@pytest.mark.parametrize(("chip", "attention", "activation", "gated", "rotary", "again"), PROGRAMS)
def test_the_input_of_attention_is_gathered_again_where_its_gradients_are_far(
    chip: str, attention: str, activation: str, gated: bool, rotary: bool, again: int
) -> None:
    model = Transformer(
        layers=4, embed=4096, mlp=10752, heads=32, kv_heads=8, vocab=32000, attention=attention,
        activation=activation, gated=gated, rotary=rotary,
    )  # fmt: skip
    plan = Plan(
        mesh={"fsdp": 8, "tensor": 4}, rules={"act_embed": "tensor"}, seq_len=2048, global_batch=64
    )
    result = simulate(model, plan, Slice(chip, "4x4" if chip == "v3" else "4x8"))
    gathers = [
        (op.name, runs)
        for op, runs in walk_ops(result.program.body, result.program.segments)
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_GATHER
    ]
    copies = [runs for name, runs in gathers if "bwd/layer/attn_norm@tensor" in name]
    assert sum(copies) == model.layers * (1 + again)
