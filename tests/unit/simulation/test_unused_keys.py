"""What a plan gives and nothing takes is told, whatever it is; what is taken is not."""

from typing import Any

import pytest
from plans import plan_of, small

from tpusim.results.unused_keys import unused_keys

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
