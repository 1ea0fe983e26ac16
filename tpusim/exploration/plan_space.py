"""The space of a search: slices, meshes and values of a plan, as arrays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tpusim.base.divisors import divisors
from tpusim.base.errors import PlanError
from tpusim.exploration.plan_arrays import PlanArrays, Whole
from tpusim.hardware import DCN_PREFIX, TWISTED, Slice, can_twist, format_shape, legal_shapes
from tpusim.hardware.catalogue import load_chip
from tpusim.plan import DEFAULT_RULES, PLAN_KEYS, STAGE_AXES, Plan, axes_of

NUMBERS = ("global_batch", "microbatches")
"""Fields that vary within the arrays of one form."""

_PIPELINE = ("schedule", "virtual_stages", "stage_layers")
"""Fields that only plans with several stages have."""


@dataclass(frozen=True, kw_only=True)
class PlanSpace:
    """All combinations of slices, meshes and values that a search chooses from.

    base: the plan that the others vary.
    slices: to choose from; see `slices_of`.
    axes: of the mesh; every way to write the devices of a slice as a product of their sizes is a
        mesh. Axes named `dcn_...` divide the slices instead.
    most: axis -> its largest size.
    vary: key of a plan, flat or grouped -> values to try.

    Every placement is the best of its mesh. A plan counts once: a slice in one order of its
    dimensions, and values of the pipeline once where there is one stage. Raise PlanError for a
    space without plans, and for keys that a plan does not have.
    """

    base: Plan
    slices: Sequence[Slice]
    axes: Sequence[str]
    most: Mapping[str, int] = field(default_factory=dict)
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.slices:
            raise PlanError(
                "search.slices is empty; write slices, such as [Slice('v4', '8x16x16')]"
            )
        if unknown := [axis for axis in self.most if axis not in self.axes]:
            raise PlanError(
                f"search.most has {unknown[0]!r}, which is not among search.axes "
                f"({', '.join(self.axes)}); add it there, or leave it out"
            )
        for key, values in self.vary.items():
            if not PLAN_KEYS.is_known(key) or key in ("mesh", "placement"):
                raise PlanError(
                    f"search.vary does not take {key!r}; write a key of the plan other than mesh "
                    "and placement, which the search chooses itself"
                )
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise PlanError(f"search.vary.{key} is {values!r}; write a list of values to try")
        if not len(self):
            raise PlanError(
                f"no mesh of the axes {', '.join(self.axes)} has the devices of a slice; write "
                "more axes, or larger sizes in search.most"
            )

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    @cached_property
    def blocks(self) -> tuple[PlanArrays, ...]:
        """The plans, one block for each form; combinations that contradict each other are out."""
        return tuple(self._blocks())

    def _blocks(self) -> Iterator[PlanArrays]:
        pods, meshes = self._meshes()
        keys = [key for key in self.vary if key not in NUMBERS]
        stages = np.prod(
            [np.ones(len(pods), np.int64), *(meshes[a] for a in STAGE_AXES if a in meshes)], axis=0
        )
        seen: set[tuple[str, ...]] = set()
        for values in product(*(self.vary[key] for key in keys)):
            given = dict(zip(keys, values, strict=True))
            other = tuple(repr(v) for k, v in given.items() if k not in _PIPELINE)
            some = np.arange(len(pods)) if other not in seen else np.flatnonzero(stages > 1)
            try:
                base = self.base.replace(mesh=dict.fromkeys(self.axes, 1), **given)
                base.check_together()
            except PlanError:
                continue
            seen.add(other)
            if len(some):
                yield self._with_numbers(base, pods[some], {a: n[some] for a, n in meshes.items()})

    def _with_numbers(self, base: Plan, pods: Whole, meshes: Mapping[str, Whole]) -> PlanArrays:
        """Return a block with all batches and numbers of microbatches that their axes divide."""
        batches = self.vary.get("global_batch", [base.global_batch])
        counts = self.vary.get("microbatches", [base.microbatches])
        pairs = np.array([(b, m) for b in batches for m in counts if b % m == 0], np.int64)
        pairs = pairs.reshape(-1, 2)
        batch = axes_of(base.rules.get("act_batch", DEFAULT_RULES["act_batch"]))
        ones = np.ones(len(pods), np.int64)
        shards = np.prod([ones, *(meshes[axis] for axis in batch if axis in meshes)], axis=0)
        divide = (pairs[:, 0] // pairs[:, 1])[None, :] % shards[:, None] == 0
        mesh, pair = np.nonzero(divide)
        return PlanArrays(
            base,
            tuple(self.slices),
            pods[mesh],
            {axis: sizes[mesh] for axis, sizes in meshes.items()},
            pairs[pair, 0],
            pairs[pair, 1],
        )

    def _meshes(self) -> tuple[Whole, dict[str, Whole]]:
        """Return every mesh of every slice: the index of its slice, and the sizes of its axes."""
        within = [axis for axis in self.axes if not axis.startswith(DCN_PREFIX)]
        across = [axis for axis in self.axes if axis.startswith(DCN_PREFIX)]
        rows = [
            (number, *inner, *outer)
            for number, pod in enumerate(self.slices)
            for inner in self._sizes(within, pod.devices // pod.num_slices)
            for outer in self._sizes(across, pod.num_slices)
        ]
        table = np.array(rows, np.int64).reshape(len(rows), 1 + len(within) + len(across))
        columns = dict(zip([*within, *across], table.T[1:], strict=True))
        return table[:, 0], {axis: columns[axis] for axis in self.axes}

    def _sizes(self, axes: Sequence[str], number: int) -> list[tuple[int, ...]]:
        if not axes:
            return [()] if number == 1 else []
        return _factored(number, tuple(self.most.get(axis, number) for axis in axes))


@cache
def _factored(number: int, most: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return every way to write a number as an ordered product of factors up to these limits."""
    first, *others = most
    if not others:
        return [(number,)] if number <= first else []
    return [
        (size, *rest)
        for size in divisors(number)
        if size <= first
        for rest in _factored(number // size, tuple(others))
    ]


def slices_of(
    generations: Sequence[str], least: int, most: int, *, twisted: bool = False
) -> list[Slice]:
    """Return every legal slice of the generations with `least` to `most` chips, one slice each.

    twisted: also the twisted torus of shapes that have one. Raise PlanError if there is none.
    """
    found = []
    for name in generations:
        rules = Slice(name, format_shape(legal_shapes(name)[0])).slice_rules
        for dims in legal_shapes(name):
            if least <= prod(dims) <= most:
                twists = twisted and rules.twistable and can_twist(dims)
                found += [
                    Slice(load_chip(name), format_shape(dims) + suffix)
                    for suffix in (("", TWISTED) if twists else ("",))
                ]
    if not found:
        raise PlanError(
            f"no slice of {', '.join(generations)} has {least:,} to {most:,} chips; write another "
            "range"
        )
    return found
