"""Runs of plans whose form is known: their numbers come from recorded steps.

The form of a plan is all of it but the sizes of its mesh, its batch and its placement. The first
plan of a form is lowered as ever, since most users simulate one. With the second, recording begins;
a plan that decides otherwise than all recorded steps of its form adds one.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from threading import local
from typing import Any, NamedTuple, TypeAlias

from tpusim.base.errors import TpusimError
from tpusim.engine import CodeRun, Timeline
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

MOST_STEPS = 128
"""Recorded steps of a form. Beyond, its plans are lowered one by one."""

MOST_IN_ALL = 256
"""Recorded steps of all forms, of 1 to 2 MB each; forms go as by `MOST_FORMS`."""

MOST_PLACES = 4096
"""Places of a form whose answers are kept."""

_SIZES = ("mesh", "global_batch", "microbatches", "placement")
"""The fields of a plan that are not of its form."""

_FORM_FIELDS = tuple(each.name for each in fields(Plan) if each.name not in _SIZES)

_Known: TypeAlias = list[Callable[[PlaceAnswers], PlacedNumbers | None]]
"""The numbers of recorded steps that hold for the sizes of a plan, as functions of its place."""


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
        key = (model, pod, *_axes(plan), *(_key(getattr(plan, each)) for each in _FORM_FIELDS))
        form = self._forms.get(key)
        if form is None:
            self._forms[key] = _Form(model, pod)
            self._forget()
            return None
        self._forms.move_to_end(key)
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
        while len(self._forms) > 1 and (len(self._forms) > MOST_FORMS or steps > MOST_IN_ALL):
            steps -= len(self._forms.popitem(last=False)[1].steps)


@dataclass(slots=True)
class _Form:
    """The recorded steps of plans of one form, the one used last first."""

    model: Architecture
    pod: Slice
    steps: list[RecordedStep] = field(default_factory=list)
    answers: OrderedDict[Hashable, PlaceAnswers] = field(default_factory=OrderedDict)

    def placed(self, plan: Plan, placements: Sequence[Placement]) -> list[PlacedNumbers] | None:
        """Return the numbers of a plan on each placement; None if one is one too many."""
        known: _Known = []
        rest = iter(tuple(self.steps))
        found = []
        for placement in placements:
            numbers = self._numbers(plan, placement, known, rest)
            if numbers is None:
                return None
            found.append(numbers)
        return found

    def _numbers(
        self, plan: Plan, placement: Placement, known: _Known, rest: Iterator[RecordedStep]
    ) -> PlacedNumbers | None:
        """Return the numbers of a plan on a placement.

        known: takes those of `rest` that hold for the plan's sizes.
        """
        answers = self._answers_at(placement, plan.mesh)
        for at in known:
            if (numbers := at(answers)) is not None:
                return numbers
        for recorded in rest:
            holds = recorded.given(plan)
            if holds is not None:
                known.append(holds)
                if (numbers := holds(answers)) is not None:
                    self._use(recorded)
                    return numbers
        if len(self.steps) == MOST_STEPS:
            return None
        made = record_step(self.model, plan, self.pod, placement)
        self.steps.insert(0, made)
        holds = made.given(plan)
        if holds is None or (numbers := holds(answers)) is None:
            raise AssertionError(f"the recorded step of a plan does not hold for it: {plan}")
        known.append(holds)
        return numbers

    def _use(self, recorded: RecordedStep) -> None:
        """Put a recorded step first."""
        self.steps.remove(recorded)
        self.steps.insert(0, recorded)

    def _answers_at(self, placement: Placement, mesh: Mapping[str, int]) -> PlaceAnswers:
        key = (placement, *mesh.values())
        found = self.answers.get(key)
        if found is None:
            found = self.answers[key] = PlaceAnswers(Place(self.pod, placement, dict(mesh)))
            if len(self.answers) > MOST_PLACES:
                self.answers.popitem(last=False)
        return found


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

    def simulate(self) -> "_KnownRun":
        numbers = self.numbers or self.placed.step()
        return _KnownRun(self.placement, numbers, CodeRun(numbers.code, fold=self.fold))


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


def _axes(plan: Plan) -> tuple[Hashable, ...]:
    """Return the axes of a plan's mesh, and which of them are larger than one."""
    return tuple(plan.mesh), tuple(size > 1 for size in plan.mesh.values())


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
