"""Runs of plans whose form is known: their numbers come from recorded steps.

The form of a plan is all of it but the sizes of its mesh, its batch and its placement. The first
plan of a form is lowered as ever, since most users simulate one. With the second, recording begins;
a plan that decides otherwise than all recorded steps of its form adds one. Which axes are larger
than one is a decision like any other.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from threading import local
from typing import Any, NamedTuple

from tpusim.base.collection import garbage_collector_off
from tpusim.base.errors import TpusimError
from tpusim.engine import CodeRun, Race, Timeline
from tpusim.hardware import Place, Placement, Slice
from tpusim.models import Architecture
from tpusim.plan import Plan
from tpusim.simulation.fastest_candidate import fastest
from tpusim.simulation.loads import code_totals
from tpusim.simulation.recorded_step import (
    PlaceAnswers,
    PlacedNumbers,
    RecordedStep,
    StepNumbers,
    record_step,
)
from tpusim.tape import TracedHashError

MOST_FORMS = 64
"""Forms of plans that are kept; the one that was not used for longest goes first."""

MOST_STEPS = 256
"""Recorded steps of all forms, of 1 to 2 MB each; forms go as by `MOST_FORMS`. A form that has as
many by itself gets no more: its plans are lowered one by one."""

MOST_PLACES = 4096
"""Places of a form whose answers are kept."""

_SIZES = ("mesh", "global_batch", "microbatches", "placement")
"""The fields of a plan that are not of its form."""

_FORM_FIELDS = tuple(each.name for each in fields(Plan) if each.name not in _SIZES)


class NumbersRun(NamedTuple):
    """The run of a step on one placement."""

    placement: Placement
    numbers: StepNumbers
    timeline: Timeline


class RecordedRuns(local):
    """The recorded steps of a thread, by the form of their plans."""

    def __init__(self) -> None:
        self._forms: OrderedDict[Hashable, _Form] = OrderedDict()

    def fastest(
        self,
        model: Architecture,
        plan: Plan,
        pod: Slice,
        placements_of: Callable[[], Sequence[Placement]],
        *,
        fold: bool,
    ) -> NumbersRun | None:
        """Return the fastest run of a plan on some placements, the first of equal ones.

        None for a plan that is lowered as ever: the first of its form, one that cannot be recorded,
        and one that cannot be simulated, which then gets its sentence.
        """
        key = (model, pod, tuple(plan.mesh), *(_key(getattr(plan, each)) for each in _FORM_FIELDS))
        form = self._forms.get(key)
        if form is None:
            self._forms[key] = _Form(model, pod)
            self._forget()
            return None
        self._forms.move_to_end(key)
        with garbage_collector_off():
            try:
                placements = placements_of()
                placed = form.placed(plan, placements)
            except (TpusimError, TracedHashError):
                return None
            self._forget()
            return None if placed is None else _fastest(placed, placements, fold)

    def _forget(self) -> None:
        """Drop the forms that were not used for longest, while there are too many."""
        steps = sum(len(form.steps) for form in self._forms.values())
        while len(self._forms) > 1 and (len(self._forms) > MOST_FORMS or steps > MOST_STEPS):
            steps -= len(self._forms.popitem(last=False)[1].steps)


@dataclass(slots=True)
class _Form:
    """The recorded steps of plans of one form, the one made last first.

    places: what is known of the places that were used last.
    """

    model: Architecture
    pod: Slice
    steps: list[RecordedStep] = field(default_factory=list)
    places: OrderedDict[Hashable, "_KnownPlace"] = field(default_factory=OrderedDict)

    def placed(self, plan: Plan, placements: Sequence[Placement]) -> list[PlacedNumbers] | None:
        """Return the numbers of a plan on each placement; None if one is one too many."""
        given = _GivenSizes(plan)
        found = []
        for placement in placements:
            numbers = self._numbers(given, self._known_place(placement, plan.mesh))
            if numbers is None:
                return None
            found.append(numbers)
        return found

    def _numbers(self, given: "_GivenSizes", place: "_KnownPlace") -> PlacedNumbers | None:
        """Return the numbers of a plan at a place; None if its step is one too many.

        The step that held there last is tried first: mostly it holds for the next batch too.
        """
        for recorded in (*place.held, *self.steps):
            if (numbers := given.numbers(recorded, place.answers)) is not None:
                place.held = (recorded,)
                return numbers
        if len(self.steps) >= MOST_STEPS:
            return None
        made = record_step(self.model, given.plan, self.pod, place.answers.place.placement)
        self.steps.insert(0, made)
        place.held = (made,)
        numbers = given.numbers(made, place.answers)
        if numbers is None:
            raise AssertionError(f"the recorded step of a plan does not hold for it: {given.plan}")
        return numbers

    def _known_place(self, placement: Placement, mesh: Mapping[str, int]) -> "_KnownPlace":
        key = (placement, *mesh.values())
        found = self.places.get(key)
        if found is None:
            answers = PlaceAnswers(Place(self.pod, placement, dict(mesh)))
            found = self.places[key] = _KnownPlace(answers)
            if len(self.places) > MOST_PLACES:
                self.places.popitem(last=False)
        return found


@dataclass(slots=True)
class _KnownPlace:
    """The answers for a place, and the recorded step that held there last, if any."""

    answers: PlaceAnswers
    held: tuple[RecordedStep, ...] = ()


class _GivenSizes:
    """The recorded steps given the sizes of one plan, each evaluated once."""

    __slots__ = ("_given", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._given: dict[int, Callable[[PlaceAnswers], PlacedNumbers | None] | None] = {}

    def numbers(self, recorded: RecordedStep, answers: PlaceAnswers) -> PlacedNumbers | None:
        """Return the numbers of a recorded step at a place; None where it does not hold."""
        key = id(recorded)
        if key not in self._given:
            self._given[key] = recorded.given(self.plan)
        at = self._given[key]
        return None if at is None else at(answers)


@dataclass(slots=True)
class _KnownCandidate:
    """A placement as a candidate of the search: its step is put together when it is examined."""

    number: int
    placement: Placement
    placed: PlacedNumbers
    fold: bool
    numbers: StepNumbers | None = None

    @property
    def least_ps(self) -> int:
        return self.placed.core_ps

    def examine(self) -> tuple[int, Hashable]:
        self.numbers = self.placed.step()
        totals = code_totals(self.numbers.code)
        return totals.links_ps, (id(self.placed.recorded), totals.pattern)

    def simulate(self, best_ps: int | None = None) -> "_KnownRun":
        numbers = self.numbers or self.placed.step()
        race = None if best_ps is None else Race(best_ps, self.placed.core_ps)
        return _KnownRun(self.placement, numbers, CodeRun(numbers.code, fold=self.fold, race=race))


class _KnownRun(NamedTuple):
    """A run whose timeline is not put together yet."""

    placement: Placement
    numbers: StepNumbers
    run: CodeRun

    @property
    def device_ps(self) -> int:
        return self.run.device_ps


def _fastest(
    placed: Sequence[PlacedNumbers], placements: Sequence[Placement], fold: bool
) -> NumbersRun:
    """Return the fastest run; a single placement needs no search.

    A step is put together only where its core leaves it a chance, and simulated only where its
    links do too and no step of the same pattern was.
    """
    candidates = [
        _KnownCandidate(number, placement, numbers, fold)
        for number, (placement, numbers) in enumerate(zip(placements, placed, strict=True))
    ]
    found = candidates[0].simulate() if len(candidates) == 1 else fastest(candidates)[0]
    return NumbersRun(found.placement, found.numbers, found.run.timeline())


def _key(value: Any) -> Hashable:
    """Return a hashable form of a plan's field."""
    if isinstance(value, Mapping):
        return tuple((key, _key(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if is_dataclass(value):
        return type(value), *(_key(getattr(value, each.name)) for each in fields(value))
    return value  # type: ignore[no-any-return]


RECORDED = RecordedRuns()
"""Those of each thread of this process."""
