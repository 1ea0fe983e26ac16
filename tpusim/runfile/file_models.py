"""The pydantic models of run files, of the keys and types of `schema`."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, conlist, create_model

from tpusim.plan import PLAN_KEYS
from tpusim.runfile.measured import Measured
from tpusim.runfile.schema import ALL_FIELDS, FIELD_GROUPS, READ_TYPES, VARIED, required

TABLE_TAG = "dict[table]"
"""The tag of a group's table in the locations of pydantic's errors."""

_STRICT = ConfigDict(extra="forbid", strict=True, defer_build=True)
"""Of every table; validators are built at the first use, those of inner tables with the whole."""


def _table(name: str, kinds: Mapping[str, Any], needed: Sequence[str] = ()) -> type[BaseModel]:
    """Return the pydantic model of a table; keys that it need not have are unset when absent."""
    entries: dict[str, Any] = {
        key: (kind, ... if key in needed else None) for key, kind in kinds.items()
    }
    return create_model(name, __config__=_STRICT, **entries)


def _section(name: str, needed: Sequence[str] = (), **special: Any) -> type[BaseModel]:
    """Return the pydantic model of a section."""
    kinds = {key: READ_TYPES[kind][0] for key, kind in ALL_FIELDS[name].items()} | special
    for group, inner in FIELD_GROUPS.get(name, {}).items():
        table = _table(group, {key: READ_TYPES[kind][0] for key, kind in inner.items()})
        kinds[group] = _either(kinds.get(group), table)
    return _table(name, kinds, needed)


def _vary() -> type[BaseModel]:
    """Return the pydantic model of a table `vary`: lists of values for keys of a plan."""
    kinds = {key: _values(kind) for key, kind in VARIED.items()}
    for group, inner in FIELD_GROUPS["plan"].items():
        table = _table(group, {key: _values(kind) for key, kind in inner.items()})
        kinds[group] = _either(kinds.get(group), table)
    return _table("vary", kinds)


def _values(kind: Any) -> Any:
    return conlist(READ_TYPES[kind][0], min_length=1)


def _either(flat: Any, table: Any) -> Any:
    """Return the type of a name that is a group, and where `flat` is given also a flat key."""
    if flat is None:
        return table
    choices = Annotated[flat, Tag("flat")] | Annotated[table, Tag(TABLE_TAG)]
    return Annotated[choices, Discriminator(_form_of)]


def _form_of(value: Any) -> str:
    return TABLE_TAG if isinstance(value, dict | BaseModel) else "flat"


@cache
def run_file() -> type[BaseModel]:
    """Return the pydantic model of a run file."""
    return create_model(
        "RunFile",
        __config__=_STRICT,
        slice=(_section("slice"), ...),
        model=(_section("model"), ...),
        plan=(_section("plan", ("mesh", *PLAN_KEYS.needed)), ...),
        input=(_section("input"), None),
        measured=(_section("measured", required(Measured)), None),
    )


@cache
def serving_file() -> type[BaseModel]:
    """Return the pydantic model of a run file with a section [serving]."""
    return create_model(
        "ServingFile",
        __config__=_STRICT,
        slice=(_section("slice"), ...),
        model=(_section("model"), ...),
        serving=(_section("serving"), ...),
        traffic=(_section("traffic"), None),
        failures=(_section("failures"), None),
    )


@cache
def measured_file() -> type[BaseModel]:
    """Return the pydantic model of a run file of which only the measurement is read."""
    return create_model(
        "MeasuredFile",
        __config__=ConfigDict(strict=True, defer_build=True),
        measured=(_section("measured", required(Measured)), ...),
    )


@cache
def plan_file() -> type[BaseModel]:
    """Return the pydantic model of changes of a plan: any of its keys."""
    return create_model("PlanFile", __config__=_STRICT, plan=(_section("plan"), ...))


@cache
def sweep_file() -> type[BaseModel]:
    """Return the pydantic model of a run file with a section [sweep], whose plan needs no mesh."""
    return create_model(
        "SweepFile",
        __config__=_STRICT,
        slice=(_section("slice"), ...),
        model=(_section("model"), ...),
        plan=(_section("plan", PLAN_KEYS.needed), ...),
        input=(_section("input"), None),
        sweep=(_section("sweep", vary=_vary()), ...),
    )


@cache
def search_file() -> type[BaseModel]:
    """Return the pydantic model of a run file with a section [search].

    Its plan needs no mesh, and it need not have a slice.
    """
    return create_model(
        "SearchFile",
        __config__=_STRICT,
        slice=(_section("slice"), None),
        model=(_section("model"), ...),
        plan=(_section("plan", PLAN_KEYS.needed), ...),
        input=(_section("input"), None),
        search=(_section("search", vary=_vary()), ...),
    )
