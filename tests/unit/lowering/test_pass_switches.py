"""Each optional pass of the lowering: a plan that it changes, and that its switch changes back."""

from typing import Any, TypeAlias

import pytest
from extent import sample
from plans import plan_of, small

from tpusim.hardware import Slice
from tpusim.lowering import all_passes
from tpusim.models import Architecture, EvolvedTransformer, UNet3d
from tpusim.plan import Plan
from tpusim.results import PlanResult
from tpusim.simulation import simulate
from tpusim.simulation.explain_passes import PassRow, explain_passes

Case: TypeAlias = tuple[Architecture, Plan, Slice]

V5E, V6E, V7X = Slice("v5e", "4x4"), Slice("v6e", "4x4"), Slice("7x", "2x2x2")
V3, V5P = Slice("v3", "2x2"), Slice("v5p", "2x2x4")
FSDP = {"fsdp": 16}
VOLUMES = UNet3d(patch=32, filters=(16, 32))
BY_TENSOR = {"fsdp": 4, "tensor": 4}


def long(mesh: dict[str, int], **keys: Any) -> Plan:
    return plan_of(mesh, **({"seq_len": 1024} | keys))


def wide(**keys: Any) -> Architecture:
    return small(**({"embed": 1024, "mlp": 4096, "head_dim": 128} | keys))


CASES: dict[str, Case] = {
    "pick-logits": (small(), plan_of(FSDP, loss_labels="index"), V6E),
    "share-gradient": (small(vocab=8192), long({"data": 16}, global_batch=16), V5P),
    "softmax-in-matmuls": (small(attention="dot"), plan_of({"data": 16}), V5P),
    "kernel-gradients-first": (
        EvolvedTransformer(
            encoder_blocks=1, decoder_blocks=1, embed=64, heads=2, vocab=128, target_len=64
        ),
        plan_of({"data": 8, "context": 2}, seq_len=192),
        V6E,
    ),
    "regather": (wide(heads=16), long(BY_TENSOR, rules={"act_residual_seq": "tensor"}), V6E),
    "weight-gradients-last": (small(), plan_of(FSDP), V6E),
    "recompute-late": (small(), plan_of(FSDP, remat="minimal"), V6E),
    "rings-across-slices": (
        wide(),
        long({"dcn_fsdp": 2, **FSDP}, global_batch=256),
        Slice("v4", "2x2x4", 2),
    ),
    "scatter-apart": (
        wide(embed=8192, mlp=32768, heads=64),
        long(BY_TENSOR, seq_len=4096, rules={"act_residual_seq": "tensor"}),
        V6E,
    ),
    "reduce-at-once": (small(), plan_of({"data": 4, "fsdp": 4}), V7X),
    "merge-gradients": (small(), plan_of(FSDP), V6E),
    "merge-all-reduces": (small(kv_heads=1), plan_of(BY_TENSOR), V5E),
    "whole-heads": (wide(vocab=128256), long({"data": 2, "fsdp": 8}), V5P),
    "gradients-after-loop": (small(), plan_of(FSDP), V6E),
    "late-norm-gradient": (small(), plan_of({"data": 4, "fsdp": 4}), V7X),
    "head-gradient-first": (small(), plan_of({"data": 16}, global_batch=1024), V5E),
    "gradient-before-overwrite": (
        small(mlp_bias=True, gated=False, activation="gelu"),
        plan_of({"data": 16}, seq_len=128),
        V6E,
    ),
    "rings-after-layers": (wide(), long(FSDP, scan_layers=False), V6E),
    "ring-copies": (wide(), long(FSDP, scan_layers=False), V7X),
    "gathers-before-layers": (small(), plan_of(FSDP, scan_layers=False), V6E),
    "turn-heads": (wide(tied_embeddings=True, vocab=32000), long(FSDP), V5P),
    "turn-tables": (small(), plan_of({"fsdp": 8, "context": 2}), V6E),
    "carry-gathers": (wide(), long(BY_TENSOR, rules={"act_embed": "tensor"}), V5E),
    "matmul-beside-sums": (wide(), long({"fsdp": 8, "tensor": 2}), V7X),
    "prefetch": (small(), plan_of(FSDP, style="maxtext"), V5E),
    "exchange-copies": (
        small(experts=4, experts_per_token=1),
        plan_of({"fsdp": 4, "expert": 4}),
        V6E,
    ),
    "head-copies": (
        wide(kv_heads=4),
        long({"fsdp": 4, "context": 4}, context_exchange="all-to-all"),
        V6E,
    ),
    "row-copies": (small(vocab=262144), plan_of(FSDP), V6E),
    "cut-images": (VOLUMES, plan_of({"data": 16}, global_batch=16, seq_len=1), V6E),
    "fill-rows": (VOLUMES, plan_of({"data": 8}, global_batch=16, seq_len=1), V3),
}


def row(result: PlanResult, name: str) -> PassRow:
    (found,) = (row for row in explain_passes(result).rows if row.name == name)
    return found


def test_every_optional_pass_has_a_plan_here() -> None:
    assert [*CASES] == [each.name for each in all_passes() if each.optional]


@pytest.mark.parametrize("name", sample(CASES, 3))
def test_its_switch_alone_undoes_a_pass(name: str) -> None:
    model, plan, pod = CASES[name]
    seen = simulate(model, plan, pod)
    without = simulate(model, plan.replace(without_passes=[name]), pod)
    assert row(seen, name).bodies
    assert (row(without, name).off, row(without, name).bodies) == (True, ())
    assert without.programs != seen.programs
    others = [other.name for other in explain_passes(without).rows if other.off]
    assert others == [name]
