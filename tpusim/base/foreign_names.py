"""Names that other libraries have for what tpusim has another name for."""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from tpusim.base.shipped_table import shipped_table

_ADVICE = "advice"
_AXES, _MESH = "axes", "mesh"


@cache
def _tables() -> Mapping[str, Any]:
    return shipped_table("base", "foreign_names.toml")


@cache
def our_names(part: str = "") -> Mapping[str, str]:
    """Return the name that tpusim has for each of other libraries' names.

    part: of the table, such as `chips` or `axes`; all of them by default.
    """
    parts = [part] if part else [name for name in _tables() if name != _ADVICE]
    found: dict[str, str] = {}
    for each in parts:
        for ours, names in _tables()[each].items():
            found |= dict.fromkeys(map(_spelt, names), ours)
    return found


def our_name(name: str, valid: Collection[str]) -> str | None:
    """Return the name that tpusim has for what another library calls `name`, if it is valid."""
    asked = _spelt(name)
    found = (our_names(part).get(asked) for part in _tables() if part != _ADVICE)
    return next((ours for ours in found if ours in valid), None)


def foreign_advice(name: str, valid: Collection[str]) -> str:
    """Return a clause that says what tpusim has for another library's name; empty if unknown.

    valid: the names that may be written here, which tell what the name is of.

    >>> foreign_advice("tp", ["tensor"]), foreign_advice("tp", ["mesh", "rules"])
    ("tpusim calls it 'tensor'", 'write it as an axis of the mesh, such as mesh = { tensor = 4 }')
    """
    if (ours := our_name(name, valid)) is not None:
        return f"tpusim calls it {ours!r}"
    asked = _spelt(name)
    for beside, told in _tables()[_ADVICE].items():
        if beside in valid and asked in told:
            return str(told[asked])
    axes = our_names(_AXES)
    if _MESH in valid and (axis := axes.get(asked, asked if asked in _tables()[_AXES] else "")):
        return f"write it as an axis of the mesh, such as mesh = {{ {axis} = 4 }}"
    return ""


def _spelt(name: str) -> str:
    """Return a name as the table spells it: lower case, with underscores."""
    return name.strip().lstrip("-").lower().replace("-", "_").replace(" ", "_")
