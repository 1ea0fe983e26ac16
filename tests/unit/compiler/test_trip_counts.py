"""Trip counts: (bound - start) / step, as compiled loops write them."""

import pytest
from compiler_parts import callees
from hlo import module_of

from tpusim.compiler.to_program.trip_counts import trip_count

LOOP = """
HloModule loops, is_scheduled=true

%condition (carry: (s32[], f32[8])) -> pred[] {{
  %carry = (s32[], f32[8]) parameter(0)
  %count = s32[] get-tuple-element(%carry), index=0
  {ahead}
  %bound = s32[] constant({bound})
  ROOT %less = pred[] compare({compared}), direction={direction}
}}

%body (carry.1: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %carry.1 = (s32[], f32[8]) parameter(0)
  %count.1 = s32[] get-tuple-element(%carry.1), index=0
  %x = f32[8] get-tuple-element(%carry.1), index=1
  %step = s32[] constant({step})
  %next = s32[] add(%count.1, %step)
  %copied = s32[] copy(%next)
  ROOT %left = (s32[], f32[8]) tuple(%copied, %x)
}}

ENTRY %main (p: f32[8]) -> (s32[], f32[8]) {{
  %p = f32[8] parameter(0)
  %start = s32[] constant({start})
  %begin = s32[] copy(%start)
  %carried = (s32[], f32[8]) tuple(%begin, %p)
  ROOT %loop = (s32[], f32[8]) while(%carried), condition=%condition, body=%body{known}
}}
"""


def count(
    start: int, bound: int, step: int, direction: str = "LT", compared: str = "%count, %bound",
    ahead: str = "", known: str = "",
) -> int | None:  # fmt: skip
    text = LOOP.format(
        start=start, bound=bound, step=step, direction=direction, compared=compared, ahead=ahead,
        known=known,
    )  # fmt: skip
    module = module_of(text)
    return trip_count(module, module.main, module.main[module.main.root])


@pytest.mark.parametrize(
    ("start", "bound", "step", "direction", "expected"),
    [
        (0, 64, 1, "LT", 64),
        (0, 8, 2, "LT", 4),
        (0, 7, 2, "LT", 4),
        (1, 64, 1, "LT", 63),
        (0, 63, 1, "LE", 64),
        (63, 0, -1, "GE", 64),
        (64, 0, -2, "GT", 32),
        (0, 12, 3, "NE", 4),
        (5, 5, 1, "LT", 0),
        (9, 5, 1, "LT", 0),
    ],
)
def test_trips_are_bound_less_start_over_step(
    start: int, bound: int, step: int, direction: str, expected: int
) -> None:
    seen = set()
    number = start
    compare = {"LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__,
               "NE": int.__ne__}[direction]  # fmt: skip
    while compare(number, bound):
        seen.add(number)
        number += step
    assert len(seen) == expected
    assert count(start, bound, step, direction) == expected


def test_the_bound_may_stand_on_the_left() -> None:
    assert count(0, 10, 1, "GT", compared="%bound, %count") == 10


def test_a_loop_that_looks_ahead_stops_earlier() -> None:
    ahead = "%one = s32[] constant(1)\n  %soon = s32[] add(%count, %one)"
    assert count(0, 10, 1, compared="%soon, %bound", ahead=ahead) == 9


@pytest.mark.parametrize(("start", "bound", "step", "direction"), [
    (0, 10, 0, "LT"), (0, 10, -1, "LT"), (0, 10, 3, "NE"), (0, 10, 1, "EQ"),
])  # fmt: skip
def test_a_loop_that_never_ends_has_no_count(
    start: int, bound: int, step: int, direction: str
) -> None:
    assert count(start, bound, step, direction) is None


def test_what_the_compiler_says_is_believed() -> None:
    known = ', backend_config={"known_trip_count":{"n":"17"}}'
    assert count(0, 10, 1, known=known) == 17


def test_a_body_and_a_condition_are_told_apart() -> None:
    text = LOOP.format(
        start=0, bound=1, step=1, direction="LT", compared="%count, %bound", ahead="", known=""
    )
    loop = module_of(text).main["loop"]
    assert callees(loop, "body") == ("body",)
    assert callees(loop, "condition") == ("condition",)
    assert callees(loop) == ("condition", "body")


def test_a_counter_that_goes_through_thousands_of_instructions_is_not_read() -> None:
    text = LOOP.format(
        start=0, bound=8, step=1, direction="LT", compared="%count, %bound", ahead="", known=""
    )
    steps = [f"  %n{at} = s32[] copy(%{f'n{at - 1}' if at else 'next'})" for at in range(3000)]
    text = text.replace("  %copied = s32[] copy(%next)", "\n".join(steps))
    module = module_of(text.replace("%copied", "%n2999"))
    assert trip_count(module, module.main, module.main[module.main.root]) is None
