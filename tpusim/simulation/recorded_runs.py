"""Runs of plans whose form is known: their numbers come from recorded steps.

The form of a plan is all of it but the sizes of its mesh, its batch and its placement. The first
plan of a form is lowered as ever, since most users simulate one. With the second, recording begins;
a plan that decides otherwise than all recorded steps of its form adds one.
"""

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from tpusim.engine import Timeline, run_code
from tpusim.hardware import Place, Placement, Slice
from tpusim.models import Architecture
from tpusim.plan import Plan
from tpusim.simulation.loads import TaskTotals, code_totals
from tpusim.simulation.recorded_step import PlaceAnswers, RecordedStep, StepNumbers, record_step

MOST_FORMS = 64
"""Forms of plans that are kept; the one that was not used for longest goes first."""

MOST_STEPS = 256
"""Recorded steps of a form. Beyond, its plans are lowered one by one."""

MOST_PLACES = 4096
"""Places whose answers are kept."""

_SIZES = ("mesh", "global_batch", "microbatches", "placement")
"""The fields of a plan that are not of its form."""

_FORM_FIELDS = tuple(field.name for field in fields(Plan) if field.name not in _SIZES)


class NumbersRun(NamedTuple):
    """The run of a step on one placement."""

    placement: Placement
    numbers: StepNumbers
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A placement with the step's numbers there, and its bounds."""

    number: int
    placement: Placement
    recorded: RecordedStep
    numbers: StepNumbers
    totals: TaskTotals

    @property
    def rank(self) -> tuple[int, int]:
        return max(self.totals.core_ps, self.totals.links_ps), self.number

    @property
    def pattern(self) -> Hashable:
        return id(self.recorded), self.totals.pattern


class RecordedRuns:
    """The recorded steps of one process, by the form of their plans."""

    def __init__(self) -> None:
        self._steps: OrderedDict[Hashable, list[RecordedStep]] = OrderedDict()
        self._answers: OrderedDict[Hashable, PlaceAnswers] = OrderedDict()

    def fastest(
        self,
        model: Architecture,
        plan: Plan,
        pod: Slice,
        placements: Sequence[Placement],
        *,
        fold: bool,
    ) -> NumbersRun | None:
        """Return the fastest run of a plan, the first of equal ones.

        None for a plan that is lowered as ever: the first of its form, or one too many.
        """
        if plan.active_schedule:
            return None
        form = (model, pod, tuple(plan.mesh), *(_key(getattr(plan, each)) for each in _FORM_FIELDS))
        steps = self._steps.get(form)
        if steps is None:
            self._steps[form] = []
            if len(self._steps) > MOST_FORMS:
                self._steps.popitem(last=False)
            return None
        self._steps.move_to_end(form)
        found = []
        for number, placement in enumerate(placements):
            step = self._numbers(steps, model, plan, pod, placement)
            if step is None:
                return None
            found.append((number, placement, *step))
        if len(found) == 1:
            _, placement, _, numbers = found[0]
            return NumbersRun(placement, numbers, run_code(numbers.code, fold=fold))
        return _fastest([_Candidate(*each, code_totals(each[-1].code)) for each in found], fold)

    def _numbers(
        self,
        steps: list[RecordedStep],
        model: Architecture,
        plan: Plan,
        pod: Slice,
        placement: Placement,
    ) -> tuple[RecordedStep, StepNumbers] | None:
        """Return the step of a plan on a placement, from the first recorded step that holds."""
        answers = self._answers_at(pod, placement, plan.mesh)
        for at, recorded in enumerate(steps):
            numbers = recorded.numbers(plan, answers)
            if numbers is not None:
                steps.insert(0, steps.pop(at))
                return recorded, numbers
        if len(steps) == MOST_STEPS:
            return None
        made = record_step(model, plan, pod, placement)
        steps.insert(0, made)
        numbers = made.numbers(plan, answers)
        if numbers is None:
            raise AssertionError(f"a step of {plan} does not hold for the plan that it is of")
        return made, numbers

    def _answers_at(self, pod: Slice, placement: Placement, mesh: Mapping[str, int]) -> PlaceAnswers:
        key = (pod, placement, tuple(mesh.items()))
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = PlaceAnswers(Place(pod, placement, dict(mesh)))
            if len(self._answers) > MOST_PLACES:
                self._answers.popitem(last=False)
        return found


def _fastest(candidates: list[_Candidate], fold: bool) -> NumbersRun:
    """Return the fastest candidate; see `placement_search.fastest_placement`."""
    seen: set[Hashable] = set()
    best: tuple[int, int] | None = None
    found: NumbersRun | None = None
    for each in sorted(candidates, key=lambda each: each.rank):
        if best is not None and best < each.rank:
            break
        if each.pattern in seen:
            continue
        seen.add(each.pattern)
        timeline = run_code(each.numbers.code, fold=fold)
        took = (timeline.device_ps, each.number)
        if best is None or took < best:
            best, found = took, NumbersRun(each.placement, each.numbers, timeline)
    if found is None:
        raise ValueError("there is no placement to run on")
    return found


def _key(value: Any) -> Hashable:
    """Return a hashable form of a plan's field."""
    if isinstance(value, Mapping):
        return tuple((key, _key(inner)) for key, inner in value.items())
    return tuple(map(_key, value)) if isinstance(value, list) else value


RECORDED = RecordedRuns()
"""Those of this process."""
