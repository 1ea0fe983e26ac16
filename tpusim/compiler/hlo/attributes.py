"""Attributes of an HLO instruction, parsed from its text on demand."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tpusim.compiler.hlo.module import Computation, HloModule, Instruction

_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(['\"\\])")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_CALLED = re.compile(
    r"\b(calls|to_apply|body|condition|branch_computations|true_computation|false_computation|"
    r"called_computations)=(?:%?([\w.\-]+)|\{([^}]*)\})"
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


def op_name(instruction: Instruction) -> str:
    """Return the name that the program's own code gave the instruction, or an empty string."""
    found = _OP_NAME.search(instruction.attributes)
    return _ESCAPED.sub(r"\1", found[1]) if found else ""


def frame_number(instruction: Instruction) -> int:
    """Return the number of the instruction's stack in the module's tables; 0 if it has none."""
    found = _FRAME.search(instruction.attributes)
    return int(found[1]) if found else 0


def source_line(instruction: Instruction) -> tuple[str, int] | None:
    """Return file and line, where an older compiler wrote them beside the name."""
    found = _SOURCE.search(instruction.attributes)
    return (found[1], int(found[2] or 0)) if found else None


def callees(instruction: Instruction, which: str = "") -> tuple[str, ...]:
    """Return the names of the computations that the instruction calls.

    which: an attribute, such as `body`, to which the names are limited.
    """
    names: list[str] = []
    for kind, single, several in _CALLED.findall(_QUOTED.sub("", instruction.attributes)):
        if which in ("", kind):
            names += [single] if single else [n.strip().lstrip("%") for n in several.split(",")]
    return tuple(names)


def called_computations(
    module: HloModule, instruction: Instruction, which: str = ""
) -> tuple[Computation, ...]:
    """Return the computations of the module that the instruction calls; which: as in `callees`."""
    names = callees(instruction, which)
    return tuple(module.computations[name] for name in names if name in module.computations)


def estimated_cycles(instruction: Instruction) -> int | None:
    """Return the compiler's own estimate, if it made one."""
    found = _CYCLES.search(instruction.attributes)
    return int(found[1]) if found else None


def call_target(instruction: Instruction) -> str:
    """Return the target of a custom call, or an empty string."""
    found = _TARGET.search(instruction.attributes)
    return found[1] if found else ""


def plain_attribute(instruction: Instruction, key: str) -> str:
    """Return the value of an attribute such as `direction=LT`, or an empty string."""
    found = re.search(rf"(?:^|[ ,]){key}=([\w.\-]+)", instruction.attributes)
    return found[1] if found else ""


def backend_config(instruction: Instruction) -> Mapping[str, Any]:
    """Return the JSON object of the compiler's backend; empty if there is none."""
    at = instruction.attributes.find("backend_config=")
    return _object(instruction.attributes[at + 15 :]) if at >= 0 else {}


def kernel_config(instruction: Instruction) -> Mapping[str, Any]:
    """Return a kernel's own configuration: its body, and possibly its author's estimate."""
    found = backend_config(instruction).get("custom_call_config", {})
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=4096)
def _object(text: str) -> Mapping[str, Any]:
    try:
        found, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (json.JSONDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
