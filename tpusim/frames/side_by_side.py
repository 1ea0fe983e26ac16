"""Microbatches side by side: no iteration is left of a loop over two that crosses slices.

The compiler takes the first iteration out of loops that cross slices. Of a loop over two
microbatches none is left, and the backward pass of each begins with its first layer before its own
loop. Up to there both are in one schedule, which runs each operation for both before the next one,
so that HBM holds the buffers of both: 16 of 16 programs on v4, v5e, v5p and v6e (libtpu 0.0.42.1).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeGuard

from tpusim.base.phase import Phase
from tpusim.lowering import LAST, names
from tpusim.program import Collective, Compute, Dep, Loop, Op, Transfer, first_phase

_FIRST = " (first)"
_RING = "/ring"
_GATHERED = "gathered weights"


class Unrolled(NamedTuple):
    """The body of a microbatch of which two are unrolled.

    forward: up to the end of the forward pass through the layers.
    beside: what each runs beside the other.
    rest: what follows, one microbatch after the other.
    """

    forward: tuple[Op, ...]
    beside: tuple[Op, ...]
    rest: tuple[Op, ...]


def unrolled(body: Sequence[Op]) -> Unrolled:
    """Return the parts of a microbatch's body, with the first layer of its backward pass apart.

    What that layer computes again needs nothing of the loss, and comes before the head. Of a loop
    over one layer that fetches from the host that layer alone is left, and is not apart.
    """
    loops = [i for i, op in enumerate(body) if isinstance(op, Loop) and not _is_ring(op)]
    forward = 1 + max((i for i in loops if first_phase(body[i]) is Phase.FORWARD), default=-1)
    after = range(forward, len(body))
    back = next((i for i in after if i in loops or body[i].name.endswith(LAST)), forward)
    loop, rest = body[back], tuple(body[back:])
    first: list[Op] = []
    if isinstance(loop, Loop) and loop.trips > 1 and not _fetches(loop):
        inside = frozenset(names(loop.body))
        first = [_of_first(op, inside) for op in loop.body]
        rest = (replace(loop, trips=loop.trips - 1), *rest[1:])
    early = next((i for i, op in enumerate(first) if not _is_early(op)), len(first))
    beside = (*first[:early], *body[forward:back], *first[early:])
    return Unrolled(tuple(body[:forward]), beside, rest)


def side_by_side(ops: Sequence[Op], times: int, loop: str) -> list[Op]:
    """Return operations each of which runs for all microbatches before the next one.

    A weight that both gather is the same, and is held once.

    loop: what the names of their loops begin with.
    """
    gathered = {op.allocs[0].tensor for op in ops if _gathers_weight(op)}
    shared = gathered.intersection(tensor for op in ops for tensor in _frees(op))
    return [_for_all(op, times, f"{loop}/{op.name}", shared) for op in ops]


def _frees(op: Op) -> tuple[str, ...]:
    return op.frees if isinstance(op, Compute | Collective | Transfer | Loop) else ()


def _for_all(op: Op, times: int, name: str, shared: Collection[str]) -> Loop:
    if not isinstance(op, Compute | Collective | Transfer | Loop):
        return Loop(name=name, trips=times, body=(op,))
    once = tuple(alloc for alloc in op.allocs if alloc.tensor in shared)
    freed = tuple(tensor for tensor in op.frees if tensor in shared)
    own = replace(
        op,
        allocs=tuple(alloc for alloc in op.allocs if alloc not in once),
        frees=tuple(tensor for tensor in op.frees if tensor not in freed),
    )
    return Loop(name=name, trips=times, body=(own,), allocs=once, frees=freed)


def _fetches(loop: Loop) -> bool:
    """Return True for a loop that fetches from the host: its last iteration stands apart."""
    return any(isinstance(op, Transfer) for op in loop.body)


def _is_ring(loop: Loop) -> bool:
    return loop.name.endswith(_RING)


def _is_early(op: Op) -> bool:
    moves = isinstance(op, Collective) or op.name.startswith("load/")
    return moves or first_phase(op) is Phase.RECOMPUTE


def _gathers_weight(op: Op) -> TypeGuard[Collective]:
    return isinstance(op, Collective) and any(a.category == _GATHERED for a in op.allocs)


def _of_first(op: Op, inside: Collection[str], own: Collection[str] = ()) -> Op:
    """Return an operation of the first iteration, which waits for none before it.

    own: the operations of the ring that it is in, which has iterations of its own.
    """
    name = op.name + _FIRST
    if isinstance(op, Loop):
        ring = frozenset(names(op.body))
        return replace(op, name=name, body=tuple(_of_first(o, inside, ring) for o in op.body))
    waits = (
        Dep(dep.op + _FIRST, dep.distance) if dep.op in inside else dep
        for dep in op.deps
        if dep.op in own or dep.op not in inside or not dep.distance
    )
    return replace(op, name=name, deps=tuple(waits))
