"""The keys of a plan, flat and grouped: equal plans, and a sentence where they contradict."""

import copy
import pickle
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import pytest
from plans import plan_of

from tpusim.base import PlanError
from tpusim.graph import Remat
from tpusim.plan import PLAN_KEYS, Context, Experts, Numerics, Optimizer, Pipeline, Plan
from tpusim.plan.keys import KINDS, PlanKeys

MESH = {"fsdp": 4, "stage": 2}
OTHER: dict[str, Any] = {
    "mesh": {"data": 2}, "seq_len": 32, "global_batch": 64, "microbatches": 2,
    "gradient_reduction": "per-step", "remat": "minimal",
    "save": ("q",), "offload": ("k",), "scan_layers": False,
    "trainable": ("head",), "adapter_rank": 8, "adapter_weights": ("wq",),
    "rules": {"embed": "fsdp"}, "annotate": {"layer/q": [None]},
    "placement": {"fsdp": ["x"]}, "optimizer": "sgd", "dtype": "f32", "matmul_dtype": "int8",
    "matmul_dtype_dx": "int8", "matmul_dtype_dw": "fp8",
    "quantisation_noise": "u16", "param_dtype": "bf16",
    "moment_dtype": "bf16", "grad_dtype": "f32", "lowering": "ideal", "collectives": "best",
    "style": "maxtext", "collective_matmul": False, "offload_optimizer": True,
    "weight_update_axes": ("data",),
    "gather_dtype": "int8", "reduce_dtype": "f32", "accumulator_dtype": "f32",
    "second_moment_dtype": "bf16", "logits_dtype": "f32", "loss_dtype": "f32", "vocab_tiles": 2,
    "vocab_blocks": 4, "loss_labels": "index",
    "context_exchange": {"context": "ring"}, "context_balanced": False,
    "attention_block": (1024, 512), "attention_block_backward": (512, 2048),
    "attention_backward": "one-kernel",
    "attention_library": "tokamax",
    "input_s": 0.5, "loop": "synchronous", "capacity_factor": 1.25,
    "expert_group": 4, "dispatch": "sort",
    "expert_exchange": "ring", "expert_sort_gradient": "scatter", "expert_buffer": 1.5,
    "expert_skew": 0.5, "seed": 3,
    "expert_tiles": (256, 2048, 1536),
    "schedule": "gpipe", "virtual_stages": 2, "stage_layers": (1, 2),
    "without_passes": ("prefetch",),
}  # fmt: skip
"""A value of each key that is not its default."""

GROUPED = [key for key, (group, _) in PLAN_KEYS.table.items() if group]


def test_every_field_has_one_flat_key() -> None:
    homes = [
        (group, field.name) for group, kind in PLAN_KEYS.groups.items() for field in fields(kind)
    ]
    own = [("", field.name) for part in PLAN_KEYS.own for field in fields(part)]
    leaves = [home for home in (*homes, *own) if home[1] not in PLAN_KEYS.groups]
    assert sorted(PLAN_KEYS.table.values()) == sorted(leaves)
    assert list(OTHER) == list(PLAN_KEYS.table)


def test_type_checkers_know_each_key_by_the_type_of_its_field() -> None:
    hints = get_type_hints(PlanKeys)
    assert hints.keys() == {*PLAN_KEYS.table, *PLAN_KEYS.groups}
    for key in hints.keys() & PLAN_KEYS.table.keys():
        field = KINDS[PLAN_KEYS.table[key]]
        assert hints[key] == field or field in get_args(hints[key]) or key == "placement", key


@pytest.mark.parametrize("key", OTHER)
def test_a_key_changes_its_field_alone(key: str) -> None:
    plain = plan_of(MESH)
    changed = plain.replace(**{key: OTHER[key]})
    assert changed != plain
    assert changed.flat() == plain.flat() | {key: OTHER[key]}
    assert changed.value(key) == OTHER[key]


@pytest.mark.parametrize("key", GROUPED)
def test_all_spellings_of_a_key_are_one_plan(key: str) -> None:
    (group, name), value = PLAN_KEYS.table[key], OTHER[key]
    flat = plan_of(MESH, **{key: value})
    assert plan_of(MESH, **{group: {name: value}}) == flat
    assert plan_of(MESH, **{group: PLAN_KEYS.groups[group](**{name: value})}) == flat
    assert plan_of(MESH).replace(**{f"{group}.{name}": value}) == flat
    assert plan_of(MESH).replace(**{group: {name: value}}) == flat
    assert str(plan_of(MESH, **{group: {name: value}})) == str(flat)


def test_all_keys_at_once_flat_and_grouped() -> None:
    grouped: dict[str, Any] = {}
    for key, (group, name) in PLAN_KEYS.table.items():
        if group:
            grouped.setdefault(group, {})[name] = OTHER[key]
        else:
            grouped[name] = OTHER[key]
    assert Plan(**grouped) == Plan(**OTHER)
    assert Plan(**OTHER).flat() == OTHER


def test_the_rest_of_a_group_stays() -> None:
    plan = plan_of(MESH, remat="minimal", save=["q"], optimizer="sgd", offload_optimizer=True)
    full = plan.replace(remat="full", optimizer={"name": "adam"})
    assert full == plan_of(MESH, save=("q",), offload_optimizer=True)
    assert plan.replace(remat=Remat("full")) == plan_of(
        MESH, optimizer=Optimizer(name="sgd", offload=True)
    )


def test_flat_keys_can_be_read() -> None:
    plan = plan_of(MESH, gather_dtype="int8", seed=2)
    assert (plan.gather_dtype, plan.seed, plan.schedule) == ("int8", 2, "")
    with pytest.raises(AttributeError, match="a Plan has no attribute 'gather'"):
        plan.gather  # noqa: B018
    assert copy.deepcopy(plan) == pickle.loads(pickle.dumps(plan)) == plan


def test_dataclasses_replace_serves_keys_too() -> None:
    plan = plan_of(MESH, save=["q"])
    assert replace(plan, seq_len=8, dtypes=Numerics(gather="int8")) == plan.replace(
        seq_len=8, gather_dtype="int8"
    )
    assert replace(plan, remat="none") == plan.replace(remat="none")
    assert replace(plan, remat="none").remat.save == ("q",)


SAME = "are both given, but they set the same value; write one of them"
TWICE = [
    ({"gather_dtype": "int8", "dtypes": {"gather": "int8"}},
     f"plan.gather_dtype and plan.dtypes.gather {SAME}"),
    ({"dtypes": Numerics(), "gather_dtype": "int8"}, f"plan.dtypes and plan.gather_dtype {SAME}"),
    ({"save": ["q"], "remat": Remat("full")}, f"plan.remat and plan.save {SAME}"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "sentence"), TWICE)
def test_a_key_is_given_once(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError) as raised:
        plan_of(MESH, **keys)
    assert str(raised.value) == sentence


def test_keys_of_one_group_may_have_different_spellings() -> None:
    plan = plan_of(MESH, remat={"policy": "minimal"}, save=["q"])
    assert plan.remat == Remat("minimal", ("q",))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dtypes": {"gather": "int9"}}, "plan.dtypes.gather is 'int9': did you mean 'int8'?"),
    ({"gather_dtype": "int9"}, "plan.gather_dtype is 'int9': did you mean 'int8'?"),
    ({"gather_dtype": "int9", "dtypes": {"loss": "f32"}}, "plan.gather_dtype is 'int9': did you"),
    ({"dtypes": {"gather": "int9"}, "loss_dtype": "f32"}, "plan.dtypes.gather is 'int9': did you"),
    ({"remat": {"policy": "mini"}}, "plan.remat.policy is 'mini': did you mean 'minimal'?"),
    ({"remat": "mini"}, "plan.remat is 'mini': did you mean 'minimal'?"),
    ({"remat": {"save": ["q"], "offload": ["q"]}},
     "'q' is in plan.remat.save and in plan.remat.offload; keep it in one"),
    ({"save": ["q"], "offload": ["q"]}, "'q' is in plan.save and in plan.offload; keep it in one"),
    ({"experts": {"skew": 2}}, "plan.experts.skew is 2; write a number from 0, even, to 1"),
    ({"context": {"exchange": {"context": "rings"}}},
     "plan.context.exchange.context is 'rings': did you mean 'ring'?"),
    ({"context_exchange": {"context": "rings"}},
     "plan.context_exchange.context is 'rings': did you mean 'ring'?"),
    ({"dtypes": {"gathers": "int8"}}, "plan.dtypes has no key 'gathers'; did you mean 'gather'?"),
    ({"compiler": "xla"}, "plan.compiler is 'xla'; write a table of lowering, collectives, style"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "sentence"), WRONG)
def test_a_mistake_is_told_by_the_key_as_written(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError) as raised:
        plan_of(MESH, **keys)
    assert str(raised.value).startswith(sentence)


def test_an_unknown_keyword_is_answered_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="Plan has no key 'gather_dtyp'; did you mean 'gather_dtyp"):
        plan_of(MESH, gather_dtyp="int8")


def test_a_group_is_checked_by_itself() -> None:
    for kind, values, sentence in (
        (Context, {"exchange": {}}, "plan.context.exchange is empty"),
        (Experts, {"seed": 0.5}, "plan.experts.seed is 0.5; it must be a whole number"),
        (Pipeline, {"stage_layers": 3}, "plan.pipeline.stage_layers is 3; write a list of whole"),
        (Remat, {"save": "q"}, "plan.remat.save is 'q'; write a list of names"),
    ):
        with pytest.raises(PlanError, match=sentence):
            kind(**values)


def test_contradictions_are_told_by_flat_keys() -> None:
    plan = plan_of({"fsdp": 4}, experts={"dispatch": "one_hot"})
    with pytest.raises(
        PlanError, match=r"plan.dispatch is 'one_hot', but plan.capacity_factor is 0"
    ):
        plan.check_together()
