"""The space of a search: slices, meshes and values of a plan, as arrays."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.checked_call import checked_call
from tpusim.base.divisors import factored
from tpusim.base.errors import PlanError, blame
from tpusim.base.html_text import html_table
from tpusim.base.shown_value import cut, shown
from tpusim.base.value_checks import is_list
from tpusim.bounds.plan_arrays import PlanArrays, Whole
from tpusim.hardware import DCN_PREFIX, Slice
from tpusim.models import Architecture
from tpusim.plan import (
    DEFAULT_RULES,
    PLAN_KEYS,
    STAGE_AXES,
    AttentionKernel,
    Plan,
    axes_of,
    check_known,
)
from tpusim.searches.idle_keys import ModelKeys, axes_in, own_values
from tpusim.searches.slices import distinct_slices
from tpusim.sweeps.space import check_vary

NUMBERS = ("global_batch", "microbatches")
"""Fields that vary within the arrays of one form."""

LONGEST_CELL = 200
"""Characters of a value in a notebook."""

KERNEL = "attention_kernel"
"""The group of the fields that make a kernel, which vary within the arrays too."""

UNEQUAL = "microbatches that do not divide the global batch"
UNDIVIDED = "axes that do not divide the sequences of a microbatch"
UNLISTED = "stage_layers with other than a number for each part of the model"
AGAIN = "the same as others, but for keys that change nothing"
"""Reasons for which combinations are out, besides values that contradict each other."""

_CHOSEN = {"mesh": "axes or meshes", "placement": "[sweep] with placements"}

LINE = 100
"""Characters of a line of a space's text."""

_BATCH = DEFAULT_RULES["act_batch"]


class SpaceForm(NamedTuple):
    """Plans that differ in their slice, the sizes of their mesh, their batch and microbatches.

    base: all else.
    parts: of the model, as `stage_layers` lists them; 0 if it lists none.
    cases: of `PlanSpace`, in which no form before it has the same plans.
    """

    base: Plan
    parts: int
    cases: tuple[int, ...]


@checked_call
@dataclass(frozen=True, kw_only=True, repr=False)
class PlanSpace:
    """All combinations of slices, meshes and values that a search chooses from.

    base: the plan that the others vary.
    slices: to choose from; see `slices_of`. One that is listed again counts once, also in another
        order of its dimensions, unless parts of it are slow or broken.
    axes: of the mesh; every way to write the devices of a slice as a product of their sizes is a
        mesh. Axes named `dcn_...` divide the slices instead.
    meshes: meshes to try, instead, each on all slices that have its devices.
    most: axis -> its largest size.
    vary: key of a plan, flat or grouped -> values to try.
    model: that the plans are of, if it is known; `search` gives it.

    Every placement is the best of its mesh. A plan counts once: a slice in one order of its
    dimensions, and values once where they change nothing, such as those of the pipeline where there
    is one stage, of experts where the model has none, or tensors to save that are saved anyway.
    Values that contradict each other are out, and `left_out` counts them. Raise PlanError for a
    space without plans, for keys that a plan does not have, and for values that none can have.
    """

    base: Plan
    slices: Sequence[Slice]
    axes: Sequence[str] = ()
    meshes: Sequence[Mapping[str, int]] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    model: Architecture | None = None

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "slices", tuple(distinct_slices(self.slices)))
        if not self.slices:
            raise PlanError(
                "search.slices is empty; write slices, such as [Slice('v4', '8x16x16')]"
            )
        if bool(self.axes) == bool(self.meshes):
            given = "both given" if self.axes else "both missing"
            raise PlanError(f"search.axes and search.meshes are {given}; write one of them")
        if unknown := [axis for axis in self.most if axis not in self.names]:
            raise PlanError(
                f"search.most has {unknown[0]!r}, which is not among search.axes "
                f"({', '.join(self.names)}); add it there, or leave it out"
            )
        if self.base.placement is not None:
            raise PlanError(
                "plan.placement is given, but the search chooses placements itself; leave it out"
            )
        check_vary(self.base, self.vary, "search", _CHOSEN)
        self._check_names()
        if not len(self):
            why = "".join(f"; {reason}" for reason in self._sorted_out[1] if not self.forms)
            raise PlanError(
                f"no mesh of the axes {', '.join(self.names)} has the devices of a slice and "
                f"divides the batch; write more axes, or larger sizes in search.most{why}"
                if not why
                else f"no values of search.vary go together{why}"
            )

    def of(self, model: Architecture) -> "PlanSpace":
        """Return the space of a model. Raise PlanError for names that it does not know."""
        return self if self.model == model else replace(self, model=model)

    def _check_names(self) -> None:
        """Raise PlanError for an axis, a tensor or a pass that does not exist."""
        known = ModelKeys(self.model, self.base, self.names) if self.model else None
        mesh = dict.fromkeys(self.names, 1)
        for key, values in self.vary.items():
            for number, value in enumerate(values):
                with blame(f"search.vary.{key}[{number}]"):
                    check_known(f"plan.{key} is", axes_in(key, value), mesh)
                    if known is not None:
                        known.check_names(key, value)

    def _check_types(self) -> None:
        """Raise PlanError for a field of another type."""
        if not isinstance(self.base, Plan):
            raise PlanError(f"the base of a space is {shown(self.base)}; write a ts.Plan(...)")
        for pod in self.slices if is_list(self.slices) else (self.slices,):
            if not isinstance(pod, Slice):
                raise PlanError(
                    f"search.slices has {shown(pod)}; write a list of slices, such as "
                    "[Slice('v4', '8x16x16')]"
                )
        if not is_list(self.slices):
            raise PlanError(f"search.slices is {self.slices}; write a list, such as [slice]")
        if not is_list(self.axes) or not all(isinstance(axis, str) for axis in self.axes):
            raise PlanError(f"search.axes is {shown(self.axes)}; write a list of names")
        if not is_list(self.meshes) or not all(isinstance(mesh, Mapping) for mesh in self.meshes):
            raise PlanError(
                f"search.meshes is {shown(self.meshes)}; write a list of meshes, such as "
                "[{'fsdp': 256}]"
            )
        for key, example in (("most", "{'tensor': 8}"), ("vary", "{'microbatches': [1, 2]}")):
            if not isinstance(getattr(self, key), Mapping):
                raise PlanError(
                    f"search.{key} is {shown(getattr(self, key))}; write a table, such as {example}"
                )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The axes of all meshes."""
        return tuple(dict.fromkeys([*self.axes, *(axis for mesh in self.meshes for axis in mesh)]))

    def __len__(self) -> int:
        return sum(int(self.divide(form).sum()) for form in self.forms)

    def __repr__(self) -> str:
        """Return the number of plans and what they vary, in at most five short lines."""
        chips = [pod.chips for pod in self.slices]
        names = ", ".join(dict.fromkeys(pod.chip.name for pod in self.slices))
        meshes = f"{len(self.meshes):,} meshes" if self.meshes else "axes"
        lines = [
            f"PlanSpace of {len(self):,} plans",
            f"slices: {len(chips):,} of {names}, {min(chips):,} to {max(chips):,} chips",
            f"{meshes}: {', '.join(self.names)}",
            *([f"at most: {_counts(self.most)}"] if self.most else ()),
            *(
                [f"values: {_counts({key: len(given) for key, given in self.vary.items()})}"]
                if self.vary
                else ()
            ),
        ]
        return "\n  ".join(cut(line, LINE) for line in lines)

    def _repr_html_(self) -> str:
        """Return what it chooses from, for a notebook."""
        slices, axes = ", ".join(map(str, self.slices)), ", ".join(self.names)
        given: dict[str, object] = {"slices": slices, "axes": axes}
        given |= {"most": self.most, "vary": self.vary, "base": self.base}
        rows = ((key, cut(str(value), LONGEST_CELL)) for key, value in given.items() if value)
        return html_table(f"{len(self):,} plans to search", rows)

    @cached_property
    def groups(self) -> int:
        """The number of groups of plans that differ in sizes only: of one form, slice and axes."""
        pods, sizes = self.table
        found = 0
        for form in self.forms:
            some = self.divide(form).any(axis=1)
            active = np.packbits(sizes[some] > 1, axis=1)
            found += len(np.unique(np.concatenate([pods[some, None], active], axis=1), axis=0))
        return found

    @cached_property
    def blocks(self) -> tuple[PlanArrays, ...]:
        """The plans, one block for each form that has some."""
        found = (self.plans(form, *np.nonzero(self.divide(form))) for form in self.forms)
        return tuple(plans for plans in found if len(plans))

    def plans(self, form: SpaceForm, meshes: Whole, numbers: Whole) -> PlanArrays:
        """Return plans of a form by their meshes (rows of `table`) and numbers (of `numbers`)."""
        pods, sizes = self.table
        batch, microbatches, kernel = self.numbers[numbers].T
        return PlanArrays(
            form.base,
            self.slices,
            pods[meshes],
            {axis: sizes[meshes, at] for at, axis in enumerate(self.names)},
            batch,
            microbatches,
            kernels=self._kernels,
            kernel=kernel,
        )

    @property
    def forms(self) -> tuple[SpaceForm, ...]:
        """The combinations of values other than numbers."""
        return self._sorted_out[0]

    @property
    def left_out(self) -> Mapping[str, int]:
        """How many combinations of slices, meshes and values are no plans of the space, by reason.

        With the plans they are all combinations.
        """
        refused = Counter(self._sorted_out[1])
        batches, counts = (self.vary.get(key, [self.base.value(key)]) for key in NUMBERS)
        kernels = prod(len(values) for key, values in self.vary.items() if is_of_kernel(key))
        rows, numbers = len(self.table[0]), len(batches) * len(counts) * kernels
        equal = kernels * sum(batch % count == 0 for batch in batches for count in counts)
        found = Counter({reason: count * rows * numbers for reason, count in refused.items()})
        for form in self.forms:
            found[UNEQUAL] += rows * (numbers - equal)
            found[AGAIN] += rows * (equal - len(self.numbers))
            left = np.ones((rows, len(self.numbers)), np.bool_)
            for reason, fine in self._sieves(form, self.table[1]):
                found[reason] += int((left & ~fine).sum())
                left &= fine
        return {reason: count for reason, count in found.most_common() if count}

    @cached_property
    def _sorted_out(self) -> tuple[tuple[SpaceForm, ...], Counter[str]]:
        """The forms, and how many combinations contradict themselves, by sentence."""
        keys = [key for key in self.vary if key not in NUMBERS and not is_of_kernel(key)]
        fields = [PLAN_KEYS.field_of(key) for key in keys]
        known = ModelKeys(self.model, self.base, self.names) if self.model else None
        cases = np.unique(self._cases(self.table[1])).tolist()
        forms: list[SpaceForm] = []
        seen: set[tuple[int, str]] = set()
        refused: Counter[str] = Counter()
        for values in product(*(self.vary[key] for key in keys)):
            given = dict(zip(keys, values, strict=True))
            try:
                base = self.base.replace(mesh=dict.fromkeys(self.names, 1), **given)
                base.check_together()
            except PlanError as error:
                refused[str(error)] += 1
                continue
            listed = len(base.pipeline.stage_layers)
            own: dict[int, tuple[int, str]] = {}
            for case in cases:
                active, several = self._of_case(case)
                if not listed or not active.isdisjoint(STAGE_AXES):
                    values_told = own_values(base, fields, active, several, known)
                    own[case] = (case, repr(list(values_told)))
            new = tuple(case for case, told in own.items() if told not in seen)
            seen.update(own.values())
            forms.append(SpaceForm(base, listed, new))
        return tuple(forms), refused

    def _cases(self, sizes: Whole) -> Whole:
        """Return what decides which keys change nothing, [mesh, number]: a bit for each axis above
        one, after one for several microbatches."""
        bits = np.array([2 << at for at in range(len(self.names))], np.int64)
        several: Whole = (self.numbers[:, 1] > 1).astype(np.int64)
        found: Whole = ((sizes > 1) @ bits)[:, None] + several[None, :]
        return found

    def _of_case(self, case: int) -> tuple[frozenset[str], bool]:
        """Return the axes above one of a case, and whether there are several microbatches."""
        active = (axis for at, axis in enumerate(self.names) if case >> (at + 1) & 1)
        return frozenset(active), bool(case & 1)

    @cached_property
    def numbers(self) -> Whole:
        """Batches, numbers of microbatches that divide them, and kernels, [number, 3]."""
        batches, counts = (self.vary.get(key, [self.base.value(key)]) for key in NUMBERS)
        pairs = dict.fromkeys((b, m) for b in batches for m in counts if b % m == 0)
        found = [(*pair, kernel) for pair in pairs for kernel in range(len(self._kernels))]
        return np.array(found, np.int64).reshape(-1, 3)

    @cached_property
    def _kernels(self) -> tuple[AttentionKernel, ...]:
        """The attention kernels, each once."""
        keys = [key for key in self.vary if is_of_kernel(key)]
        known = ModelKeys(self.model, self.base, self.names) if self.model else None
        if known is not None and known.has_no_kernel:
            return (self.base.attention_kernel,)
        found: dict[tuple[object, ...], AttentionKernel] = {}
        for values in product(*(self.vary[key] for key in keys)):
            kernel = self.base.replace(**dict(zip(keys, values, strict=True))).attention_kernel
            blocks = (kernel.block_of(backward=late) for late in (False, True))
            found.setdefault((*blocks, kernel.backward, kernel.library), kernel)
        return tuple(found.values())

    @cached_property
    def table(self) -> tuple[Whole, Whole]:
        """Every mesh of every slice: the index of its slice, and the sizes of its axes."""
        within = [axis for axis in self.names if not axis.startswith(DCN_PREFIX)]
        across = [axis for axis in self.names if axis.startswith(DCN_PREFIX)]
        rows = [
            (number, *(sizes[axis] for axis in self.names))
            for number, pod in enumerate(self.slices)
            for inner in self._sizes(within, pod.devices // pod.num_slices)
            for outer in self._sizes(across, pod.num_slices)
            for sizes in (dict(zip([*within, *across], [*inner, *outer], strict=True)),)
        ]
        table = np.array(rows, np.int64).reshape(len(rows), 1 + len(self.names))
        return table[:, 0], table[:, 1:]

    def divide(self, form: SpaceForm, rows: Whole | None = None) -> NDArray[np.bool_]:
        """Return which meshes are plans of a form with which numbers, [mesh, number].

        Their axes divide a microbatch, and they have the stages that the form lists layers for.

        rows: of `table`; all unless given.
        """
        sizes = self.table[1] if rows is None else self.table[1][rows]
        fine = np.ones((len(sizes), len(self.numbers)), np.bool_)
        for _, each in self._sieves(form, sizes):
            fine &= each
        return fine

    def _sieves(self, form: SpaceForm, sizes: Whole) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield reasons to leave plans out, and whether each stays, [mesh, number or 1]."""
        batch = axes_of(form.base.rules.get("act_batch", _BATCH))
        stages, shards = (
            np.prod(sizes[:, [at for at, axis in enumerate(self.names) if axis in axes]], axis=1)
            for axes in (STAGE_AXES, batch)
        )
        microbatch = self.numbers[:, 0] // self.numbers[:, 1]
        yield UNDIVIDED, microbatch[None, :] % shards[:, None] == 0
        if form.parts:
            yield UNLISTED, (stages * form.base.pipeline.virtual_stages == form.parts)[:, None]
        yield AGAIN, np.isin(self._cases(sizes), form.cases)

    def _sizes(self, axes: Sequence[str], number: int) -> list[tuple[int, ...]]:
        if self.meshes:
            listed = [tuple(mesh.get(axis, 1) for axis in axes) for mesh in self.meshes]
            return [sizes for sizes in dict.fromkeys(listed) if prod(sizes) == number]
        if not axes:
            return [()] if number == 1 else []
        return factored(number, tuple(self.most.get(axis, number) for axis in axes))


def is_of_kernel(key: str) -> bool:
    """Return True if a key is of the attention kernel."""
    return PLAN_KEYS.field_of(key)[0] == KERNEL


def _counts(given: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {number}" for key, number in given.items())
