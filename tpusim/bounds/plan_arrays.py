"""Many plans at once: arrays of what varies, beside a plan that holds the rest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Slice
from tpusim.plan import STAGE_AXES, AttentionKernel, Plan

Whole = NDArray[np.int64]
Floats = NDArray[np.float64]

TABLE_SHARE = 8
"""`distinct` counts numbers in a table of up to so many entries for each of them."""


def distinct(numbers: Whole) -> tuple[Whole, Whole]:
    """Return the distinct ones of some numbers from 0 up, rising, and the index of each.

    As `np.unique` does, but without sorting where a table of all numbers is small.
    """
    if len(numbers) == 0 or int(numbers.max()) > TABLE_SHARE * len(numbers):
        values, index = np.unique(numbers, return_inverse=True)
        return values, index.reshape(-1)
    occurs = np.zeros(int(numbers.max()) + 1, bool)
    occurs[numbers] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]


def distinct_rows(columns: Iterable[NDArray[np.generic]]) -> tuple[Whole, Whole]:
    """Return an index of each distinct row of some columns, and the number of each row among them.

    columns: of numbers from 0 up. The distinct rows rise.
    """
    index = np.zeros(1, np.int64)
    for column in columns:
        values, codes = distinct(column.astype(np.int64, copy=False))
        found, index = distinct(index * len(values) + codes)
    at = np.zeros(len(found), np.int64)
    at[index] = np.arange(len(index))
    return at, index


def split_by(numbers: Whole) -> list[Whole]:
    """Return the indices of equal numbers, rising, for each distinct one."""
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    return np.split(order, cuts) if len(order) else []


@dataclass(frozen=True, slots=True, eq=False)
class PlanArrays:
    """Plans that differ in their slice, the sizes of their mesh, their batch and microbatches.

    base: all else; its own sizes do not count.
    pods: the slices.
    pod: for each plan the index of its slice.
    mesh: sizes of each axis.
    global_batch, microbatches: for each plan.
    footprints: those of the axes within a slice on a known placement, [plan, 7]: devices of a chip,
        chips along each dimension, and the least distance of two of them along each; None for any
        placement.
    kernels: attention kernels of the plans, for each of which `kernel` has its index; none where
        all have that of the base.
    """

    base: Plan
    pods: Sequence[Slice]
    pod: Whole
    mesh: Mapping[str, Whole]
    global_batch: Whole
    microbatches: Whole
    footprints: Mapping[str, Whole] | None = None
    kernels: Sequence[AttentionKernel] = ()
    kernel: Whole | None = None

    @classmethod
    def of(cls, plans: Sequence[tuple[Plan, Slice]]) -> "PlanArrays":
        """Return plans of the same form, each with its slice."""
        numbers = {pod: number for number, pod in enumerate(dict.fromkeys(p for _, p in plans))}
        first = plans[0][0]
        return cls(
            first,
            tuple(numbers),
            np.array([numbers[pod] for _, pod in plans]),
            {axis: np.array([plan.mesh[axis] for plan, _ in plans]) for axis in first.mesh},
            np.array([plan.global_batch for plan, _ in plans]),
            np.array([plan.microbatches for plan, _ in plans]),
        )

    def __len__(self) -> int:
        return len(self.pod)

    @property
    def batch(self) -> Whole:
        """Sequences of a microbatch, over all devices."""
        found: Whole = np.maximum(self.global_batch // self.microbatches, 1)
        return found

    @property
    def stages(self) -> Whole:
        """Stages of the pipeline; 1 where there is none."""
        ones = np.ones(len(self), np.int64)
        found: Whole = np.prod(
            [ones, *(self.mesh[a] for a in STAGE_AXES if a in self.mesh)], axis=0
        )
        return found

    def plan(self, at: int) -> Plan:
        """Return one of the plans. Raise PlanError for sizes that no plan has."""
        chosen = self.base if self.kernel is None else self._with_kernel(at)
        return chosen.replace(
            mesh={axis: int(sizes[at]) for axis, sizes in self.mesh.items()},
            global_batch=int(self.global_batch[at]),
            microbatches=int(self.microbatches[at]),
        )

    def _with_kernel(self, at: int) -> Plan:
        assert self.kernel is not None
        return self.base.replace(attention_kernel=self.kernels[self.kernel[at]])

    def differ(self, some: Whole, at: int) -> NDArray[np.bool_]:
        """Return True for those of some plans that differ from one in more than their slice."""
        numbers = (self.global_batch, self.microbatches, *self.mesh.values())
        found: NDArray[np.bool_] = np.any([each[some] != each[at] for each in numbers], axis=0)
        return found

    def alike(self) -> tuple[Whole, Whole]:
        """Return an index of each distinct plan, and the number of each plan among them.

        Plans are the same that differ only in how many microbatches of the same size they have, as
        long as they have several.
        """
        placed = (column for each in (self.footprints or {}).values() for column in each.T)
        kernel = () if self.kernel is None else (self.kernel,)
        return distinct_rows(
            (self.pod, *self.mesh.values(), *placed, *kernel, self.batch, self.microbatches > 1)
        )

    @property
    def machine(self) -> Whole:
        """A number for the chip and the number of slices of each plan."""
        numbers: dict[tuple[int, int], int] = {}
        kinds = ((id(pod.chip), pod.num_slices) for pod in self.pods)
        found: Whole = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds])[
            self.pod
        ]
        return found

    def take(self, some: Whole) -> "PlanArrays":
        """Return the plans at these indices."""
        return PlanArrays(
            self.base,
            self.pods,
            self.pod[some],
            {axis: sizes[some] for axis, sizes in self.mesh.items()},
            self.global_batch[some],
            self.microbatches[some],
            self.footprints
            and {axis: footprints[some] for axis, footprints in self.footprints.items()},
            self.kernels,
            None if self.kernel is None else self.kernel[some],
        )
