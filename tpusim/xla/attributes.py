"""What an instruction says beyond its operands, read from its text when somebody asks."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tpusim.xla.module import Instruction

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
    """The name that the program's own code gave it, or nothing."""
    found = _OP_NAME.search(instruction.attributes)
    return _ESCAPED.sub(r"\1", found[1]) if found else ""


def frame_number(instruction: Instruction) -> int:
    """The number of its stack in the module's frames; 0 where it has none."""
    found = _FRAME.search(instruction.attributes)
    return int(found[1]) if found else 0


def source(instruction: Instruction) -> tuple[str, int] | None:
    """File and line, where an older compiler wrote them beside the name."""
    found = _SOURCE.search(instruction.attributes)
    return (found[1], int(found[2] or 0)) if found else None


def called(instruction: Instruction, which: str = "") -> tuple[str, ...]:
    """Names of the computations that it calls; which: only those of this attribute (`body`)."""
    names: list[str] = []
    for kind, single, several in _CALLED.findall(_QUOTED.sub("", instruction.attributes)):
        if which in ("", kind):
            names += [single] if single else [n.strip().lstrip("%") for n in several.split(",")]
    return tuple(names)


def estimated_cycles(instruction: Instruction) -> int | None:
    """The compiler's own estimate, if it made one."""
    found = _CYCLES.search(instruction.attributes)
    return int(found[1]) if found else None


def target(instruction: Instruction) -> str:
    """What a custom call calls, or nothing."""
    found = _TARGET.search(instruction.attributes)
    return found[1] if found else ""


def word(instruction: Instruction, key: str) -> str:
    """The value of a plain attribute such as `direction=LT`, or nothing."""
    found = re.search(rf"(?:^|[ ,]){key}=([\w.\-]+)", instruction.attributes)
    return found[1] if found else ""


def backend_config(instruction: Instruction) -> Mapping[str, Any]:
    """What the compiler's backend notes on it; empty where it is no JSON object."""
    at = instruction.attributes.find("backend_config=")
    return _object(instruction.attributes[at + 15 :]) if at >= 0 else {}


def kernel_config(instruction: Instruction) -> Mapping[str, Any]:
    """What a kernel says of itself: its body, and maybe its author's estimate."""
    found = backend_config(instruction).get("custom_call_config", {})
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=4096)
def _object(text: str) -> Mapping[str, Any]:
    try:
        found, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (json.JSONDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
