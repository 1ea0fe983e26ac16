"""How often a `while` of a traced function runs, where its counter says so."""

from collections.abc import Mapping
from typing import Any

from tpusim.xla.trips import length

_DIRECTIONS = {"lt": "LT", "le": "LE", "gt": "GT", "ge": "GE", "ne": "NE"}
_SIGNS = {"add": 1, "sub": -1}


def while_trips(eqn: Any) -> int:
    """Trips of a `while` that counts from a number to a number in equal steps; else 1.

    The same loops are read in the compiled program (`tpusim.xla.trips`).
    """
    params = eqn.params
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    carried = condition.invars[params["cond_nconsts"] :]
    compared = _made(condition, condition.outvars[0], _DIRECTIONS)
    if compared is None or compared.invars[0] not in carried:
        return 1
    place, bound = carried.index(compared.invars[0]), _number(compared.invars[1])
    stepped = _made(body, body.outvars[place], _SIGNS)
    own = body.invars[params["body_nconsts"] :][place]
    if stepped is None or stepped.invars[0] is not own:
        return 1
    start = _number(eqn.invars[params["cond_nconsts"] + params["body_nconsts"] + place])
    step = _number(stepped.invars[1])
    if start is None or bound is None or step is None:
        return 1
    direction = _DIRECTIONS[compared.primitive.name]
    found = length(start, bound, _SIGNS[stepped.primitive.name] * step, direction)
    return 1 if found is None else found


def _made(jaxpr: Any, variable: Any, by: Mapping[str, Any]) -> Any:
    """The equation that makes a variable, if it is one of these primitives."""
    found = next((eqn for eqn in jaxpr.eqns if variable in eqn.outvars), None)
    return found if found is not None and found.primitive.name in by else None


def _number(variable: Any) -> int | None:
    """The number that a literal is."""
    value = getattr(variable, "val", None)
    if value is None or variable.aval.shape or "int" not in str(variable.aval.dtype):
        return None
    return int(value)
