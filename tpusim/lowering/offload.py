"""Offload of saved tensors: to the host in the forward pass, back one layer ahead.

A layer's copy leaves when its last reader of the forward pass is done, beside the layers after it;
a layer that begins waits for the copies of the layer before the last, so two of each are in HBM at
most. The backward pass fetches the next layer's copies while it runs a layer: the first layer's are
waited for, and the last layer has none to fetch, so it stands after the loop.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tpusim.lowering.body_entries import Entry, HostCopy, on_core
from tpusim.partition import LoopNode
from tpusim.program import Dep, Loop, Op, Transfer, TransferKind

LAYERS_UNDER_WAY = 2
"""Layers whose copies are in HBM at a time: the one that is computed and the one that moves."""

NO_LOOP = 2
"""Iterations of a backward pass of which no loop is left, as the first or last stands apart."""

LAST = " (last)"
FIRST = " (first)"


def leaving_copy(key: str) -> str:
    """Return the name of the copy to the host that is in flight as the buffer is overwritten."""
    return f"{key} (to host)"


def host_copies(loop_node: LoopNode, offload: Collection[str]) -> list[HostCopy]:
    """Return the copies of an iteration: to the host in a forward loop, back in a backward one."""
    away = zip(loop_node.scan.saves, loop_node.saves, strict=True)
    back = zip(loop_node.scan.loads, loop_node.loads, strict=True)
    return [
        HostCopy(kind, key, tensor.name, loop_node.scan.phase)
        for kind, pairs in ((TransferKind.TO_HOST, away), (TransferKind.FROM_HOST, back))
        for tensor, key in pairs
        if tensor.short in offload
    ]


def with_host_copies(entries: Sequence[Entry], copies: Sequence[HostCopy]) -> list[Entry]:
    """Return the entries of a body with its copies.

    A copy to the host starts after the last reader. A copy from the host, for the next iteration,
    starts before the first reader in this one: an iteration ahead, in the order of the readers.
    """
    starts: dict[int, list[HostCopy]] = {}
    for copy in copies:
        found = _places(entries, copy.key) or [0]
        leaves = copy.kind is TransferKind.TO_HOST
        starts.setdefault(max(found) + 1 if leaves else min(found), []).append(copy)
    result: list[Entry] = []
    for place, entry in enumerate(entries):
        result.extend((*starts.get(place, ()), entry))
    return [*result, *starts.get(len(entries), ())]


def _places(entries: Sequence[Entry], key: str) -> list[int]:
    return [place for place, e in enumerate(entries) if key in e.reads or key in e.writes]


def copy_order(entries: Sequence[Entry]) -> dict[int, tuple[Dep, ...]]:
    """Return the dependencies of entries, by place, besides their operands.

    A copy waits for the one before it, as one queue serves each direction of PCIe. The first
    operation of the core waits for what left in the layer before the last.
    """
    copies = [(place, e) for place, e in enumerate(entries) if isinstance(e, HostCopy)]
    found: dict[int, tuple[Dep, ...]] = {}
    for at, (place, copy) in enumerate(copies):
        before = copies[at - 1][1].name
        found[place] = (Dep(before),) if at else (Dep(before, 1), *_after_first(copy, before))
    leaving = [copy.name for _, copy in copies if copy.kind is TransferKind.TO_HOST]
    first = next((place for place, entry in enumerate(entries) if on_core(entry)), None)
    if first is not None:
        found[first] = tuple(Dep(name, LAYERS_UNDER_WAY) for name in leaving)
    return found


def _after_first(copy: HostCopy, before: str) -> tuple[Dep, ...]:
    return (Dep(before + FIRST),) if copy.kind is TransferKind.FROM_HOST else ()


def arrivals(entries: Sequence[Entry]) -> dict[str, tuple[Dep, ...]]:
    """Return, for each buffer from the host, the copies that its readers depend on."""
    return {
        entry.key: (Dep(entry.name + FIRST), Dep(entry.name, 1))
        for entry in entries
        if isinstance(entry, HostCopy) and entry.kind is TransferKind.FROM_HOST
    }


def fetched_ahead(loop: Loop, waiting: Collection[str]) -> tuple[Op, ...]:
    """Return a loop that prefetches: the first fetch, all iterations but one, and the last.

    Of two iterations no loop is left, so that the rings for gradients run after both, as where
    layers are not scanned: 5 of 5 programs on v4, v5e, v5p and v6e, and none of 5 of three layers
    or more (libtpu 0.0.42.1).

    waiting: matmuls of these rings.
    """
    fetches = [op for op in loop.body if isinstance(op, Transfer)]
    if not fetches:
        return (loop,)
    first = tuple(_first(op, before) for op, before in zip(fetches, (None, *fetches), strict=False))
    many = loop.trips > 1
    inside = frozenset(names(loop.body))
    rings = [
        op for op in loop.body if loop.trips == NO_LOOP and op.name.rpartition("/")[0] in waiting
    ]
    body = tuple(op for op in loop.body if op not in rings)
    late = (Loop(name=f"{loop.name}/gradients", trips=1, body=tuple(rings)),) if rings else ()
    last = [_last(op, inside, many) for op in (*body, *rings) if op not in fetches]
    there = len(last) - len(rings)
    before = (replace(loop, trips=loop.trips - 1, body=body),) if many else ()
    return (*first, *before, *last[:there], *late, *last[there:])


def _first(fetch: Transfer, before: Transfer | None) -> Transfer:
    """Return the fetch for the first iteration, after its copy has left."""
    left = Dep(f"{TransferKind.TO_HOST}/{fetch.scope}")
    queue = (Dep(before.name + FIRST),) if before else ()
    return replace(fetch, name=fetch.name + FIRST, deps=(left, *queue))


def names(body: Sequence[Op]) -> list[str]:
    """Return the names of all operations, within loops too."""
    inner = [name for op in body if isinstance(op, Loop) for name in names(op.body)]
    return [op.name for op in body] + inner


def _last(op: Op, inside: Collection[str], many: bool, own: Collection[str] = ()) -> Op:
    """Return an operation of the last iteration, of `many` or the only one."""
    name = op.name + LAST
    if isinstance(op, Loop):
        ring = frozenset(names(op.body))
        return replace(op, name=name, body=tuple(_last(o, inside, many, ring) for o in op.body))
    waits = (_wait_of_last(dep, inside, many, own) for dep in op.deps)
    return replace(op, name=name, deps=tuple(dep for dep in waits if dep is not None))


def _wait_of_last(
    dep: Dep, inside: Collection[str], many: bool, own: Collection[str]
) -> Dep | None:
    """Return the dependencies of the last iteration on the loop's iteration before."""
    if dep.op in own or (dep.op in inside and not dep.distance):
        return Dep(dep.op + LAST, dep.distance)
    if dep.op in inside:
        return Dep(dep.op) if many else None
    return dep
