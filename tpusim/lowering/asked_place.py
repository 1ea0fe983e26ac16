"""A placement as the lowering sees it: through questions, which it writes down.

What the compiler chooses depends on where the groups of collectives lie on the torus, and on
nothing else of a placement. So a lowering is given a placement in this form alone: what is not
asked is not known, and placements that answer every question alike have the same program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from tpusim.hardware import Placement, Slice
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.collectives_by_generation import lowering_for
from tpusim.lowering.device_groups import DeviceGroup, group_of
from tpusim.lowering.pass_log import current_log
from tpusim.partition import across_slices
from tpusim.plan import Axes, Compiler

Made = TypeVar("Made")

MOST_ALIKE = 64
"""Lowerings that are kept of what is shared."""

GroupKey: TypeAlias = tuple[Axes, bool]
"""The axes of a group, and whether weights are tiled over them (see `DeviceGroup`)."""


class GroupPredicate(NamedTuple):
    """A question about a group with the answer yes or no: `holds(group, *given)`."""

    holds: Callable[..., bool]
    group: GroupKey
    given: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """The questions that a lowering asked about its placement, and the answers."""

    lowerings: dict[GroupKey, Lowering] = field(default_factory=dict)
    predicates: dict[GroupPredicate, bool] = field(default_factory=dict)

    def add(self, others: "Answers") -> None:
        """Add the answers that another lowering got."""
        self.lowerings.update(others.lowerings)
        self.predicates.update(others.predicates)


@dataclass(slots=True)
class AskedPlace:
    """A mesh on a slice, which a lowering may ask about.

    mesh: axis -> size.
    compiler: its choices.
    answers: to all questions so far.
    """

    pod: Slice
    placement: Placement
    mesh: Mapping[str, int]
    compiler: Compiler
    answers: Answers = field(default_factory=Answers)
    _groups: dict[GroupKey, DeviceGroup] = field(default_factory=dict)

    def lowering(self, group: GroupKey) -> Lowering:
        """Return how the collectives of a group run."""
        found = self.answers.lowerings.get(group)
        if found is None:
            found = self.answers.lowerings[group] = self._lowering(group)
        return found

    def holds(self, predicate: Callable[..., bool], group: GroupKey, *given: float) -> bool:
        """Return `predicate(group, *given)`, a pure function of the group."""
        question = GroupPredicate(predicate, group, given)
        found = self.answers.predicates.get(question)
        if found is None:
            found = self.answers.predicates[question] = self._holds(question)
        return found

    def answers_as(self, known: Answers) -> bool:
        """Return True if all questions of another lowering have the same answers here."""
        return all(self._lowering(each) == low for each, low in known.lowerings.items()) and all(
            self._holds(each) is said for each, said in known.predicates.items()
        )

    def _lowering(self, group: GroupKey) -> Lowering:
        return lowering_for(self.pod.chip.generation, self.compiler, self._group(group))

    def _holds(self, question: GroupPredicate) -> bool:
        return bool(question.holds(self._group(question.group), *question.given))

    def _group(self, key: GroupKey) -> DeviceGroup:
        found = self._groups.get(key)
        if found is None:
            axes, tiled = key
            spanned = prod(self.mesh[axis] for axis in across_slices(axes))
            found = self._groups[key] = group_of(axes, self.pod, self.placement, tiled, spanned)
        return found


class SharedLowerings(Generic[Made]):
    """What was lowered for some placements, each with the answers that it depends on."""

    def __init__(self) -> None:
        self._known: list[tuple[Answers, Made]] = []

    def on(self, place: AskedPlace, lower: Callable[[AskedPlace], Made]) -> Made:
        """Return what `lower` makes of a place: once for all places that answer alike.

        The place then has the answers too, as if it had been asked. Under `record_passes`, all is
        lowered anew.
        """
        recorded = current_log() is not None
        for answers, made in () if recorded else tuple(self._known):
            if place.answers_as(answers):
                place.answers.add(answers)
                return made
        alone = AskedPlace(place.pod, place.placement, place.mesh, place.compiler)
        made = lower(alone)
        if not recorded:
            self._known = [(alone.answers, made), *self._known[: MOST_ALIKE - 1]]
        place.answers.add(alone.answers)
        return made
