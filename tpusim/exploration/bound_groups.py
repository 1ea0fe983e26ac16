"""The distinct groups of devices among many plans, and what is known of each.

Plans by the thousand have few groups, and the same ones in many of their graphs. What depends on a
group alone is worked out once for all calls that share a `GroupAnswers`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.exploration.bound_collectives import Lie
from tpusim.exploration.plan_arrays import PlanArrays, distinct
from tpusim.hardware import Slice
from tpusim.plan import Axes

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
    """What is known of groups: by question, then by the number of the group.

    pods: the slices that the numbers count.
    """

    pods: Sequence[Slice]
    known: dict[Hashable, dict[int, Any]] = field(default_factory=dict)

    @cached_property
    def most(self) -> int:
        """More than the devices of any group."""
        return 1 + max(pod.devices * pod.num_slices for pod in self.pods)

    @cached_property
    def most_along(self) -> int:
        """More than the devices of any group along a dimension."""
        return 1 + max(max(pod.chip.devices, *pod.topology.dims) for pod in self.pods)


class DistinctGroups:
    """The distinct groups over some axes among plans."""

    def __init__(self, plans: PlanArrays, axes: Axes, answers: GroupAnswers) -> None:
        """answers: of the slices of the plans."""
        ones = np.ones(len(plans), np.int64)
        self.devices: Groups = np.prod([ones, *(plans.mesh[axis] for axis in axes)], axis=0)
        self._answers, self._pods = answers, plans.pod
        lies = [plans.lies[axis] for axis in axes if axis in plans.lies] if plans.lies else []
        self._placed = bool(lies) and len(lies) == len(axes)
        self._columns = np.prod(lies, axis=0) if self._placed else self.devices[:, None]
        most = answers.most_along if self._placed else answers.most
        number = plans.pod
        for column in self._columns.T:
            number = number * most + column
        self._numbers, self._of = distinct(number)
        self._first = np.zeros(len(self._numbers), np.int64)
        self._first[self._of] = np.arange(len(plans))

    def each(self, question: Hashable, answer: Callable[[SomeGroup], Any]) -> NDArray[np.float64]:
        """Return `answer(group)`, a number or some, for each plan, [..., plan].

        question: what is asked; the answer of a group depends on nothing else.
        """
        known = self._answers.known.setdefault((question, self._placed), {})
        numbers = self._numbers.tolist()
        for at, number in enumerate(numbers):
            if number not in known:
                known[number] = answer(self._group(at))
        found = np.array([known[number] for number in numbers], np.float64)
        return found[self._of].T

    def _group(self, at: int) -> SomeGroup:
        first = self._first[at]
        pod, devices = self._answers.pods[self._pods[first]], int(self.devices[first])
        if not self._placed:
            return SomeGroup(pod, devices, None)
        return SomeGroup(pod, devices, lie_of_columns(self._columns[first].tolist(), pod))


def lie_of_columns(columns: Sequence[int], pod: Slice) -> Lie:
    """Return how a group lies whose columns are those of `PlanArrays.lies`."""
    dies, *shape = columns
    return tuple(shape[: len(pod.topology.dims)]), dies
