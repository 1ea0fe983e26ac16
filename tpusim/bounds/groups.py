"""The distinct groups of devices among many plans, and what is known of each.

Plans by the thousand have few groups, and the same ones in many of their graphs. What depends on a
group alone is worked out once, on arrays of all groups: for all calls that share a `GroupAnswers`
where groups may have any footprint, and for one call where placements are known.
"""

from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from tpusim.base.divisors import divisors
from tpusim.bounds.footprints import (
    Footprints,
    every_footprint,
    least_seconds,
)
from tpusim.bounds.plan_arrays import Floats, Whole
from tpusim.hardware import Slice
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.collectives_by_generation import possible_lowerings
from tpusim.lowering.device_groups import Places
from tpusim.plan import Compiler
from tpusim.program import CollectiveKind

_Answer = TypeVar("_Answer")


class Reach(Enum):
    """What a group is of: devices of a slice, or also of other slices, or slices alone."""

    WITHIN = "within"
    JOINED = "joined"
    ACROSS = "across"


class GroupTable:
    """Groups of devices, each with a number.

    pod, devices: index of the slice, and number of devices, of each group.
    footprints: those that they can have; a group may have none.
    """

    def __init__(
        self, pod: Whole, devices: Whole, footprints: Footprints, lies: Whole, group: Whole
    ) -> None:
        """lies, group: a footprint, and a group that can have it, whose numbers rise."""
        self.pods, self.pod, self.devices = footprints.pods, pod, devices
        self.footprints, self._lies = footprints, lies
        self._starts = np.flatnonzero(np.diff(group, prepend=-1))
        self._with_footprints = group[self._starts]
        self._known: dict[Hashable, Any] = {}

    def least(self, kind: CollectiveKind, algorithm: str) -> Floats:
        """Return the least seconds of a collective over each group, [`FIXED`..., group].

        They are the least of each number over all footprints that the group can have, so that
        together they are no more than those of any.
        """

        def least() -> Floats:
            found = np.zeros((3, len(self.pod)))
            each = least_seconds(self.footprints, kind, algorithm)[:, self._lies]
            if len(self._starts):
                found[:, self._with_footprints] = np.minimum.reduceat(each, self._starts, axis=1)
            return found

        return self._once((kind, algorithm), least)

    def lowerings(
        self, compiler: Compiler, tiled: tuple[bool, ...], circular: bool, reach: Reach
    ) -> tuple[Sequence[tuple[Lowering, ...]], Whole]:
        """Return the distinct sets of lowerings of groups, and the index of that of each group.

        For the other arguments see `possible_lowerings`.
        """

        def possible(pod: Slice, devices: int, places: Places) -> tuple[Lowering, ...]:
            if reach is Reach.ACROSS:
                places = ((0, pod.topology.chips == 1),)
            counts = divisors(pod.num_slices) if reach is Reach.JOINED else [1]
            given = [(pod, compiler, count * devices, places, tiled, circular) for count in counts]
            return tuple(dict.fromkeys(low for each in given for low in possible_lowerings(*each)))

        def lowerings() -> tuple[Sequence[tuple[Lowering, ...]], Whole]:
            found, index = self._of_kinds(possible)
            sets = list(dict.fromkeys(found))
            return sets, np.array([sets.index(each) for each in found])[index]

        return self._once((compiler, tiled, circular, reach), lowerings)

    def each(self, answer: Callable[[Slice, int], float]) -> Floats:
        """Return `answer(slice, devices)` for each group, of nothing but the kind of slice."""

        def each() -> Floats:
            found, index = self._of_kinds(lambda pod, devices, places: answer(pod, devices))
            return np.array(found)[index]

        return self._once(answer, each)

    def _once(self, question: Hashable, answer: Callable[[], _Answer]) -> _Answer:
        if question not in self._known:
            self._known[question] = answer()
        found: _Answer = self._known[question]
        return found

    def _of_kinds(
        self, answer: Callable[[Slice, int, Places], _Answer]
    ) -> tuple[list[_Answer], Whole]:
        """Return an answer for each kind of groups, and the index of the kind of each group."""
        rows, first, index = self._kinds
        places = [_places(mask) for mask in rows[:, -1].tolist()]
        pods = [self.pods[number] for number in self.pod[first].tolist()]
        devices = np.maximum(rows[:, 1], 1).tolist()
        return list(map(answer, pods, devices, places)), index

    @cached_property
    def _kinds(self) -> tuple[Whole, Whole, Whole]:
        """Groups that differ in nothing that lowerings read: rows, the first of each, and of each.

        The last column has the places of their footprints: a bit for each of `Footprints.places`.
        """
        kinds: dict[Hashable, int] = {}
        own = [kinds.setdefault(_kind(pod), len(kinds)) for pod in self.pods]
        masks = np.zeros(len(self.pod), np.int64)
        if len(self._starts):
            bits = np.left_shift(1, self.footprints.places)[self._lies]
            masks[self._with_footprints] = np.bitwise_or.reduceat(bits, self._starts)
        rows = np.stack([np.array(own)[self.pod], self.devices, masks], axis=1)
        found, first, index = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return found, first, index.reshape(-1)


def _kind(pod: Slice) -> Hashable:
    """Return what lowerings, and transfers across slices, depend on."""
    return pod.chip, pod.num_slices, pod.dcn_oversubscription, pod.topology.chips == 1


def _places(mask: int) -> Places:
    """Return the dimensions and the wholeness that the bits of a mask stand for."""
    bits = (place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple((place // 2, bool(place % 2)) for place in bits)


class GroupAnswers:
    """The groups of some slices that may have any footprint, and what is known of them.

    pods: the slices, by number.
    """

    def __init__(self, pods: Sequence[Slice]) -> None:
        self.pods = pods

    @cached_property
    def table(self) -> GroupTable:
        """All groups that divide a slice, or the slices of a job; the last one is no group."""
        footprints = every_footprint(self.pods)
        own = self._codes(footprints.pod, footprints.devices)
        counts = [
            (at, count) for at, pod in enumerate(self.pods) for count in divisors(pod.num_slices)
        ]
        across = np.array(counts, np.int64).reshape(-1, 2)
        codes = np.unique(np.concatenate([own, self._codes(*across.T)]))
        self._sorted = codes
        pod, devices = np.append(codes // self._most, 0), np.append(codes % self._most, 0)
        group = np.searchsorted(codes, own)
        order = np.argsort(group, kind="stable")
        some, number = footprints.alike()
        return GroupTable(pod, devices, footprints.take(some), number[order], group[order])

    def numbers(self, pod: Whole, devices: Whole) -> Whole:
        """Return the number of each group in the table."""
        last = len(self.table.pod) - 1
        wanted = self._codes(pod, devices)
        found = np.searchsorted(self._sorted, wanted)
        known = self._sorted[np.minimum(found, last - 1)] == wanted
        return np.where(known, found, last)

    @cached_property
    def _most(self) -> int:
        return 1 + max(pod.devices for pod in self.pods)

    def _codes(self, pod: Whole, devices: Whole) -> Whole:
        return pod * self._most + np.minimum(devices, self._most - 1)
