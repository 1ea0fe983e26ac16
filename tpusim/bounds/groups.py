"""The distinct groups of devices among many plans, and what is known of each.

Plans by the thousand have few groups, and the same ones in many of their graphs. What depends on a
group alone is worked out once, on arrays of all groups: for all calls that share a `GroupAnswers`
where groups may have any footprint, and for one call where placements are known.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from tpusim.base.divisors import divisors
from tpusim.bounds.footprints import (
    MOST_DIMENSIONS,
    Footprints,
    every_footprint,
    least_seconds,
)
from tpusim.bounds.habits import GroupHabits, habits_of
from tpusim.bounds.plan_arrays import Floats, PlanArrays, Whole, distinct_rows
from tpusim.hardware import Slice
from tpusim.plan import Axes, Compiler
from tpusim.program import CollectiveKind, Number

SIZES = 1 + MOST_DIMENSIONS
"""Columns of `PlanArrays.footprints` that are sizes; strides follow."""

_Answer = TypeVar("_Answer", bound=Number)


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
        key = "least", kind, algorithm
        if key not in self._known:
            found = np.zeros((3, len(self.pod)))
            each = least_seconds(self.footprints, kind, algorithm)[:, self._lies]
            if len(self._starts):
                found[:, self._with_footprints] = np.minimum.reduceat(each, self._starts, axis=1)
            self._known[key] = found
        known: Floats = self._known[key]
        return known

    def habits(
        self, compiler: Compiler, tiled: bool, circular: bool, some: Whole
    ) -> tuple[Sequence[GroupHabits], Whole]:
        """Return distinct habits of groups, and the index of those of each of some groups.

        For the other arguments see `habits_of`.
        """
        key = "habits", compiler, tiled, circular
        rows, first, index = self._kinds
        habits, known = self._known.setdefault(key, ([], np.full(len(first), -1)))
        kinds = index[some]
        for kind in np.unique(kinds[known[kinds] < 0]).tolist():
            pod, devices = self.pods[self.pod[first[kind]]], int(self.devices[first[kind]])
            places = _places(int(rows[kind, -1]))
            found = habits_of(pod, compiler, tiled, devices, circular, places)
            if found not in habits:
                habits.append(found)
            known[kind] = habits.index(found)
        return habits, known[kinds]

    def each(
        self, question: Hashable, answer: Callable[[Slice, int], float], some: Whole
    ) -> Floats:
        """Return `answer(slice, devices)` for some groups.

        question: what is asked; the answer depends on nothing else but the kind of slice.
        """
        key = "each", question
        _, first, index = self._kinds
        known = self._known.setdefault(key, np.full(len(first), np.nan))
        kinds = index[some]
        for kind in np.unique(kinds[np.isnan(known[kinds])]).tolist():
            at = first[kind]
            known[kind] = answer(self.pods[self.pod[at]], int(self.devices[at]))
        found: Floats = known[kinds]
        return found

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


def _places(mask: int) -> tuple[tuple[int, bool], ...]:
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


class PlanGroups:
    """The groups over some axes among plans.

    devices: of the group of each plan.
    """

    def __init__(self, plans: PlanArrays, axes: Axes, answers: GroupAnswers) -> None:
        """answers: of the slices of the plans."""
        ones = np.ones(len(plans), np.int64)
        self.devices: Whole = np.prod([ones, *(plans.mesh[axis] for axis in axes)], axis=0)
        self._plans, self._axes, self._answers = plans, axes, answers
        self._found: dict[Hashable, Any] = {}

    def known(self, question: Hashable, answer: Callable[[GroupTable, Whole], _Answer]) -> _Answer:
        """Return `answer(table, numbers)` for each plan, [..., plan].

        question: what is asked; the answer depends on nothing else but the numbers of groups.
        """
        found: _Answer | None = self._found.get(question)
        if found is None:
            found = self._found[question] = answer(*self._numbered)
        return found

    @cached_property
    def _numbered(self) -> tuple[GroupTable, Whole]:
        """The table of the groups, and the number of each plan's group."""
        plans, axes = self._plans, self._axes
        placed = plans.footprints or {}
        footprints = [placed[axis] for axis in axes if axis in placed]
        if not footprints or len(footprints) < len(axes):
            return self._answers.table, self._answers.numbers(plans.pod, self.devices)
        sizes = np.prod([each[:, :SIZES] for each in footprints], axis=0)
        strides = np.min([each[:, SIZES:] for each in footprints], axis=0)
        first, of = distinct_rows((plans.pod, *sizes.T, *strides.T))
        dies, *shape = sizes[first].T
        own = Footprints(
            self._answers.pods, plans.pod[first], np.stack(shape), dies, strides[first].T
        )
        every = np.arange(len(own))
        return GroupTable(own.pod, own.devices, own, every, every), of
