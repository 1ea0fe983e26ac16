"""Names of other libraries: each place where a user may write one says ours."""

import re
import tomllib
from dataclasses import fields
from typing import Any

import pytest
from inputs import nearest

import tpusim as ts
from tpusim.base import PlanError
from tpusim.base.foreign_names import our_names
from tpusim.cli.help import EXAMPLES
from tpusim.hardware import chip_names
from tpusim.maxtext.remat import POLICIES
from tpusim.models import MODEL_KEYS, Transformer
from tpusim.partition.rules import DEFAULT_RULES
from tpusim.plan import PLAN_CHOICES, PLAN_KEYS, STAGE_AXES
from tpusim.runfile.schema import SECTIONS, keys
from tpusim.searches import OBJECTIVES
from tpusim.training import Checkpoints, TrainingRun

SIZES = {"layers": 2, "embed": 64, "mlp": 128, "heads": 4, "vocab": 128}


def test_each_stands_for_a_name_that_exists() -> None:
    axes = {axis for rule in DEFAULT_RULES.values() for axis in rule}
    known = {*MODEL_KEYS.table, *PLAN_KEYS.table, *axes, *STAGE_AXES, *DEFAULT_RULES}
    known |= {"seq", "batch", "act_seq", *chip_names()}
    known |= {word for section in SECTIONS for word in keys([section])}
    known |= {field.name for kind in (TrainingRun, Checkpoints) for field in fields(kind)}
    known |= {word for words in PLAN_CHOICES.values() for word in words} | {*SECTIONS}
    known |= {*EXAMPLES, *OBJECTIVES, "--out", "--json", "--quiet", "--workers", "--set"}
    known |= {"flash", "dot", "rms", "layer", "decoder", "encoder"}
    assert set(our_names().values()) <= known
    assert not set(our_names()) & {*MODEL_KEYS.table, *PLAN_KEYS.table, *axes, *chip_names()}


@pytest.mark.parametrize(
    ("other", "ours"),
    [("hidden_size", "embed"), ("emb_dim", "embed"), ("num_hidden_layers", "layers"),
     ("intermediate_size", "mlp"), ("num_key_value_heads", "kv_heads")],
)  # fmt: skip
def test_a_dimension_of_a_model(other: str, ours: str) -> None:
    left: dict[str, Any] = {key: size for key, size in SIZES.items() if key != ours}
    with pytest.raises(TypeError, match=f"no key '{other}'; tpusim calls it '{ours}'"):
        Transformer(**left, **{other: 64})


def test_a_name_is_offered_only_where_it_is_valid() -> None:
    assert nearest("hidden_size", ["embed", "mlp"]) == "tpusim calls it 'embed'"
    assert nearest("hidden_size", ["mlp"]) == "valid are mlp"


def simulated(**keys: Any) -> None:
    plan = ts.Plan(**{"global_batch": 16, "seq_len": 128, "mesh": {"fsdp": 16}, **keys})
    ts.simulate(Transformer(**SIZES), plan, ts.Slice("v5e", "4x4"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"mesh": {"data": 4, "model": 4}},
         "plan.mesh.model shards nothing: .*has some: tpusim calls it 'tensor'"),
        ({"mesh": {"replica": 16}}, "plan.mesh.replica .*: tpusim calls it 'data'"),
        ({"rules": {"hidden_size": "fsdp"}},
         "plan.rules.hidden_size names no dimension of the model: tpusim calls it 'embed'"),
        ({"mesh": {"fsdp": 4, "tensor": 4}, "rules": {"mlp": "model"}},
         "plan.rules.mlp shards over 'model', .*: tpusim calls it 'tensor'"),
    ],
)  # fmt: skip
def test_an_axis_or_a_dimension_of_a_plan(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        simulated(**keys)


def test_an_axis_of_ones_own_has_no_other_name() -> None:
    with pytest.raises(PlanError) as caught:
        simulated(mesh={"mine": 16})
    assert not re.search("tpusim calls it", str(caught.value))


@pytest.mark.parametrize(
    "policy", sorted(set(POLICIES["saved"]) | set(POLICIES["offloaded"]) | {"minimal_flash"})
)
def test_a_policy_of_maxtext_is_told_as_its_configs_are_read(policy: str) -> None:
    if policy in ("full", "none"):
        return
    keys = ["model_name=llama2-7b", "per_device_batch_size=4", f"remat_policy={policy}"]
    read = ts.from_maxtext("defaults", keys, pod="v5e-256").plan.remat
    told = nearest(policy, ["full", "minimal", "dots", "none"])
    given = tomllib.loads(told.removeprefix("write ").replace(" and ", "\n"))
    assert ts.Plan(mesh={"fsdp": 16}, global_batch=16, **given).remat == read
