"""What a plan gives and nothing takes is told, whatever it is; what is taken is not."""

from typing import Any

import pytest
from accounts import unused_keys, unused_model_keys
from extent import sample
from plans import plan_of, small

import tpusim as ts

EXPERTS = {"experts": 8, "experts_per_token": 2}
ONE = "is not used, as the mesh has one stage"
WHOLE = "is not used, as no axis shards the sequence"
ALL = "is not used, as each device has all experts"
FSDP = {"fsdp": 8}

NOTED: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {"mesh": FSDP}, []),
    ({}, {"mesh": FSDP | {"stage": 1}, "schedule": "interleaved", "virtual_stages": 2,
          "stage_layers": [3]},
     [f"plan.{key} {ONE}" for key in ("schedule", "virtual_stages", "stage_layers")]),
    ({}, {"mesh": {"stage": 2, "fsdp": 4}, "schedule": "gpipe", "stage_layers": [2, 2]}, []),
    ({}, {"mesh": FSDP, "expert_exchange": "ring"},
     ["plan.expert_exchange is not used, as the model has no experts"]),
    ({}, {"mesh": FSDP, "expert_tiles": [512, 512, 512]},
     ["plan.expert_tiles is not used, as the model has no experts"]),
    (EXPERTS, {"mesh": {"expert": 8}, "expert_tiles": [512, 512, 512]}, []),
    (EXPERTS, {"mesh": {"expert": 8}, "expert_tiles": [512, 512, 512], "capacity_factor": 4},
     ["plan.expert_tiles is not used, as experts with a capacity are batched matmuls"]),
    ({}, {"mesh": FSDP, "seed": 3}, ["plan.seed is not used, as plan.expert_skew is 0"]),
    (EXPERTS, {"mesh": FSDP, "expert_exchange": "gather", "expert_skew": 1, "seed": 3},
     [f"plan.expert_exchange {ALL}", f"plan.expert_skew {ALL}"]),
    (EXPERTS, {"mesh": {"expert": 8}, "expert_exchange": "gather", "expert_skew": 1}, []),
    (EXPERTS, {"mesh": {"expert": 8}, "capacity_factor": 4}, []),
    (EXPERTS, {"mesh": {"expert": 8}, "capacity_factor": 5},
     ["plan.capacity_factor is 5, but at 4 each expert has a slot for every token, and no more are "
      "made"]),
    ({}, {"mesh": FSDP, "context_exchange": "ring", "context_balanced": False},
     [f"plan.context_exchange {WHOLE}", f"plan.context_balanced {WHOLE}"]),
    ({}, {"mesh": {"context": 8}, "context_exchange": {"context": "ring"},
          "context_balanced": False}, []),
    ({"attention": "dot"}, {"mesh": {"context": 8}, "context_balanced": False},
     ["plan.context_balanced is not used, as the model has no causal attention kernel"]),
    ({"heads": 8, "kv_heads": 8},
     {"mesh": {"context": 8}, "context_exchange": "all-to-all", "context_balanced": False},
     ["plan.context_balanced is not used, as kernels see whole sequences of fewer heads"]),
    ({}, {"mesh": FSDP, "rules": {"expert_mlp": "fsdp"}},
     ["plan.rules.expert_mlp is not used, as the model has no dimension expert_mlp"]),
    ({}, {"mesh": FSDP, "rules": {"act_residual_seq": "fsdp"}},
     ["plan.rules.act_residual_seq gives fsdp to no tensor: another dimension has it already"]),
    ({}, {"mesh": {"fsdp": 4, "tensor": 2}, "rules": {"act_residual_seq": "tensor"}}, []),
    *(({}, {"mesh": FSDP, "rules": {dim: axes}},
       [f"plan.rules.{dim} is not used, as it is for weights and none has the dimension {dim}; "
        f"the rule for activations is act_{dim}"])
      for dim, axes in (("seq", "fsdp"), ("batch", []))),
    ({}, {"mesh": FSDP, "optimizer": "sgd", "second_moment_dtype": "bf16"},
     ["plan.second_moment_dtype is not used, as sgd keeps no moments"]),
]  # fmt: skip


@pytest.mark.parametrize(("model", "plan", "notes"), NOTED)
def test_what_nothing_takes_is_noted(
    model: dict[str, Any], plan: dict[str, Any], notes: list[str]
) -> None:
    assert list(unused_keys(small(**{"layers": 4} | model), plan_of(**plan))) == notes


NO_VOCABULARY = "is not used, as the model has no loss over a vocabulary"
NO_KERNEL = "is not used, as nothing in the model is a fused attention kernel"
NO_LAYERS = "is not used, as the model has no row of layers that are alike"
OTHERS: list[tuple[str, str, Any, str]] = [
    *(("resnet-50", key, value, NO_VOCABULARY)
      for key, value in (("vocab_blocks", 4), ("loss_labels", "take"), ("logits_dtype", "f32"))),
    ("resnet-50", "loss_dtype", "f32", "is not used, as the compiler fuses the cast with the loss"),
    *((model, key, value, NO_KERNEL) for model in ("resnet-50", "vit-b/16")
      for key, value in (("attention_block", [1024, 1024]), ("attention_backward", "one-kernel"),
                         ("attention_block_backward", [256, 256]))),
    ("resnet-50", "remat", "minimal", NO_LAYERS),
    ("resnet-50", "scan_layers", False, NO_LAYERS),
    ("resnet-50", "moment_dtype", "bf16", "is not used, as sgd keeps no moments"),
    ("resnet-50", "quantisation_noise", "u32", "is not used, as no gradient is quantised"),
    ("ssd-resnet34", "matmul_dtype", "int8",
     "is not used, as the model has no matmuls that it is for"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "value", "note"), sample(OTHERS, 4))
def test_keys_of_language_models_are_noted_on_others(
    name: str, key: str, value: Any, note: str
) -> None:
    model = ts.models.SSD() if name == "ssd-resnet34" else ts.models.load(name)
    plan = ts.Plan(mesh={"data": 8}, global_batch=64, optimizer="sgd", **{key: value})
    assert f"plan.{key} {note}" in list(unused_keys(model, plan))
    assert f"plan.{key} {note}" in [text for _, text in ts.simulate(model, plan, "v5e-8").notes()]


def test_the_default_schedule_by_its_name_is_not_noted() -> None:
    model = small(layers=4)
    plan = plan_of(mesh={"stage": 2, "fsdp": 4}, microbatches=2, schedule="1f1b")
    notes = [text for _, text in ts.simulate(model, plan, "v5e-8").notes()]
    assert not [note for note in notes if "plan.schedule" in note]


def test_a_key_that_the_lowering_does_not_take_is_noted() -> None:
    model, plan = small(layers=4), plan_of(mesh={"data": 8}, collective_matmul=False)
    note = (
        "plan.collective_matmul does nothing on this placement: with True the program is the same"
    )
    assert note in [text for _, text in ts.simulate(model, plan, "v5e-8").notes()]


def test_a_rule_for_all_parts_of_a_model_is_used() -> None:
    plan = ts.Plan(mesh={"data": 4, "tensor": 2}, global_batch=64, rules={"mlp": None})
    assert list(unused_keys(ts.models.load("siglip-b/16"), plan)) == []


def test_keys_of_a_model_that_it_does_not_read_are_noted() -> None:
    model = small(layers=4, softmax_dtype="f32", global_every=2, router_bias=True)
    assert list(unused_model_keys(model, plan_of(mesh={"data": 8}))) == [
        "model.softmax_dtype is not used, as no attention of the model writes its scores to HBM",
        "model.global_every is not used, as no layer has a window",
        "model.router_bias is not used, as the model has no experts",
    ]


def test_experts_that_no_axis_divides_exchange_nothing() -> None:
    """The note says so, and the step is the same to the picosecond."""
    model = small(layers=4, **EXPERTS)
    steps = {
        ts.simulate(model, plan_of(mesh=FSDP, expert_exchange=way), "v5e-8").timeline.total_ps
        for way in ("all-to-all", "gather", "ring")
    }
    assert len(steps) == 1
