"""Names carry no meaning: whatever axes and models are called, a plan has the same numbers.

The axes of a pipeline's stages (`stage`, `dcn_stage`) and the prefix `dcn_` of those across slices
are the exceptions, and documented; all other names stand in the default rules alone, which these
plans write out.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from extent import seeds
from many_architectures import AnyCase, any_plan

from tpusim.base import TpusimError
from tpusim.hardware import DCN_PREFIX, Slice
from tpusim.models import EncoderDecoder, MoE, SelfAttention
from tpusim.plan import DEFAULT_RULES, STAGE_AXES, STYLE_RULES, Plan, axes_of
from tpusim.results import breakdown_ps
from tpusim.simulation import simulate

NAMES = (
    "x", "y", "z", "model", "data", "tensor", "fsdp", "core", "die", "stages", "a", "Axis_1",
    "batch", "embed", "seq", "none", "context", "mp", "hbm", "ici", "step", "expert_",
)  # fmt: skip
"""Names of axes, among them those of dimensions of the torus, of tensors and of other libraries."""

BLOCK = 5


def renamed(plan: Plan, names: Sequence[str]) -> Plan:
    """Return a plan whose axes have other names, with all rules written out."""
    new = dict(zip(plan.mesh, names, strict=False))
    for axis in plan.mesh:
        if axis in STAGE_AXES:
            new[axis] = axis
        elif axis.startswith(DCN_PREFIX):
            new[axis] = f"{DCN_PREFIX}{new[axis]}"
    rules = {**DEFAULT_RULES, **STYLE_RULES[plan.compiler.style], **plan.rules}
    exchange = plan.context.exchange
    named = {new["context"]: exchange} if "context" in new and isinstance(exchange, str) else None
    return plan.replace(
        mesh={new[axis]: size for axis, size in plan.mesh.items()},
        rules={key: [new[a] for a in axes_of(rule) if a in new] for key, rule in rules.items()},
        weight_update_axes=[new[axis] for axis in plan.optimizer.axes],
        context_exchange=named if named and exchange != "gather" else exchange,
    )


def numbers(case: AnyCase) -> tuple[object, ...] | None:
    """The numbers of a step that depend on no name; None for a plan that is refused."""
    try:
        result = simulate(*case)
    except TpusimError:
        return None
    spent = sorted(breakdown_ps(result.timeline).values())
    return result.timeline.total_ps, result.hbm_peak_bytes, result.mfu, spent


@pytest.mark.parametrize("block", seeds(56, default=1))
def test_plans_whose_axes_and_model_have_other_names_have_the_same_numbers(block: int) -> None:
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        model, plan, pod = any_plan(seed)
        found = numbers((model, plan, pod))
        if found is not None:
            names = random.Random(seed).sample(NAMES, len(plan.mesh))
            other = replace(model, name='"é" {0}')  # type: ignore[type-var]
            assert numbers((other, renamed(plan, names), pod)) == found, seed


@pytest.mark.parametrize("block", seeds(56, default=1))
def test_the_order_of_the_axes_of_a_mesh_changes_no_number(block: int) -> None:
    """Where axes lie is chosen, so the order in which they are written says nothing."""
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        model, plan, pod = any_plan(seed)
        turned = plan.replace(mesh=dict(reversed(plan.mesh.items())))
        first, second = numbers((model, plan, pod)), numbers((model, turned, pod))
        assert (first and first[:2]) == (second and second[:2]), seed


def test_all_reduces_over_one_group_are_merged_in_any_order_of_its_axes() -> None:
    """Those of norms and of matrices, of an encoder-decoder with experts; they were two."""
    model = EncoderDecoder(
        layers=2, embed=16, mlp=128, heads=1, vocab=100, gated=True, tied_embeddings=False,
        attention=SelfAttention(kernel="flash", rotary=False),
        moe=MoE(experts=4, experts_per_token=2, expert_every=2),
    )  # fmt: skip
    plan = Plan(
        mesh={"tensor": 4, "expert": 4}, rules={"target_seq": "expert", "act_seq": "tensor"},
        global_batch=32, seq_len=1024, capacity_factor=1.25, moment_dtype="bf16", vocab_blocks=4,
        scan_layers=False,
    )  # fmt: skip
    pod = Slice("7x", "2x2x2")
    turned = plan.replace(mesh=dict(reversed(plan.mesh.items())))
    assert numbers((model, plan, pod)) == numbers((model, turned, pod))
