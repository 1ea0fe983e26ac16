"""A key of a plan changes the step, or the result says that it does not, or it is refused.

All keys with all of their words, and values of the others, on a small model of each architecture.
A note that a key is not used is true: without the key the step is the same.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from accounts import KeyEffects, unused_model_keys
from extent import sample
from small_models import SMALL_MODELS
from steps import planned_graph

from tpusim.base import TpusimError
from tpusim.hardware import Slice
from tpusim.models import ARCHITECTURES, Architecture
from tpusim.plan import PLAN_CHOICES, PLAN_KEYS, Plan
from tpusim.results import PlanResult
from tpusim.simulation import simulate

POD = Slice("v5e", "2x4")
MESH = {"data": 2, "fsdp": 2, "tensor": 2}
BASES: tuple[dict[str, Any], ...] = (
    {},
    {"mesh": {"fsdp": 8}},
    {"mesh": {"data": 8}, "optimizer": "sgd"},
    {"mesh": {"fsdp": 2, "expert": 2, "tensor": 2}},
    {"mesh": {"fsdp": 2, "context": 2, "tensor": 2}},
    {"mesh": {"stage": 2, "fsdp": 4}, "microbatches": 4},
    {"microbatches": 2, "matmul_dtype": "int8"},
    {"remat": "none", "optimizer": "lars"},
)
"""Plans to which a key is added."""

VALUES: dict[str, list[Any]] = {
    "seq_len": [64],
    "microbatches": [2],
    "save": [["layer/wi"]],
    "offload": [["layer_in"]],
    "scan_layers": [False],
    "rules": [{"mlp": None}, {"act_embed": "tensor"}],
    "trainable": [["head"]],
    "adapter_rank": [4],
    "adapter_weights": [["wq"]],
    "collective_matmul": [False],
    "offload_optimizer": [True],
    "weight_update_axes": [["data"], ["fsdp"]],
    "vocab_tiles": [2],
    "vocab_blocks": [2],
    "context_exchange": ["ring", "all-to-all"],
    "context_balanced": [False],
    "attention_block": [[256, 256]],
    "attention_block_backward": [[256, 256]],
    "input_s": [10.0],
    "capacity_factor": [1.25],
    "expert_group": [2],
    "expert_buffer": [2.0],
    "expert_skew": [1.0],
    "seed": [3],
    "expert_tiles": [[256, 256, 256], []],
    "virtual_stages": [2],
    "stage_layers": [[2, 2]],
    "without_passes": [["observed"]],
}
"""Values of the keys that take no word of some; those that a mesh decides have none."""

OTHERS = {"mesh", "global_batch", "annotate", "placement"}


def values(key: str) -> list[Any]:
    return VALUES[key] if key in VALUES else list(PLAN_CHOICES[key])


def keys_beside(base: int) -> Iterator[tuple[str, Any]]:
    for key in PLAN_KEYS.table:
        if key not in OTHERS and key not in BASES[base]:
            yield from ((key, value) for value in values(key))


def test_all_keys_and_all_architectures_are_tried() -> None:
    assert {type(model) for model in SMALL_MODELS} == set(ARCHITECTURES.values())
    assert set(PLAN_KEYS.table) == OTHERS | {*VALUES, *PLAN_CHOICES}


def result_of(model: Architecture, base: int, **keys: Any) -> PlanResult | None:
    given: dict[str, Any] = {
        "mesh": MESH,
        "global_batch": 32,
        "seq_len": 256 if model.reads_text else 0,
    }
    try:
        return simulate(model, Plan(**(given | BASES[base] | keys)), POD)
    except TpusimError:
        return None


def facts(result: PlanResult) -> tuple[object, ...]:
    return result.programs, result.timeline.total_ps, result.hbm_peak_bytes


def notes_on(result: PlanResult, key: str) -> Iterator[str]:
    for _, text in result.notes():
        saved = key in ("save", "offload") and text.startswith("not saved")
        if f"plan.{key} " in text or f"plan.{key}." in text or saved:
            yield text


PAIRS = [(model, base) for base in range(len(BASES)) for model in SMALL_MODELS]


@pytest.mark.parametrize(("model", "base"), sample(PAIRS, 400))
def test_a_key_changes_the_step_or_is_noted(model: Architecture, base: int) -> None:
    before = result_of(model, base)
    if before is None:
        return
    silent, false = [], []
    for key, value in keys_beside(base):
        after = result_of(model, base, **{key: value})
        if after is None or not KeyEffects(model, after.plan).gives(key):
            continue
        same = facts(before) == facts(after)
        notes = list(notes_on(after, key))
        if same and not notes:
            silent.append((key, value))
        if not same and any("is not used" in text for text in notes):
            false.append((key, value, notes))
    assert (silent, false) == ([], [])


WORDS = (
    "decoder", "encoder", "dot", "flash", "f32", "compute", "relu", "relu2", "gelu", "silu", "rms",
    "layer", "layer-unshifted", "rms-unscaled", "layer-unscaled", "batch", "device", "frozen",
    "token", "mean", "probe", "first", "last", "softmax", "sigmoid", "image", "text", "each", "all",
)  # fmt: skip


def variants(value: object) -> Iterator[Any]:
    """Other values of a key, of which a model refuses those that it cannot have."""
    match value:
        case bool():
            yield not value
        case int():
            yield from {2 * value, value + 1, max(value // 2, 1), 8} - {value}
        case float():
            yield 2 * value or 0.5
        case str():
            yield from (word for word in WORDS if word != value)
        case tuple() if value:
            yield from ((*value, value[-1]), value[:-1])


def changed(given: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A model, or a group of its keys, with another value of each key, and the key's path."""
    for field in fields(given):
        value = getattr(given, field.name)
        inner = (
            changed(value, f"{path}{field.name}.")
            if is_dataclass(value)
            else ((f"{path}{field.name}", other) for other in variants(value))
        )
        try:
            for key, other in inner if field.name != "name" else ():
                try:
                    yield key, replace(given, **{field.name: other})
                except TpusimError:
                    continue
        except TpusimError:
            continue


@pytest.mark.parametrize("model", sample(SMALL_MODELS, 6))
def test_a_key_of_a_model_changes_its_graph_or_is_noted(model: Architecture) -> None:
    plan = Plan(mesh=MESH, global_batch=32, seq_len=256 if model.reads_text else 0)
    silent = []
    for key, other in changed(model):
        try:
            same = planned_graph(other, plan) == planned_graph(model, plan)
        except TpusimError:
            continue
        if same and not [text for text in unused_model_keys(other, plan) if _last(key) in text]:
            silent.append(key)
    assert silent == []


def _last(path: str) -> str:
    return path.rpartition(".")[2]
