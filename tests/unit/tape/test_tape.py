"""Recorded arithmetic gives what the function itself gives, and knows where it no longer does."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpusim.tape import (
    Answer,
    Tape,
    Traced,
    TracedHashError,
    builder_of,
    call,
    recorded_function,
    uncached_if_traced,
    untraced,
)


def replayed(function: Callable[..., Any], *numbers: Any) -> Any:
    """The recorded function of one output, as a function of its early inputs."""
    tape = Tape()
    made = function(*(tape.input(each) for each in numbers))
    run = recorded_function(tape, [made])

    def replay(*others: Any) -> Any:
        found = run(others)
        return None if found is None else found[0]

    return replay


def mixed(a: int, b: int, c: float) -> float:
    """Every operator, a function that is one step, and ceilings."""
    whole = -(-a // b) + a % b + (a - 1) * 2**b
    part = (whole / (b + 1)) ** 0.5 + abs(c - 3) - +c
    return part + call(max, c, whole) + math.ceil(c) * math.floor(c) + (7 // b)


@settings(max_examples=200, deadline=None)
@given(
    a=st.integers(1, 10**20),
    b=st.integers(1, 40),
    c=st.floats(0, 1e12, allow_nan=False),
)
def test_other_numbers_give_what_the_function_gives_bit_by_bit(a: int, b: int, c: float) -> None:
    found = replayed(mixed, 5, 2, 1.5)(a, b, c)
    assert found == mixed(a, b, c)
    assert type(found) is type(mixed(a, b, c))


def test_a_condition_holds_while_its_outcome_does() -> None:
    replay = replayed(lambda n: n * 10 if n > 4 else n, 8)
    assert replay(5) == 50
    assert replay(4) is None


def test_a_function_that_is_one_step_decides_nothing() -> None:
    replay = replayed(lambda n: call(lambda m: m * 10 if m > 4 else m, n), 8)
    assert (replay(5), replay(4)) == (50, 4)


@pytest.mark.parametrize(
    "use",
    [
        lambda n: n + len(range(n)),
        lambda n: n + int(n),
        lambda n: n + float(n),
        lambda n: n + len(f"{n}"),
        lambda n: n + len(str(n)),
        lambda n: n + operator.index(n),
    ],
)
def test_python_gets_the_number_itself_only_with_a_decision(use: Callable[[Any], Any]) -> None:
    replay = replayed(use, 3)
    assert replay(3) == use(3)
    assert replay(4) is None


def test_equal_operations_are_kept_once_and_constants_by_type() -> None:
    tape = Tape()
    n = tape.input(3)
    assert (n * 2 + 1).node == (n * 2 + 1).node
    assert (n * 2).node != (n * 2.0).node
    assert type((n * 2).value) is int


def test_a_traced_number_is_no_key_and_calls_with_one_are_not_cached() -> None:
    tape, calls = Tape(), []

    @uncached_if_traced(8)
    def double(n: int) -> int:
        calls.append(n)
        return 2 * n

    n = tape.input(3)
    with pytest.raises(TracedHashError, match="no key"):
        hash(n)
    doubled = double(n)
    assert isinstance(doubled, Traced)
    assert untraced(doubled) == 6
    assert [double(3), double(3)] == [6, 6]
    assert len(calls) == 2


def test_numbers_of_two_tapes_do_not_mix() -> None:
    with pytest.raises(ValueError, match="another tape"):
        _ = Tape().input(1) + Tape().input(2)


@dataclass(frozen=True)
class Width:
    """A question about a place, here a dict."""

    name: str

    def answer(self, place: dict[str, Any]) -> Answer:
        return Answer(place["kind"], (place[self.name],))


def test_answers_are_late_inputs_and_their_fixed_part_is_kept() -> None:
    tape = Tape()
    n = tape.input(2)
    place = {"kind": "ring", "links": 5}
    (links,) = tape.ask(Width("links"), place)
    assert tape.ask(Width("links"), place)[0] is links
    run = recorded_function(tape, [n * 3 + links])
    assert tape.questions == {Width("links"): "ring"}
    at = run.given(7)
    assert at is not None
    assert (at(1), at(100)) == ((22,), (121,))


def test_the_source_can_be_read() -> None:
    tape = Tape()
    n = tape.input(6)
    total = call(max, n * 2, 3)
    assert total > 4
    text = recorded_function(tape, [total]).source
    assert text == (
        "def given(v0):\n"
        "    v4 = max(v0 * 2, 3)\n"
        "    v6 = v4 > 4\n"
        "    if not v6: return None\n"
        "    def run():\n"
        "        return (v4, )\n"
        "    return run"
    )


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf with a number."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Tree:
    """Data of every kind that a builder makes."""

    leaf: Leaf
    row: tuple[Any, ...]
    table: dict[str, Any]
    items: list[Any]
    plain: Leaf


def test_a_builder_makes_equal_data_and_keeps_identities() -> None:
    def tree(n: Any) -> Tree:
        leaf, plain = Leaf("a", n), Leaf("b", 1)
        return Tree(leaf, (leaf, n + 1, plain), {"x": leaf, "y": 2}, [n, 0], plain)

    tape, numbers = Tape(), list[Traced]()
    data = tree(tape.input(3))
    build = builder_of(data, numbers)
    run = recorded_function(tape, numbers)
    values = run((8,))
    assert values is not None
    made = build(values)
    assert made == tree(8)
    assert made.leaf is made.row[0] is made.table["x"]
    assert made.plain is data.plain


def test_shared_types_stay_as_they_were_recorded() -> None:
    tape, numbers = Tape(), list[Traced]()
    leaf = Leaf("a", tape.input(3))
    build = builder_of((leaf, leaf.size), numbers, shared=(Leaf,))
    made = build([9])
    assert made[0] is leaf
    assert made[1] == 9
