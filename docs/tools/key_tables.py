"""The tables of docs/run_file.md: the keys of a run file, from the classes that they fill."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from docstring_entries import entries

from tpusim.models import Transformer
from tpusim.plan import Input, Plan, ServingPlan
from tpusim.runfile import Measured, ServerOptions, TrafficKeys
from tpusim.runfile.schema import FIELDS
from tpusim.runfile.serving import DEFAULT_ENGINE
from tpusim.runfile.serving_fields import SERVING_FIELDS
from tpusim.searches.request import SearchRequest
from tpusim.serving.engines import Engine
from tpusim.serving.replica_loss import ServerFailures
from tpusim.sweeps import Space

UNITS = {
    "seq_len": "tokens",
    "global_batch": "examples",
    "step_s": "s",
    "input_s": "s",
    "rate": "requests/s",
    **dict.fromkeys(("cold_start_s", "at_s", "mtbf_s", "ttft_s", "tpot_s"), "s"),
    **dict.fromkeys(("host_s", "schedule_s", "sequence_s", "request_s", "hold_s", "ready_s"), "s"),
    **dict.fromkeys(("record_bytes", "read_bytes"), "B"),
    **dict.fromkeys(("read_latency", "decode_s"), "s"),
    **dict.fromkeys(
        ("reader_bandwidth", "storage_bandwidth", "decompress_rate", "batch_rate"), "B/s"
    ),
    "shuffle": "records",
    "prefetch": "batches",
    "expert_group": "sequences",
    "window": "tokens",
    "positions": "tokens",
    "hbm_gib": "GiB",
    **dict.fromkeys(("mfu_pct", "hfu_pct"), "%"),
}  # fmt: skip
"""The units of the keys that have one."""

MEANINGS = {
    "chip": 'chip generation, such as `"v5p"`; needs `topology`',
    "topology": 'torus of one slice, such as `"8x16x16"` or `"4x4x8_twisted"`',
    "name": 'name of a slice, in place of `chip` and `topology`: `"v4-4096"`, `"v5litepod-256"`, '
    '`"trillium-256"`',
    "num_slices": "slices, joined by DCN",
    "twisted": "the torus is twisted",
    "dcn_oversubscription": "factor by which the network cards of a slice's hosts exceed its "
    "uplink; at least 1",
    "clock": 'clock of matrix and vector units, such as `"1.9 GHz"`, where power limits it',
    "slow": "slow chips, links and slices: see below",
    "broken": "broken optical links and switches: see below",
    "calibration": "path of a [calibration](calibration.md), relative to the run file",
}  # fmt: skip
SLICE_DEFAULTS = {
    "num_slices": "`1`",
    "twisted": "`false`",
    "dcn_oversubscription": "`1.0`",
    "clock": "the chip's (text)",
}


FOLLOWED = (
    "page_size", "page_s", "expert_s", "memory_fraction", "moe_backend", "kernel", "on_chip",
    "version",
)  # fmt: skip
"""Settings of an engine that have rows of their own."""

LARGE = 1e6
"""The least number that is shown as a power of ten."""


class Key(NamedTuple):
    """A row of a table.

    inner: the key's name in the table of its group, where that is another one.
    """

    name: str
    default: str
    meaning: str
    inner: str = ""


NEEDED_IN_FILES = ("mesh",)
"""Keys that Python may leave out, where a search chooses them."""

HF = Key(
    "hf", "text", "path of a Hugging Face `config.json` or its folder, see [models.md](models.md)"
)


def keys_of(owner: type, only: Collection[str] | None = None) -> Iterator[Key]:
    """The fields of a dataclass as keys, but for those that are groups of keys.

    only: the fields to take.
    """
    hints = get_type_hints(owner)
    known = entries(owner.__doc__ or "", list(hints))
    for field in fields(owner):
        if is_dataclass(hints[field.name]) or (only is not None and field.name not in only):
            continue
        default = default_of(field, hints[field.name])
        yield Key(field.name, default, known.get(field.name, ""))


def kind_of(hint: Any) -> str:
    """The type of a key in TOML's words."""
    hint = getattr(hint, "__supertype__", hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(kind_of(one) for one in inner if one is not NoneType))
    if origin is Literal:
        return " or ".join(dict.fromkeys(kind_of(type(value)) for value in inner))
    if origin is not None and issubclass(origin, Mapping):
        return "table"
    if origin is not None and issubclass(origin, Sequence):
        return "list"
    return {int: "integer", float: "number", str: "text", bool: "boolean"}[hint]


def default_of(field: "Field[Any]", hint: Any) -> str:
    """The default of a field as TOML has it, or its type and whether a file needs it."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING or field.name in NEEDED_IN_FILES:
        return f"**{kind_of(hint)}**"
    if value is None:
        return kind_of(hint)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Mapping):
        return "`{}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, Sequence):
        return f"`{list(value)}`"
    if isinstance(value, float) and value.is_integer():
        return (
            f"`{value:.0f}`" if value < LARGE or f"{value:.2g}" != f"{value:g}" else _power(value)
        )
    return f"`{value}`"


def _power(value: float) -> str:
    return f"`{value:.2g}`".replace("e+0", "e")


def table(keys: Sequence[Key], units: Mapping[str, str] = UNITS) -> str:
    """The keys as a table of Markdown, each with the first sentence of its description."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for key in keys:
        if not key.meaning:
            raise SystemExit(f"no docstring says what {key.name} means; describe it there")
        meaning = re.split(r"\. (?=[A-Z`])", key.meaning)[0].removesuffix(".").replace("|", "\\|")
        name = f"`{key.name}`" + (f" (`.{key.inner}`)" if key.inner else "")
        default = f"{key.default} {units.get(key.name, '')}".strip()
        lines.append(f"| {name} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    """The tables of run_file.md, by the name of their markers."""
    return {
        "slice": table(list(_slice_keys())),
        "model": _grouped(Transformer, [HF]),
        "plan": _grouped(Plan),
        "input": table(list(keys_of(Input))),
        "measured": table(list(keys_of(Measured))),
        "serving": table(list(_serving_keys())),
        "traffic": table(list(keys_of(TrafficKeys)), {**UNITS, "window": "s"}),
        "failures": table(list(keys_of(ServerFailures))),
        "sweep": table(list(keys_of(Space, FIELDS["sweep"]))),
        "search": table(list(keys_of(SearchRequest, FIELDS["search"]))),
    }


def _slice_keys() -> Iterator[Key]:
    for name, hint in FIELDS["slice"].items():
        yield Key(name, SLICE_DEFAULTS.get(name, kind_of(hint)), MEANINGS[name])


def _serving_keys() -> Iterator[Key]:
    """The keys of a server: of the plan, of the engine, and of all replicas."""
    of_engine = "the engine's"
    for key in keys_of(ServingPlan):
        defaults = {
            "mesh": "`{ tensor = 1 }`",
            "page_size": of_engine,
            "page_s": of_engine,
            "expert_s": of_engine,
            "memory_fraction": of_engine,
            "moe_backend": of_engine,
            "kernel": of_engine,
            "on_chip": of_engine,
        }
        yield key._replace(default=defaults.get(key.name, key.default))
    yield Key(
        "engine", f'`"{DEFAULT_ENGINE}"`', "serving engine, whose defaults the keys below have"
    )
    yield Key("version", "text", "version of the engine; the newest that is known if left out")
    for key in keys_of(Engine, set(SERVING_FIELDS["serving"])):
        if key.name not in FOLLOWED:
            yield key._replace(default=of_engine + "," * (key.name in UNITS))
    yield from keys_of(ServerOptions)


def _grouped(owner: type, more: Sequence[Key] = ()) -> str:
    """The keys of a class; those of each group under a heading, by both of their spellings."""
    keys = owner.KEYS
    homes = keys.own or (owner,)
    about: dict[str, str] = {}
    for home in (*homes, *keys.groups.values()):
        about |= entries(home.__doc__ or "", list(get_type_hints(home)))
    own = [key for home in homes for key in keys_of(home)]
    parts = [table([*own, *more])]
    for group, kind in keys.groups.items():
        rows = [
            key._replace(name=flat, inner="" if flat == key.name else key.name)
            for key in keys_of(kind)
            for flat in (keys.flat_keys[group, key.name],)
        ]
        said = about.get(group) or inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
        parts.append(f"### {group}\n\n{said[:1].upper()}{said[1:]}\n\n{table(rows)}")
    return "\n".join(parts)
