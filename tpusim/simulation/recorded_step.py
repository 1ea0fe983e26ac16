"""Recorded steps: a step is lowered and costed once, and then only its numbers are computed.

The partitioning, the lowering and the costs run on a traced plan, whose mesh sizes and batch are
traced numbers (`tpusim.tape`). What they return, the code of the engine, is kept with its numbers
as a function of those sizes. Another plan of the same form is a run of this function, as long as
each decision on the way comes out as it did: the results are those of lowering it, bit by bit.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from tpusim.costs import Task, cost_programs
from tpusim.engine import LaneCode, PipelineCode, compile_lane, compile_pipeline, has_calls
from tpusim.hardware import Place, Placement, Slice
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import planned_step
from tpusim.plan import Plan
from tpusim.results import StepContents, step_contents
from tpusim.simulation.loads import core_ps
from tpusim.simulation.unread_names import unread_names
from tpusim.tape import (
    Answer,
    Builder,
    Question,
    RecordedFunction,
    Tape,
    builder_of,
    recorded_function,
)


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """A step with all its numbers, ready to run.

    code: of its single lane, or of the lanes of a pipeline.
    tokens: of the step, all devices together.
    dropped, unread: see `Verdicts`.
    """

    code: LaneCode | PipelineCode
    contents: StepContents
    tokens: int
    dropped: tuple[tuple[str, int, str, int], ...]
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlacedNumbers:
    """The numbers of a step on one placement, before they are put together."""

    recorded: "RecordedStep"
    values: tuple[Any, ...]

    @property
    def core_ps(self) -> int:
        """Picoseconds of the core's tasks: no step is shorter."""
        return self.values[0]  # type: ignore[no-any-return]

    def step(self) -> StepNumbers:
        """Return the step."""
        return self.recorded.build(self.values)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedStep:
    """A step whose numbers are a function of the sizes of its plan and of its place.

    questions: with what must be the same in their answers; the rest of these are numbers.
    """

    questions: Mapping[Question, Any]
    function: RecordedFunction
    build: Builder

    def given(self, plan: Plan) -> Callable[["PlaceAnswers"], PlacedNumbers | None] | None:
        """Return the numbers of a plan of the same form, as a function of its place.

        None, there or here, where something was decided otherwise.
        """
        run = self.function.given(*_sizes(plan))
        return None if run is None else lambda answers: self._at(run, answers)

    def _at(self, run: Callable[..., Any], answers: "PlaceAnswers") -> PlacedNumbers | None:
        numbers = answers.numbers_for(self)
        values = None if numbers is None else run(*numbers)
        return None if values is None else PlacedNumbers(self, values)


class PlaceAnswers:
    """The answers for one place, each found once, whatever the batch."""

    __slots__ = ("_found", "_numbers", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self._found: dict[Question, Answer] = {}
        self._numbers: dict[RecordedStep, tuple[Any, ...] | None] = {}

    def numbers_for(self, recorded: RecordedStep) -> tuple[Any, ...] | None:
        """Return the numbers of a step's questions; None if the rest of an answer differs."""
        if recorded not in self._numbers:
            self._numbers[recorded] = self._numbers_for(recorded)
        return self._numbers[recorded]

    def _numbers_for(self, recorded: RecordedStep) -> tuple[Any, ...] | None:
        numbers: list[Any] = []
        for question, fixed in recorded.questions.items():
            answer = self.of(question)
            if answer.fixed != fixed:
                return None
            numbers += answer.numbers
        return tuple(numbers)

    def of(self, question: Question) -> Answer:
        """Return the answer to a question."""
        found = self._found.get(question)
        if found is None:
            found = self._found[question] = question.answer(self.place)
        return found


def record_step(model: Architecture, plan: Plan, pod: Slice, placement: Placement) -> RecordedStep:
    """Lower and cost a step on traced numbers.

    Raise PlanError as `planned_step` does.
    """
    tape = Tape()
    traced = _traced(plan, tape)
    step = planned_step(model, traced, pod)
    programs = step.programs_on(placement)
    lanes = cost_programs(programs, pod, placement)
    numbers = StepNumbers(
        code=compile_pipeline(lanes) if has_calls(lanes) else compile_lane(lanes[0]),
        contents=step_contents(programs),
        tokens=step.graph.tokens * traced.microbatches,
        dropped=step.dropped,
        unread=unread_names(step.graph, plan),
    )
    outputs: list[Any] = [core_ps(numbers.code)]
    build = builder_of(numbers, outputs, shared=(Task,))
    made = RecordedStep(dict(tape.questions), recorded_function(tape, outputs), build)
    tape.close()
    return made


def _sizes(plan: Plan) -> Iterable[int]:
    """Return the numbers of a plan that are not of its form, in the order of a tape's inputs."""
    return *plan.mesh.values(), plan.global_batch, plan.microbatches


def _traced(plan: Plan, tape: Tape) -> Plan:
    """Return a plan whose sizes are inputs of a tape."""
    *mesh, batch, microbatches = (tape.input(size) for size in _sizes(plan))
    traced = copy(plan)
    for name, value in (
        ("mesh", dict(zip(plan.mesh, mesh, strict=True))),
        ("global_batch", batch),
        ("microbatches", microbatches),
    ):
        object.__setattr__(traced, name, value)
    return traced
