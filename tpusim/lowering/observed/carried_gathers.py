"""Gathers of activations that run beside matmuls, and the matmuls that wait to carry them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Attention, Einsum
from tpusim.lowering.body_entries import (
    CollectiveMatmul,
    Entry,
    PlannedCollective,
    with_readers,
)
from tpusim.lowering.collective_choice import is_for_backward
from tpusim.lowering.decisions import Body, is_unrolled
from tpusim.partition import ComputeNode, is_across
from tpusim.program import Mode


def carry_gathers(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Gather the activations of a backward pass beside matmuls, one after the other.

    Matmuls for gradients of weights carry them, and wait for that: up to the next matmul of another
    kind that reads a gather, or to the end. Working backwards from the last, a gather starts before
    the matmuls that precede its reader, and the start of the gather after it, down to where the
    core waits for another collective or a kernel. What is gathered ahead is held until it is read.
    Over several slices two programs do so and two do not.
    """
    if not any(map(_is_gather, entries)) or not carries_gathers(body):
        return list(entries)
    ordered = _gradients_later(entries, body) if body.looped else entries
    return _started_ahead(ordered, body)


def carries_gathers(body: Body) -> bool:
    """Return True if matmuls carry gathers of activations: plain programs for a slice of v5e."""
    alone = not any(is_across(collective.axes) for collective in body.collectives)
    return alone and any(low.carries for low in body.lowerings)


def _is_gather(entry: Entry) -> TypeGuard[PlannedCollective]:
    if not isinstance(entry, PlannedCollective) or entry.mode is not Mode.SYNC:
        return False
    return is_for_backward(entry.collectives[0])


def _gradients_later(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Move matmuls for gradients of weights, and what reads their results, as far as they wait."""
    gathered = {key for entry in entries if _is_gather(entry) for key in entry.writes}
    free = {place for place, entry in enumerate(entries) if _is_for_weight(entry, body)}
    kept, _ = with_readers(entries, free)
    result: list[Entry] = []
    waiting: list[Entry] = []
    for entry in entries:
        if entry not in kept:
            waiting.append(entry)
            continue
        if is_matmul(entry) and not gathered.isdisjoint(entry.reads):
            result += waiting
            waiting = []
        result.append(entry)
    return [*result, *waiting]


def _is_for_weight(entry: Entry, body: Body) -> bool:
    """Return True for a matmul for the gradient of a weight that is no loop."""
    compute = _compute_of(entry)
    if compute is None or compute.phase is not Phase.BACKWARD:
        return False
    if not isinstance(compute.op, Einsum) or compute.op.outputs[0].primal not in body.weights:
        return False
    ring = entry.collective.axes if isinstance(entry, CollectiveMatmul) else ()
    return body.ask(is_unrolled, ring)


def _started_ahead(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Start each gather ahead of its reader; one that no matmul would carry stays as it is."""
    gathers = [entry for entry in entries if _is_gather(entry) and _is_read(entry, entries)]
    others = [entry for entry in entries if entry not in gathers]
    readers = {gather.name: _first_reader(gather, others) for gather in gathers}
    gathers.sort(key=lambda gather: readers[gather.name])
    waits = {i for i, entry in enumerate(others) if _waits(entry)}
    waits |= {i for i in readers.values() if not _is_for_weight(others[i], body)}
    starts: dict[int, list[Entry]] = {}
    end = len(others)
    for place, gather in reversed(list(enumerate(gathers))):
        end = min(end, readers[gather.name])
        start = _start(gathers[: place + 1], others, end, waits)
        if start < end:
            gather = replace(gather, mode=Mode.ASYNC, carried=True)
        starts.setdefault(start, []).insert(0, gather)
        end = start
    return [each for i, entry in enumerate(others) for each in (*starts.get(i, ()), entry)]


def _is_read(gather: PlannedCollective, entries: Sequence[Entry]) -> bool:
    return any(not set(gather.writes).isdisjoint(entry.reads) for entry in entries)


def _first_reader(gather: PlannedCollective, entries: Sequence[Entry]) -> int:
    """Return the place of the first reader of a gather; that of the last entry if there is none."""
    places = (i for i, e in enumerate(entries) if not set(gather.writes).isdisjoint(e.reads))
    return next(places, len(entries) - 1)


def _start(
    gathers: Sequence[PlannedCollective],
    entries: Sequence[Entry],
    end: int,
    waits: Collection[int],
) -> int:
    """Return the place of the first of the matmuls that carry a gather; `end` if none does.

    gathers: that one, after those that start before it and so need their operands before it.
    """
    start, operands = end, {key for gather in gathers for key in gather.reads}
    for place in reversed(range(end)):
        if not operands.isdisjoint(entries[place].writes):
            break
        if is_matmul(entries[place]):
            start = place
        if place in waits and start < end:
            break
    return start


def _waits(entry: Entry) -> bool:
    """Return True where the core waits for a collective, or for an attention kernel."""
    if isinstance(entry, PlannedCollective):
        return entry.mode is Mode.SYNC
    return isinstance(entry, ComputeNode) and isinstance(entry.op, Attention)


def is_matmul(entry: Entry) -> bool:
    """Return True for a matmul, with or without its collective."""
    compute = _compute_of(entry)
    return compute is not None and isinstance(compute.op, Einsum)


def _compute_of(entry: Entry) -> ComputeNode | None:
    compute = entry.compute if isinstance(entry, CollectiveMatmul) else entry
    return compute if isinstance(compute, ComputeNode) else None
