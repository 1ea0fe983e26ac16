"""The keys of a run file and their types: of `Slice`, `Transformer`, `Plan`, `Input`, `Measured`.

The keys of a plan and of a model have two spellings, flat and grouped; a group is a table, such as
[plan.dtypes].
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, Literal, NewType, get_origin, get_type_hints

from pydantic import Field as Limits

from tpusim.base.grouped_keys import GroupedKeys
from tpusim.hardware import BROKEN_ADVICE, SLOW_ADVICE
from tpusim.models import MODEL_KEYS, Transformer
from tpusim.plan import PLAN_CHOICES, PLAN_KEYS, Input, Rule
from tpusim.plan.context import ContextExchanges
from tpusim.runfile.measured import Measured
from tpusim.runfile.serving_fields import (
    LENGTH_ADVICE,
    SERVING_CHOICES,
    SERVING_FIELDS,
    SERVING_SECTIONS,
    OrNone,
    Seconds,
    TokenLengths,
)

LARGEST_COUNT = 10**9
Count = Annotated[int, Limits(ge=1, le=LARGEST_COUNT)]
SlowTable = NewType("SlowTable", dict[str, Any])
BrokenTable = NewType("BrokenTable", dict[str, Any])
"""Lists of slow and of broken parts by kind; the slice itself reads what is in them."""

Clock = NewType("Clock", str)
"""A clock with its unit."""

OpenValues = NewType("OpenValues", Mapping[str, Sequence[Any]])
"""Plausible values of keys of several sections."""

Objective = NewType("Objective", Sequence[str])
"""The name of what a search makes small, or two names."""


def _hints(kind: type) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass; a count whose default is 0 may be 0.

    A `Literal` is read as text, and the plan says which it may be.
    """
    none = {field.name for field in fields(kind) if field.default == 0}
    return {
        key: OrNone if key in none and hint is int else str if get_origin(hint) is Literal else hint
        for key, hint in get_type_hints(kind).items()
    }


READ_TYPES: Mapping[Any, tuple[Any, str]] = {
    int: (Count, f"a whole number from 1 to {LARGEST_COUNT:,}, without quotes"),
    OrNone: (
        Annotated[int, Limits(ge=0, le=LARGEST_COUNT)],
        f"a whole number from 0 to {LARGEST_COUNT:,}, without quotes",
    ),
    float: (float, "a number, without quotes"),
    int | None: (Count, f"a whole number from 1 to {LARGEST_COUNT:,}, without quotes"),
    float | None: (float, "a number, without quotes"),
    str: (str, "text in quotes"),
    Clock: (str, 'a clock with its unit, in quotes, such as "1.2 GHz"'),
    bool: (bool, "true or false, without quotes"),
    Sequence[str]: (list[str], 'a list of names, such as ["q", "k"]'),
    Sequence[int]: (list[Count], "a list of whole numbers, such as [16, 16, 15]"),
    Mapping[str, int]: (
        dict[str, Count],
        f"a table of axes and sizes from 1 to {LARGEST_COUNT:,}, such as "
        "{ fsdp = 256, tensor = 8 }",
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
    ContextExchanges: (
        str | dict[str, str],
        '"gather", "ring" or "all-to-all", or one for each axis, such as '
        '{ context = "ring", ulysses = "all-to-all" }',
    ),
    Mapping[str, Sequence[str]] | None: (
        str | dict[str, str | list[str]],
        'torus dimensions, or parts of them, for an axis, such as tensor = ["x", "y[:4]"], or all '
        'as one text, such as "tensor on x; fsdp on y,z"',
    ),
    str | Sequence[str]: (
        str | list[str],
        '"all", "all+twisted" or a list of shapes, such as ["4x8x8", "4x4x16"]',
    ),
    OpenValues: (
        dict[str, list[Any]],
        'a table of lists of values by key in quotes, such as { "plan.seq_len" = [512, 1024] }',
    ),
    SlowTable: (dict[str, list[dict[str, Any]]], SLOW_ADVICE),
    BrokenTable: (dict[str, list[dict[str, Any]]], BROKEN_ADVICE),
    Objective: (
        str | list[str],
        '"step_time", "chip_time", "cost" or "energy", or a list of two of them for a front',
    ),
    Mapping[str, float]: (
        dict[str, float | int],
        "a table of limits, such as { step_time = 20.0, chips = 4096, hbm = 0.95 }",
    ),
    Sequence[Mapping[str, int]]: (
        list[dict[str, Count]],
        "a list of meshes, such as [{ fsdp = 64, tensor = 4 }, { fsdp = 256 }]",
    ),
    TokenLengths: (Count | dict[str, int | float | list[int | float]], LENGTH_ADVICE),
    Seconds: (list[float], "a start and an end in seconds, such as [0, 600]"),
    Mapping[str, Sequence[Any]]: (
        dict[str, list[Any]],
        'a table of plan keys and lists of values to try, such as remat = ["full", "minimal"]',
    ),
}
"""For each type of a field: the type that pydantic reads, and what to write, for messages."""

_SLICE_KINDS: Mapping[str, Any] = {
    "chip": str,
    "topology": str,
    "name": str,
    "num_slices": int,
    "twisted": bool,
    "dcn_oversubscription": float,
    "clock": Clock,
    "slow": SlowTable,
    "broken": BrokenTable,
    "calibration": str,
}
KEYS: Mapping[str, GroupedKeys] = {"model": MODEL_KEYS, "plan": PLAN_KEYS}
"""The sections whose keys have two spellings."""

_OWNERS: Mapping[str, type] = {"model": Transformer}
"""The dataclass of a section that is not made of parts."""

FIELD_GROUPS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    section: {
        group: {name: hint for name, hint in _hints(kind).items() if name not in keys.groups}
        for group, kind in keys.groups.items()
    }
    for section, keys in KEYS.items()
}
"""For each section the groups that it may have as tables, with the types of their fields."""


def _flat_hints(section: str) -> dict[str, Any]:
    """Return the type of each flat key of a section, in the order of its table."""
    keys = KEYS[section]
    own: dict[str, Any] = {}
    for kind in keys.own or (_OWNERS[section],):
        own |= _hints(kind)
    homes = {"": own} | dict(FIELD_GROUPS[section])
    return {key: homes[group][name] for key, (group, name) in keys.table.items()}


SECTIONS: Mapping[str, str] = {
    "slice": 'a section [slice] with chip = "v4" and topology = "8x16x16"',
    "model": 'a section [model] with name = "bert-480b", with hf, or with dimensions',
    "plan": "a section [plan] with global_batch, mesh and seq_len",
    "input": 'a section [input] with kind = "jpeg" and workers = 32',
    "measured": "a section [measured] with step_s = 21.6 and a source",
    "sweep": 'a section [sweep] with axes = ["data", "fsdp", "tensor"], or with meshes',
    "search": 'a section [search] with axes = ["data", "fsdp", "tensor"], or with meshes',
}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "slice": _SLICE_KINDS,
    "model": {**_flat_hints("model"), "hf": str},
    "plan": _flat_hints("plan"),
    "input": {**_hints(Input), "prefetch": OrNone},
    "measured": {**_hints(Measured), "open": OpenValues},
    "sweep": {
        "axes": Sequence[str],
        "meshes": Sequence[Mapping[str, int]],
        "placements": str,
        "shapes": str | Sequence[str],
        "vary": Mapping[str, Sequence[Any]],
    },
    "search": {
        "slices": Sequence[str],
        "generations": Sequence[str],
        "chips": Sequence[int],
        "num_slices": Sequence[int],
        "twisted": bool,
        "tune": bool,
        "axes": Sequence[str],
        "meshes": Sequence[Mapping[str, int]],
        "most": Mapping[str, int],
        "vary": Mapping[str, Sequence[Any]],
        "objective": Objective,
        "top": int,
        "at_most": Mapping[str, float],
        "method": str,
        "starts": int,
        "seed": OrNone,
    },
}
"""The flat keys of each section, and their types."""

ALL_FIELDS = {**FIELDS, **SERVING_FIELDS}
"""Those of files with a plan, and of files with a server in its place."""

VARIED: Mapping[str, Any] = {
    key: kind for key, kind in FIELDS["plan"].items() if key not in ("mesh", "placement")
}
"""The keys of [sweep.vary] and [search.vary], and the types of the values that each lists."""


def keys(section: Sequence[str]) -> Mapping[str, Any]:
    """Return the keys of a section, of a table `vary`, or of a group, with their types."""
    match list(section):
        case ["sweep" | "search", "vary"]:
            return VARIED
        case ["sweep" | "search", "vary", group] | ["plan", group]:
            return FIELD_GROUPS["plan"][group]
        case ["model", group]:
            return FIELD_GROUPS["model"][group]
    return ALL_FIELDS[section[0]]


def wanted(path: Sequence[str]) -> str:
    """Return the advice for a section, or for a key of one."""
    match list(path):
        case [section]:
            return SERVING_SECTIONS.get(section) or SECTIONS[section]
        case ["serving", "mesh"]:
            return "a table of axes and sizes, such as { attn_data = 2, tensor = 4 }"
        case ["serving" | "traffic" as section, key, *_] if (section, key) in SERVING_CHOICES:
            words = (word for word in SERVING_CHOICES[section, key] if word)
            return f"one of {', '.join(words)}, in quotes"
        case ["sweep" | "search", "vary", group, key, *inner] if key in FIELD_GROUPS["plan"].get(
            group, ()
        ):
            return _listed(["plan", group, key], inner)
        case ["sweep" | "search", "vary", key, *inner]:
            return _listed(["plan", key], inner)
        case ["sweep" | "search", "meshes", _, axis]:
            return wanted(["plan", "mesh", axis])
        case ["sweep", "shapes", _]:
            return 'a shape in quotes, such as "4x4x8"'
        case ["search", "slices", *_]:
            return 'a list of slices, such as ["v4:8x16x16", "v5e-256"]'
        case ["search", "generations", *_]:
            return 'a list of chips, such as ["v4", "v5p"]'
        case ["search", "chips", *_]:
            return "the least and the most chips of a slice, such as [2048, 6144]"
        case ["search", "num_slices", *_]:
            return "a list of numbers of slices, such as [1, 2, 4]"
        case ["sweep" | "search", "axes", *_]:
            return 'a list of axes, such as ["data", "fsdp", "tensor"]'
        case ["search", "at_most", *_]:
            return READ_TYPES[Mapping[str, float]][1]
        case ["plan", key] if key in PLAN_CHOICES and FIELDS["plan"][key] is str:
            return f"one of {', '.join(PLAN_CHOICES[key])}, in quotes"
        case ["model", "hf"]:
            return "the path of a config.json, in quotes"
        case [section, group, key, *inner] if key in FIELD_GROUPS.get(section, {}).get(group, ()):
            return _of_kind(FIELD_GROUPS[section][group][key], inner)
        case [section, key] if key not in ALL_FIELDS[section]:
            return f"a table of {', '.join(FIELD_GROUPS[section][key])}"
        case [section, key, *inner]:
            return _of_kind(ALL_FIELDS[section][key], inner)
    return SECTIONS[path[0]]


def _listed(key: Sequence[str], inner: Sequence[str]) -> str:
    """Return the advice for a list of values of a key, or for one of them (`inner[0]`)."""
    return wanted([*key, *inner[1:]]) if inner else f"a list of values to try, each {wanted(key)}"


def _of_kind(kind: Any, inner: Sequence[str]) -> str:
    """Return the advice for a value of a type, or for a part of it."""
    counts = kind in (Mapping[str, int], Sequence[int])
    return READ_TYPES[int if counts and inner else kind][1]


def required(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that have no default."""
    return tuple(field.name for field in fields(kind) if _needed(field))


def _needed(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING
