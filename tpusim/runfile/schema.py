"""What a run file may say. The keys are the fields of `Slice`, `Transformer` and `Plan`."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, NewType, get_type_hints

from pydantic import BaseModel, ConfigDict, conlist, create_model
from pydantic import Field as Limits

from tpusim.models import Transformer
from tpusim.partition import Plan
from tpusim.partition.plan import Rule

MOST = 10**9
Count = Annotated[int, Limits(ge=1, le=MOST)]
OrNone = NewType("OrNone", int)
"""A count that may be 0, as it is where it is not written: no window, no latent, no experts."""


def _hints(kind: type) -> Mapping[str, Any]:
    """The fields of a dataclass and their types; a count whose default is 0 may be 0."""
    none = {field.name for field in fields(kind) if field.default == 0}
    return {
        key: OrNone if key in none and hint is int else hint
        for key, hint in get_type_hints(kind).items()
    }


_KINDS: Mapping[Any, tuple[Any, str]] = {
    int: (Count, f"a whole number from 1 to {MOST:,}, without quotes"),
    OrNone: (
        Annotated[int, Limits(ge=0, le=MOST)],
        f"a whole number from 0 to {MOST:,}, without quotes",
    ),
    float: (float, "a number, without quotes"),
    str: (str, "text in quotes"),
    bool: (bool, "true or false, without quotes"),
    Sequence[str]: (list[str], 'a list of names, such as ["q", "k"]'),
    Sequence[int]: (list[Count], "a list of whole numbers, such as [16, 16, 15]"),
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
    str | Mapping[str, str]: (
        str | dict[str, str],
        '"gather", "ring" or "all-to-all", or one for each axis, such as '
        '{ context = "ring", ulysses = "all-to-all" }',
    ),
    Mapping[str, Sequence[str]] | None: (
        dict[str, str | list[str]],
        'torus dimensions, or parts of them, for an axis, such as tensor = ["x", "y[:4]"]',
    ),
    str | Sequence[str]: (
        str | list[str],
        '"all", "all+twisted" or a list of shapes, such as ["4x8x8", "4x4x16"]',
    ),
    Sequence[Mapping[str, int]]: (
        list[dict[str, Count]],
        "a list of meshes, such as [{ fsdp = 64, tensor = 4 }, { fsdp = 256 }]",
    ),
    Mapping[str, Sequence[Any]]: (
        dict[str, list[Any]],
        'a table of plan keys and lists of values to try, such as remat = ["full", "minimal"]',
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
    "dcn_oversubscription": float,
}
SECTIONS: Mapping[str, str] = {
    "slice": 'a section [slice] with chip = "v4" and topology = "8x16x16"',
    "model": 'a section [model] with name = "bert-480b", with hf, or with dimensions',
    "plan": "a section [plan] with seq_len, global_batch and mesh",
    "sweep": 'a section [sweep] with axes = ["data", "fsdp", "tensor"], or with meshes',
}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "slice": _SLICE_KINDS,
    "model": {**_hints(Transformer), "hf": str},
    "plan": _hints(Plan),
    "sweep": {
        "axes": Sequence[str],
        "meshes": Sequence[Mapping[str, int]],
        "placements": str,
        "shapes": str | Sequence[str],
        "vary": Mapping[str, Sequence[Any]],
    },
}
"""The keys of each section, and their types."""

VARIED: Mapping[str, Any] = {
    key: kind for key, kind in FIELDS["plan"].items() if key not in ("mesh", "placement")
}
"""The keys of [sweep.vary], and the types of the values that each lists."""


def keys(section: Sequence[str]) -> Mapping[str, Any]:
    """The keys of a section, or of [sweep.vary]."""
    return VARIED if tuple(section) == ("sweep", "vary") else FIELDS[section[0]]


def wanted(path: Sequence[str]) -> str:
    """What to write for a section, or for a key of one."""
    if len(path) == 1:
        return SECTIONS[path[0]]
    match path:
        case ["sweep", "vary", key]:
            return f"a list of values to try, each {wanted(['plan', key])}"
        case ["sweep", "vary", key, _, *inner]:
            return wanted(["plan", key, *inner])
        case ["sweep", "meshes", _, axis]:
            return wanted(["plan", "mesh", axis])
        case ["sweep", "shapes", _]:
            return 'a shape in quotes, such as "4x4x8"'
        case ["model", "hf"]:
            return "the path of a config.json, in quotes"
    kind = FIELDS[path[0]][path[1]]
    counts = kind in (Mapping[str, int], Sequence[int])
    return _KINDS[int if counts and len(path) > 2 else kind][1]


def required(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that have no default."""
    return tuple(field.name for field in fields(kind) if _needed(field))


def _needed(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _section(name: str, needed: Sequence[str] = (), **special: Any) -> type[BaseModel]:
    """The pydantic model of a section; keys that it need not have are unset when absent."""
    kinds = {key: _KINDS[kind][0] for key, kind in FIELDS[name].items()} | special
    keys: dict[str, Any] = {
        key: (kind, ... if key in needed else None) for key, kind in kinds.items()
    }
    return create_model(name, __config__=_STRICT, **keys)


def _vary() -> type[BaseModel]:
    """The pydantic model of [sweep.vary]: a list of at least one value for any key of a plan."""
    lists: dict[str, Any] = {
        key: (conlist(_KINDS[kind][0], min_length=1), None) for key, kind in VARIED.items()
    }
    return create_model("vary", __config__=_STRICT, **lists)


_COMMON: Mapping[str, Any] = {"slice": (_section("slice"), ...), "model": (_section("model"), ...)}
_NEEDED = required(Plan)

RunFile = create_model(
    "RunFile", __config__=_STRICT, **_COMMON, plan=(_section("plan", _NEEDED), ...)
)
PlanFile = create_model("PlanFile", __config__=_STRICT, plan=(_section("plan"), ...))
"""Changes of a plan: any of its keys."""

SweepFile = create_model(
    "SweepFile",
    __config__=_STRICT,
    **_COMMON,
    plan=(_section("plan", [key for key in _NEEDED if key != "mesh"]), ...),
    sweep=(_section("sweep", vary=_vary()), ...),
)
"""A run file whose plan needs no mesh, and what to try."""
