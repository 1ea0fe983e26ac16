"""The distinct groups of devices among many plans, and what is known of each.

Plans by the thousand have few groups, and the same ones in many of their graphs. What depends on a
group alone is worked out once for all calls that share a `GroupAnswers`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.exploration.bound_collectives import Lie
from tpusim.exploration.plan_arrays import PlanArrays, distinct
from tpusim.hardware import Slice
from tpusim.plan import Axes

SIZES = 4
"""Columns of `PlanArrays.lies` that are sizes; strides follow."""

Groups: TypeAlias = NDArray[np.int64]
"""Devices of each plan's group."""


class SomeGroup(NamedTuple):
    """A group of devices of a slice.

    lie: how it lies, if that is known.
    """

    pod: Slice
    devices: int
    lie: Lie | None


@dataclass(eq=False)
class GroupAnswers:
    """What is known of groups: by question, then by slice and what is known of the group.

    pods: the slices, by number.
    """

    pods: Sequence[Slice]
    known: dict[Hashable, dict[tuple[int, ...], Any]] = field(default_factory=dict)


class DistinctGroups:
    """The distinct groups over some axes among plans."""

    def __init__(self, plans: PlanArrays, axes: Axes, answers: GroupAnswers) -> None:
        """answers: of the slices of the plans."""
        ones = np.ones(len(plans), np.int64)
        self.devices: Groups = np.prod([ones, *(plans.mesh[axis] for axis in axes)], axis=0)
        self._answers, self._pods = answers, plans.pod
        lies = [plans.lies[axis] for axis in axes if axis in plans.lies] if plans.lies else []
        self._placed = bool(lies) and len(lies) == len(axes)
        self._columns = _of_all_axes(lies) if self._placed else self.devices[:, None]
        count, self._of = 0, plans.pod
        for column in self._columns.T:
            values, codes = distinct(column)
            found, self._of = distinct(self._of * len(values) + codes)
            count = len(found)
        self._first = np.zeros(count, np.int64)
        self._first[self._of] = np.arange(len(plans))
        rows = np.concatenate([plans.pod[:, None], self._columns], axis=1)[self._first]
        self._keys = [tuple(row) for row in rows.tolist()]

    def each(self, question: Hashable, answer: Callable[[SomeGroup], Any]) -> NDArray[np.float64]:
        """Return `answer(group)`, a number or some, for each plan, [..., plan].

        question: what is asked; the answer of a group depends on nothing else.
        """
        known = self._answers.known.setdefault((question, self._placed), {})
        for at, key in enumerate(self._keys):
            if key not in known:
                known[key] = answer(self._group(at))
        found = np.array([known[key] for key in self._keys], np.float64)
        return found[self._of].T

    def _group(self, at: int) -> SomeGroup:
        first = self._first[at]
        pod, devices = self._answers.pods[self._pods[first]], int(self.devices[first])
        if not self._placed:
            return SomeGroup(pod, devices, None)
        return SomeGroup(pod, devices, lie_of_columns(self._columns[first].tolist(), pod))


def _of_all_axes(lies: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the columns of a group over some axes: sizes multiplied, and the least strides."""
    sizes = np.prod([each[:, :SIZES] for each in lies], axis=0)
    strides = np.min([each[:, SIZES:] for each in lies], axis=0)
    return np.concatenate([sizes, strides], axis=1)


def lie_of_columns(columns: Sequence[int], pod: Slice) -> Lie:
    """Return how a group lies whose columns are those of `PlanArrays.lies`."""
    dies, *shape = columns[:SIZES]
    dims, strides = len(pod.topology.dims), columns[SIZES:]
    return Lie(tuple(shape[:dims]), dies, tuple(strides[:dims]))
