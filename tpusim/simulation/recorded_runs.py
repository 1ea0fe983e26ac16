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

_Known: TypeAlias = list[tuple[RecordedStep, Callable[[PlaceAnswers], PlacedNumbers | None]]]
"""Recorded steps that hold for the sizes of a plan, given its numbers."""


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
        for _, at in known:
            if (numbers := at(answers)) is not None:
                return numbers
        for recorded in rest:
            holds = recorded.given(plan)
            if holds is not None:
                known.append((recorded, holds))
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
        known.append((made, holds))
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


def _fastest(
    placed: Sequence[PlacedNumbers], placements: Sequence[Placement], fold: bool
) -> NumbersRun:
    """Return the fastest run; see `placement_search.fastest_placement`.

    A step is put together only where its core leaves it a chance, and simulated only where its
    links do too and no step of the same pattern was.
    """
    if len(placed) == 1:
        numbers = placed[0].step()
        return NumbersRun(placements[0], numbers, CodeRun(numbers.code, fold=fold).timeline())
    seen: set[Hashable] = set()
    best: tuple[int, int] | None = None
    found: tuple[Placement, StepNumbers, CodeRun] | None = None
    for number in sorted(range(len(placed)), key=lambda at: (placed[at].core_ps, at)):
        if best is not None and best < (placed[number].core_ps, number):
            break
        numbers = placed[number].step()
        totals = code_totals(numbers.code)
        pattern = id(placed[number].recorded), totals.pattern
        if pattern in seen or (best is not None and best < (totals.links_ps, number)):
            continue
        seen.add(pattern)
        run = CodeRun(numbers.code, fold=fold)
        took = (run.device_ps, number)
        if best is None or took < best:
            best, found = took, (placements[number], numbers, run)
    if found is None:
        raise ValueError("there is no placement to run on")
    placement, numbers, run = found
    return NumbersRun(placement, numbers, run.timeline())


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
