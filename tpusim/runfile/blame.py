"""Errors of a run file as sentences that begin with the section and the key."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tpusim.base.close_names import close_names
from tpusim.base.errors import (
    FileError,
    HardwareError,
    ModelError,
    PlanError,
    TpusimError,
    TrafficError,
    nearest,
)
from tpusim.base.foreign_names import foreign_advice, our_name
from tpusim.base.shown_value import cut, shown
from tpusim.runfile.schema import ALL_FIELDS, FIELDS, SECTIONS, keys, wanted
from tpusim.runfile.serving_fields import SERVING_FIELDS, SERVING_SECTIONS
from tpusim.runfile.training import FAILURES, STRAGGLERS, TRAIN

_BESIDES = "a sweep is of one model, on sweep.shapes, and a search chooses among search.slices"
_OF_A_RUN = ("slice", "model", "plan", "input")
_OF_A_SERVER = ("slice", "model", *SERVING_FIELDS)

ERRORS: Mapping[str, type[TpusimError]] = {
    "slice": HardwareError,
    "model": ModelError,
    "plan": PlanError,
    "sweep": PlanError,
    "search": PlanError,
    "serving": PlanError,
    "traffic": TrafficError,
}


def fault_of(error: ValidationError, data: Mapping[str, Any]) -> TpusimError:
    """Return the first error of a run file's `data` as one sentence; unknown keys come first."""
    first = min(
        error.errors(), key=lambda fault: (_rank(fault), -len(_walk(fault["loc"], data)[0]))
    )
    path, found = _walk(first["loc"], data)
    kind = ERRORS.get(str(path[0]), FileError) if path else FileError
    if first["type"] == "extra_forbidden":
        return kind(_unknown(path))
    if first["type"] == "missing":
        return kind(_missing([*path, str(first["loc"][-1])]))
    told = f"[{path[0]}] name = {shown(found)}, or " if _is_name(path, found) else ""
    return kind(f"{_joined(path)} is {shown(found, 'the text ')}; write {told}{wanted(path)}")


def _is_name(path: list[str], value: Any) -> bool:
    """Return True for a text in place of a section that has a `name`."""
    return len(path) == 1 and isinstance(value, str) and "name" in FIELDS.get(path[0], ())


def _joined(path: list[str]) -> str:
    """Return the path as text: `sweep.shapes[0]`, a key without its control characters."""
    return ".".join(map(_printable, path)).replace(".[", "[")


def _printable(key: str) -> str:
    return cut(key if key.isprintable() else repr(key)[1:-1])


def _rank(fault: Mapping[str, Any]) -> int:
    return {"extra_forbidden": 0, "missing": 2}.get(fault["type"], 1)


def _walk(loc: tuple[Any, ...], data: Any) -> tuple[list[str], Any]:
    """Return the part of a location that the data has, and the value there.

    Where several types are possible, a location also names the type, which is not in the data.
    """
    path = []
    for part in loc:
        typed = isinstance(data, dict) and str(part).startswith("dict[")
        if typed or (isinstance(data, list) and not isinstance(part, int)):
            continue
        if not isinstance(data, list) and not (isinstance(data, dict) and part in data):
            break
        data = data[part]
        path.append(f"[{part}]" if isinstance(part, int) else str(part))
    return path, data


def _unknown(path: list[str]) -> str:
    *section, key = path
    if not section:
        if key == "search":
            return "a file has [sweep] or [search]; leave one of them out"
        if key == "measured":
            return "the section [measured] is of one run; leave it out of a sweep or a search"
        if homes := _homes(key):
            return f"{_printable(key)} is in no section; it belongs to {homes}"
        if key == "traffic":
            return "[traffic] is of a server; write a section [serving] in place of [plan]"
        if key in (FAILURES, STRAGGLERS):
            return f"[{key}] is of a training run; write a section [train] as well"
        sections = [*SECTIONS, TRAIN, FAILURES, STRAGGLERS, *SERVING_SECTIONS]
        if not our_name(key, sections) and (told := foreign_advice(key, FIELDS["plan"])):
            return f"{_printable(key)} is in no section; under [plan], {told}"
        return f"unknown section [{key}]; {nearest(key, sections)}"
    if section[0] in SERVING_FIELDS:
        homes = " or ".join(f"[{home}]" for home in _OF_A_SERVER if key in ALL_FIELDS[home])
        told = f"it belongs to {homes}" if homes else nearest(key, keys(section))
        return f"[{'.'.join(section)}] has an unknown key {_printable(key)!r}; {told}"
    if section == ["sweep", "vary"] and key in FIELDS["plan"]:
        return f"[sweep.vary] does not take {key!r}; write sweep.axes, meshes or placements instead"
    if section == ["search", "vary"] and key in FIELDS["plan"]:
        return f"[search.vary] does not take {key!r}; write search.axes or search.meshes instead"
    own, told = keys(section), foreign_advice(key, keys(section))
    if section[-1] == "vary" and (key in SECTIONS or (not told and _exact_homes(key))):
        return f"[{'.'.join(section)}] varies keys of [plan], and {key!r} is none; {_BESIDES}"
    if not told and (homes := _homes(key) if not close_names(key, own) else _exact_homes(key)):
        told = f"it belongs to {homes}"
    return f"[{'.'.join(section)}] has an unknown key {key!r}; {told or nearest(key, own)}"


def key_path(key: str) -> str:
    """Return the path of a key of a run file, or of what tpusim calls it; empty if none is so."""
    found = [f"{home}.{key}" for home in _OF_A_RUN if key in FIELDS[home]]
    found += [f"{home}.{our_name(key, FIELDS[home])}" for home in reversed(_OF_A_RUN)
              if our_name(key, FIELDS[home])]  # fmt: skip
    return found[0] if found else ""


def _exact_homes(key: str) -> str:
    return " or ".join(f"[{home}]" for home, fields in FIELDS.items() if key in fields)


def _homes(key: str) -> str:
    """Return the sections that have a key, or what tpusim calls it there; empty if none has."""
    named = ((home, our_name(key, FIELDS[home])) for home in _OF_A_RUN)
    other = " or ".join(f"[{home}], as {ours}" for home, ours in named if ours)
    return _exact_homes(key) or other


def _missing(path: list[str]) -> str:
    if len(path) == 1:
        return f"the section [{path[0]}] is missing; write {wanted(path)}"
    return f"{_joined(path)} is missing; write {wanted(path)}"
