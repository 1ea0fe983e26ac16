"""The heap of a scheduled module: its temporaries as `program.packed_bytes` places them.

Tables of tuples have places of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpusim.compiler.hlo.attributes import callees
from tpusim.compiler.hlo.module import Computation, HloModule
from tpusim.compiler.hlo.shapes import Shape, Shapes
from tpusim.compiler.to_program.buffers import CALLING_OPCODES, RENAMING_OPCODES
from tpusim.compiler.to_program.memory_profile import TEMPORARIES, BufferChange
from tpusim.program import HeapBuffer, packed_bytes

TUPLE_TABLE = 16 * 1024
"""Bytes that the table of a tuple takes: offsets of tables are multiples of it."""

_PASSED_ON = RENAMING_OPCODES - {"tuple"} | {*CALLING_OPCODES, "parameter"}
"""Opcodes whose results are tuples that another instruction made."""


def heap_bytes(module: HloModule, changes: Mapping[str, BufferChange]) -> int:
    """Return the bytes of a scheduled module's heap: temporaries, and tables of tuples.

    changes: what instructions allocate and free (`buffer_changes`). Outputs with memory of their
        own, which the compiler sets apart, are not in the heap.
    """
    walk = _HeapWalk(module, changes)
    walk.enter(module.main, in_loop=False)
    return packed_bytes(walk.buffers) + walk.tables * TUPLE_TABLE


def output_bytes(changes: Mapping[str, BufferChange]) -> float:
    """Return the bytes of outputs with memory of their own."""
    allocs = (alloc for change in changes.values() for alloc in change.allocs)
    return sum(float(alloc.bytes) for alloc in allocs if alloc.category != TEMPORARIES)


@dataclass(slots=True)
class _HeapWalk:
    """Computations in the order of the schedule; one that several call is entered once."""

    module: HloModule
    changes: Mapping[str, BufferChange]
    buffers: list[HeapBuffer] = field(default_factory=list)
    tables: int = 0
    _now: int = 0
    _entered: set[str] = field(default_factory=set)

    def enter(self, computation: Computation, in_loop: bool) -> None:
        """Find the buffers and the tables of a computation, and of those that it calls."""
        self._entered.add(computation.name)
        alive: dict[str, tuple[int, float]] = {}
        for instruction in computation.instructions:
            self._now += 1
            change = self.changes.get(instruction.name, BufferChange())
            for alloc in change.allocs:
                if alloc.category == TEMPORARIES:
                    alive[alloc.tensor] = self._now, float(alloc.bytes)
            for name in callees(instruction) if instruction.opcode in CALLING_OPCODES else ():
                if name not in self._entered:
                    loop = instruction.opcode == "while"
                    self.enter(self.module.computations[name], loop)
            for tensor in change.frees:
                if tensor in alive:
                    start, nbytes = alive.pop(tensor)
                    self.buffers.append(HeapBuffer(start, self._now, nbytes))
            carried = in_loop and instruction.name == computation.root
            if instruction.opcode not in _PASSED_ON and not carried:
                self.tables += _tuples(instruction.shape)


def _tuples(shape: Shapes) -> int:
    """Return the number of tuples in a shape, with those inside of others."""
    return 0 if isinstance(shape, Shape) else 1 + sum(map(_tuples, shape))
