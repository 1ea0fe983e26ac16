"""What a run file may say. The keys are the fields of `Slice`, `Transformer` and `Plan`."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model
from pydantic import Field as Limits

from tpusim.models import Transformer
from tpusim.partition import Plan
from tpusim.partition.plan import Rule

MOST = 10**9
Count = Annotated[int, Limits(ge=1, le=MOST)]

_KINDS: Mapping[Any, tuple[Any, str]] = {
    int: (Count, f"a whole number from 1 to {MOST:,}, without quotes"),
    str: (str, "text in quotes"),
    bool: (bool, "true or false, without quotes"),
    Sequence[str]: (list[str], 'a list of names, such as ["q", "k"]'),
    Mapping[str, int]: (
        dict[str, Count],
        f"a table of axes and sizes from 1 to {MOST:,}, such as {{ fsdp = 256, tensor = 8 }}",
    ),
    Mapping[str, Rule]: (
        dict[str, str | list[str]],
        'an axis or a list of axes for a dimension, such as act_embed = "tensor"',
    ),
    Mapping[str, Sequence[Rule]]: (
        dict[str, list[str | list[str]]],
        "an axis, a list of axes or [] for each dimension of a tensor, such as "
        '"layer/mlp_hidden" = ["fsdp", [], "tensor"]',
    ),
    Mapping[str, Sequence[str]] | None: (
        dict[str, list[str]],
        'a list of torus dimensions for an axis, such as tensor = ["x"]',
    ),
}
"""For each type of a field: what pydantic reads, and what to write instead of something else."""

_STRICT = ConfigDict(extra="forbid", strict=True)
_SLICE_KINDS: Mapping[str, Any] = {
    "chip": str,
    "topology": str,
    "name": str,
    "num_slices": int,
    "twisted": bool,
}
SECTIONS: Mapping[str, str] = {
    "slice": 'a section [slice] with chip = "v4" and topology = "8x16x16"',
    "model": 'a section [model] with name = "bert-480b", or with dimensions',
    "plan": "a section [plan] with seq_len, global_batch and mesh",
}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "slice": _SLICE_KINDS,
    "model": get_type_hints(Transformer),
    "plan": get_type_hints(Plan),
}
"""The keys of each section, and their types."""


def wanted(path: Sequence[str]) -> str:
    """What to write for a section, or for a key of one."""
    if len(path) == 1:
        return SECTIONS[path[0]]
    kind = FIELDS[path[0]][path[1]]
    return _KINDS[int if kind == Mapping[str, int] and len(path) > 2 else kind][1]


def required(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that have no default."""
    return tuple(field.name for field in fields(kind) if _needed(field))


def _needed(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _section(name: str, needed: Sequence[str] = ()) -> type[BaseModel]:
    """The pydantic model of a section; keys that it need not have are unset when absent."""
    keys: dict[str, Any] = {
        key: (_KINDS[kind][0], ... if key in needed else None) for key, kind in FIELDS[name].items()
    }
    return create_model(name, __config__=_STRICT, **keys)


RunFile = create_model(
    "RunFile",
    __config__=_STRICT,
    slice=(_section("slice"), ...),
    model=(_section("model"), ...),
    plan=(_section("plan", required(Plan)), ...),
)
