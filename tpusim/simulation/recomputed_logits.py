"""Logits that a step which does not fit computes again for the gradient of its head.

Where the head's gradient waits for the layers, the logits are held through their backward pass. A
program that would need more than there is multiplies for them again after the layers (4 of 4 with
heads that are no rings, on v4 over two slices, v6e over two slices and v6e beside copies to the
host, three of which fit so; none of 3 of the same that need up to 0.95 of what is usable; libtpu
0.0.42.1). Plans do so where it can make them fit, and need a little too much where it cannot: the
verdict is the same, and the second simulation is spared.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.program import (
    Collective,
    Compute,
    Dep,
    Flops,
    Loop,
    Number,
    Program,
    TopOp,
    first_phase,
)

_AGAIN = " (again)"
_BACKWARD = (Phase.RECOMPUTE, Phase.BACKWARD)


class _Held(NamedTuple):
    """A result that is held over a loop: places of its matmul, the loop, and its last reader."""

    made: int
    loop: int
    read: int
    tensor: str
    bytes: Number


def with_logits_again(program: Program, wanted: float) -> Program | None:
    """Return a program that computes the logits again after the layers.

    wanted: bytes that this has to free.

    None if no logits, or fewer bytes of them, are held.
    """
    held = _held_logits(program.body)
    if held is None or held.bytes < wanted:
        return None
    body = list(program.body)
    before = max(
        i for i, op in enumerate(body[: held.loop]) if isinstance(op, Compute) and op.frees
    )
    matmul, last, reader = (body[place] for place in (held.made, before, held.read))
    assert isinstance(matmul, Compute)
    assert isinstance(last, Compute)
    assert isinstance(reader, Compute)
    waits = {dep.op for dep in matmul.deps}
    gathers = [op for op in body[: held.made] if isinstance(op, Collective) and op.name in waits]
    copies = tuple(alloc.tensor for op in gathers for alloc in op.allocs)
    again = replace(
        matmul,
        name=matmul.name + _AGAIN,
        phase=Phase.RECOMPUTE,
        flops=Flops(recompute=matmul.flops.total),
        deps=tuple(Dep(op.name + _AGAIN) for op in gathers),
        frees=copies,
    )
    moved = [
        replace(op, name=op.name + _AGAIN, phase=Phase.RECOMPUTE, deps=(), frees=())
        for op in gathers
    ]
    body[before] = replace(last, frees=(*last.frees, held.tensor))
    body[held.read] = replace(reader, deps=(*reader.deps, Dep(again.name)))
    body[held.read : held.read] = [*moved, again]
    return replace(program, body=tuple(body))


def _held_logits(body: Sequence[TopOp]) -> _Held | None:
    """Return the result of a matmul before the layers' backward pass that one after it frees.

    What is no larger than what that one makes is worth no second gather of the weights.
    """
    loop = max((i for i, op in enumerate(body) if _runs_backward(op)), default=0)
    made = {
        alloc.tensor: (place, alloc.bytes)
        for place, op in enumerate(body[:loop])
        if isinstance(op, Compute) and op.flops.model
        for alloc in op.allocs
    }
    for place, op in enumerate(body[loop:], loop):
        if isinstance(op, Compute) and op.flops.model:
            gradient = sum(alloc.bytes for alloc in op.allocs)
            for tensor in made.keys() & {*op.frees}:
                matmul, nbytes = made[tensor]
                if nbytes > gradient:
                    return _Held(matmul, loop, place, tensor, nbytes)
    return None


def _runs_backward(op: TopOp) -> bool:
    return isinstance(op, Loop) and not op.name.endswith("/ring") and first_phase(op) in _BACKWARD
