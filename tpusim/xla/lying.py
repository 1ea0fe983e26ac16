"""How much of what a collective reads and makes lies in HBM, and not in VMEM or CMEM.

The compiler places arrays where they enter and leave operations of the core. So within a fusion
only parameters have a place; what the collective makes has one as it leaves the fusion.
"""

from collections.abc import Iterable

from tpusim.xla.module import Computation, Instruction
from tpusim.xla.shapes import HBM, Shape


def shares_in_hbm(
    where: Computation, collectives: Iterable[Instruction], made: Iterable[Shape]
) -> tuple[float, float]:
    """The shares of the bytes of their operands, and of what is made of them."""
    operands = [name for each in collectives for name in each.operands]
    return _share(shape for name in operands for shape in _source(where, name)), _share(made)


def leaving(made: tuple[Shape, ...], fusion: Instruction | None) -> tuple[Shape, ...]:
    """What a collective makes, as it leaves the fusion, if it is a part of one."""
    if fusion is None:
        return made
    sizes = {(shape.dtype, shape.elements) for shape in made}
    return tuple(out for out in fusion.arrays if (out.dtype, out.elements) in sizes)


def _source(where: Computation, name: str) -> tuple[Shape, ...]:
    while name in where and where[name].opcode == "bitcast" and where[name].operands:
        name = where[name].operands[0]
    return where[name].arrays if name in where else ()


def _share(shapes: Iterable[Shape]) -> float:
    """All of it where there are no bytes."""
    inside = whole = 0.0
    for shape in shapes:
        whole += shape.bytes
        inside += shape.bytes if shape.space == HBM else 0.0
    return inside / whole if whole else 1.0
