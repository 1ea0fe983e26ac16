"""Merging of all-reduces of activations that follow each other."""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.decisions import Body, is_at_most
from tpusim.partition import Purpose
from tpusim.program import CollectiveKind

LARGEST_MERGED = 16 * 2.0**20
"""Bytes below which all-reduces that follow each other are merged (480B encoder: K and V, 2 x 2
MiB)."""


def merge_all_reduces(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Merge each small all-reduce into the next one over its axes, if nothing reads it before."""
    mergeable = small_all_reduces(body)
    result = list(entries)
    place = 0
    while place < len(result):
        entry = result[place]
        if isinstance(entry, PlannedCollective) and entry.collectives[0].name in mergeable:
            partner = _partner(result, place, mergeable)
            if partner:
                other = result[partner]
                assert isinstance(other, PlannedCollective)
                result[partner] = replace(
                    other, collectives=(*entry.collectives, *other.collectives)
                )
                del result[place]
                continue
        place += 1
    return result


def _partner(entries: Sequence[Entry], place: int, mergeable: frozenset[str]) -> int | None:
    """Return the place of the next mergeable all-reduce, unless this one is read before."""
    first = entries[place]
    assert isinstance(first, PlannedCollective)
    for index in range(place + 1, len(entries)):
        entry = entries[index]
        if set(entry.reads) & set(first.writes):
            return None
        if isinstance(entry, PlannedCollective) and entry.collectives[-1].name in mergeable:
            return index if entry.collectives[0].over == first.collectives[0].over else None
    return None


def small_all_reduces(body: Body) -> frozenset[str]:
    """Return the names of all-reduces of activations to merge with the one that follows."""
    return frozenset(
        collective.name
        for collective in body.collectives
        if collective.purpose is Purpose.ACTIVATION
        and collective.kind is CollectiveKind.ALL_REDUCE
        and body.ask(is_at_most, collective, LARGEST_MERGED)
    )
