"""Keys of a model that leave its graph as it is with their defaults, and why."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from tpusim.base.errors import TpusimError
from tpusim.models import MODEL_KEYS, Architecture, Transformer
from tpusim.pipeline.planned_step import planned_graph
from tpusim.plan import Plan

NO_SCORES = "no attention of the model writes its scores to HBM"

REASONS: Mapping[str, str] = {
    "softmax_dtype": NO_SCORES,
    "attention.softmax_dtype": NO_SCORES,
    "image.softmax_dtype": NO_SCORES,
    "attention.global_every": "no layer has a window",
    "attention.fused_qkv": "its projections are matmuls of their own",
    "biases.router": "the model has no experts",
    "image.classes": "the image tower has no classifier",
    "flash_from": "the same attention is fused without it",
}
"""Keys that some models do not read, with what a model then is or lacks."""


def unused_model_keys(model: Architecture, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each key of `model` without which it has the same graph."""
    for path, why in REASONS.items():
        other = _without(model, path.split("."))
        if other is None or other == model:
            continue
        try:
            same = planned_graph(other, plan) == planned_graph(model, plan)
        except TpusimError:
            continue
        if same:
            key = _written(path) if isinstance(model, Transformer) else path
            yield f"model.{key} is not used, as {why}"


def _without(given: Any, path: list[str]) -> Any:
    """Return a model, or a group of its keys, with the default of one; None if it lacks that."""
    head, *rest = path
    known = {field.name: field for field in fields(given)}
    if head not in known:
        return None
    try:
        if rest:
            group = getattr(given, head)
            inner = _without(group, rest) if is_dataclass(group) else None
            return None if inner is None else replace(given, **{head: inner})
        default = known[head].default
        return None if default is MISSING else replace(given, **{head: default})
    except TpusimError:
        return None


def _written(path: str) -> str:
    """Return the flat key of a field of a transformer."""
    group, _, name = path.rpartition(".")
    return MODEL_KEYS.flat_keys.get((group, name), path)
