"""HLO modules for tests, from lines that look like HLO: jaxlib is not needed."""

import re

from compiler_parts import Computation, HloModule, Instruction

_LINE = re.compile(r"(\*?)\s*(\S+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)(.*)")


def module(text: str) -> HloModule:
    """The module of blocks such as

        main
        a = f32[8]{0} parameter(0)
        * b = f32[8]{0} negate(a)

    The star marks the root, and the last block is the entry.
    """
    made = [_computation(block.strip().splitlines()) for block in text.strip().split("\n\n")]
    return HloModule(
        name="test", computations={c.name: c for c in made}, entry=made[-1].name,
        scheduled=True, devices=1,
    )  # fmt: skip


def _computation(lines: list[str]) -> Computation:
    made, root = [], ""
    for line in lines[1:]:
        found = _LINE.match(line.strip())
        assert found, line
        star, name, shape, opcode, inside, rest = found.groups()
        plain = opcode in ("parameter", "constant")
        operands = () if plain else tuple(part.strip() for part in inside.split(",") if part)
        made.append(Instruction(name, opcode, shape, operands, rest, inside if plain else ""))
        root = name if star else root
    return Computation(lines[0].strip(), tuple(made), root or made[-1].name)
