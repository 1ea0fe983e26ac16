"""The tape: operations in the order in which they were first computed, and decisions."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, Protocol

from tpusim.tape.traced import Traced


class Operation(NamedTuple):
    """A function of earlier numbers, by their positions."""

    function: Callable[..., Any]
    operands: tuple[int, ...]


class Answer(NamedTuple):
    """What a recorded run learnt about the place where the step runs.

    fixed: must be the same elsewhere for the tape to hold.
    numbers: inputs of the tape; they may differ.
    """

    fixed: Hashable
    numbers: tuple[Any, ...] = ()


class Question(Hashable, Protocol):
    """A question about the place where a step runs, such as the route of a collective."""

    def answer(self, place: Any) -> Answer:
        """Return the answer for a place."""


class Tape:
    """The numbers of one recorded run, by position.

    operations: that of each number; None for inputs and constants.
    values: with which the tape was recorded.
    early_inputs, late_inputs: positions of the inputs, in order; the late ones are the numbers of
        answers.
    constants: positions of the constants.
    decisions: what a number was when the recorded function needed to know it, by its position and
        by whether only its truth mattered, as in a condition.
    questions: with what must be the same in their answers.
    """

    def __init__(self) -> None:
        self.operations: list[Operation | None] = []
        self.values: list[Any] = []
        self.early_inputs: list[int] = []
        self.late_inputs: list[int] = []
        self.constants: set[int] = set()
        self.decisions: dict[tuple[int, bool], Any] = {}
        self.questions: dict[Question, Hashable] = {}
        self._known: dict[tuple[Any, ...], Traced] = {}
        self._positions: dict[tuple[type, str], int] = {}
        self._answers: dict[Question, tuple[Traced, ...]] = {}

    def input(self, value: Any) -> Traced:
        """Return the next early input, which has this value while the tape is recorded."""
        self.early_inputs.append(self._new(value, None))
        return Traced(self, self.early_inputs[-1])

    def ask(self, question: Question, place: Any) -> tuple[Traced, ...]:
        """Return the numbers of an answer, as late inputs."""
        found = self._answers.get(question)
        if found is None:
            answer = question.answer(place)
            self.questions[question] = answer.fixed
            made = [self._new(each, None) for each in answer.numbers]
            self.late_inputs += made
            found = self._answers[question] = tuple(Traced(self, at) for at in made)
        return found

    def apply(self, function: Callable[..., Any], *given: Any) -> Traced:
        """Return the result of a function of numbers; the same operation is kept once."""
        operands = tuple([self._position(each) for each in given])
        found = self._known.get((function, *operands))
        return self._computed(function, operands) if found is None else found

    def apply_to_two(self, function: Callable[..., Any], first: Any, second: Any) -> Traced:
        """Return the result of a function of two numbers, as `apply` does, with fewer calls."""
        one = first.node if type(first) is Traced and first.tape is self else self._position(first)
        two = (
            second.node
            if type(second) is Traced and second.tape is self
            else self._position(second)
        )
        found = self._known.get((function, one, two))
        return self._computed(function, (one, two)) if found is None else found

    def _computed(self, function: Callable[..., Any], operands: tuple[int, ...]) -> Traced:
        value = function(*[self.values[at] for at in operands])
        made = Traced(self, self._new(value, Operation(function, operands)))
        self._known[function, *operands] = made
        return made

    def decide(self, node: int, truth: bool) -> Any:
        """Return the value of a number, and note that the run depends on it."""
        value = self.values[node]
        if node not in self.constants:
            self.decisions[node, truth] = bool(value) if truth else value
        return value

    def close(self) -> None:
        """Forget all but the values: what is left of the run holds traced numbers, and these it."""
        for each in (
            self.operations,
            self.decisions,
            self.questions,
            self._known,
            self._positions,
            self._answers,
        ):
            each.clear()

    def _position(self, value: Any) -> int:
        if type(value) is Traced:
            if value.tape is not self:
                raise ValueError(f"{value!r} is of another tape")
            return value.node
        key = (type(value), repr(value))
        found = self._positions.get(key)
        if found is None:
            found = self._positions[key] = self._new(value, None)
            self.constants.add(found)
        return found

    def _new(self, value: Any, operation: Operation | None) -> int:
        self.values.append(value)
        self.operations.append(operation)
        return len(self.values) - 1


def tape_of(values: Iterable[Any]) -> Tape | None:
    """Return the tape of the first traced number among some values, or None."""
    found = next((each.tape for each in values if isinstance(each, Traced)), None)
    return found if isinstance(found, Tape) else None
