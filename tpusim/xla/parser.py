"""The child process that reads HLO with jaxlib's own parser, and prints plain data as JSON.

jaxlib checks its input in C++, and some malformed HLO aborts the whole process: so it runs apart.
All that is private in jaxlib is in this file. It imports nothing of tpusim.

    python -m tpusim.xla.parser < module.hlo > module.json
"""

import json
import re
import sys
from typing import Any

_ROOT = re.compile(r"^ *ROOT %?(\S+) =", re.MULTILINE)
_HEAD = re.compile(r"^(?:ROOT )?%?(\S+) = ")


def parsed(data: bytes) -> dict[str, Any]:
    """The module of HLO text, or of a serialised HloModuleProto."""
    from jaxlib import xla_client

    hlo = xla_client.hlo
    if _is_text(data):
        module = hlo.hlo_module_from_text(data.decode("utf-8", "replace"))
    else:
        module = hlo.HloModule.from_serialized_hlo_module_proto(data)
        module = hlo.hlo_module_from_text(module.to_string())
    text = module.to_string()
    head, _, rest = text.partition("\n")
    body = re.search(r"^(?:%|ENTRY)", rest, re.MULTILINE)
    entry = re.search(r"^ENTRY %?(\S+)", rest, re.MULTILINE)
    roots = set(_ROOT.findall(rest))
    return {
        "name": module.name,
        "head": head,
        "frames": rest[: body.start()] if body else "",
        "entry": entry[1] if entry else "",
        "computations": [_computation(computation, roots) for computation in module.computations()],
    }


def _is_text(data: bytes) -> bool:
    return data.lstrip()[:9] == b"HloModule" or b"\nHloModule" in data[:1_000_000]


def _computation(computation: Any, roots: set[str]) -> list[Any]:
    """Name, instructions, and the name of the root, which only the module's text marks."""
    made = [_instruction(instruction) for instruction in computation.instructions()]
    root = next((name for name, _, _ in made if name in roots), made[-1][0])
    return [computation.name, made, root]


def _instruction(instruction: Any) -> list[Any]:
    """Name, operands, and all of its text after `name = `."""
    text = instruction.to_string()
    return [instruction.name, [o.name for o in instruction.operands()], _HEAD.sub("", text, 1)]


if __name__ == "__main__":
    json.dump(parsed(sys.stdin.buffer.read()), sys.stdout)
