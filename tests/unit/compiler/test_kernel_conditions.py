"""Conditions in the bodies of Pallas kernels: what counts where, of bodies written by hand."""

from collections.abc import Iterator
from time import monotonic

import pytest
from compiler_parts import HloParser
from kernel_bodies import (
    ADD,
    GRID,
    MATMUL,
    ONE,
    branches,
    by_hand,
    condition,
    loop,
    text_of,
    when,
    with_body,
    work_of,
)

from tpusim.program import MatmulWork

pytest.importorskip("jaxlib.xla_client")

LIMIT = 3.0


@pytest.fixture(scope="module")
def parser() -> Iterator[HloParser]:
    with HloParser() as found:
        yield found


FIRST = condition("%i", 0, "%c0")
AGAIN = FIRST + '%w = "stable_mosaic.arith.extui"(%c) : (i1) -> i32\n'
NOT = (
    '%true = "stable_mosaic.arith.constant"() {{value = true}} : () -> i1\n'
    '{} = "stable_mosaic.arith.xori"({}, %true) : (i1, i1) -> i1\n'
)
REST = '%rest = "stable_mosaic.arith.remsi"(%i, %c3) : (i32, i32) -> i32\n' + condition(
    "%rest", 0, "%c0"
)  # 0 and 3 of 4
BOTH = condition("%i", 0, "%c0", "a") + condition("%j", 0, "%c1", "b")
BOTH += '%c = "stable_mosaic.arith.andi"(%a, %b) : (i1, i1) -> i1\n'


@pytest.mark.parametrize(
    ("before", "name", "adds"),
    [
        ("", "%yes", 12),
        (FIRST, "%c", 3),
        (AGAIN + condition("%w", 1, "%c0", "d"), "%d", 3),
        (BOTH, "%c", 1),
        (condition("%i", 0, "%j"), "%c", 3),
        (condition("%i", 2, "%c1"), "%c", 3),
        (condition("%i", 1, "%c0"), "%c", 9),
        (condition("%i", 0, "%given"), "%c", 12),
        (BOTH.replace("%j", "%given"), "%c", 3),
        (REST, "%c", 6),
        (FIRST + NOT.format("%d", "%c"), "%d", 9),
    ],
)
def test_what_is_done_at_one_place_of_the_grid_counts_there(
    before: str, name: str, adds: int, parser: HloParser
) -> None:
    """Vector operations and products; where a number that is not known decides, it may be there."""
    inside = before + branches(f"{ADD} {MATMUL}", "").replace("%yes", name)
    found = work_of(with_body(text_of("tiled_v5e"), by_hand(inside, GRID)), parser)
    assert isinstance(found.model, MatmulWork)
    assert found.model.epilogue_flops == adds * 256 * 512
    assert found.flops == adds * ONE


AFTER = condition("%i", 4, "%c0", "d")
OTHERS = condition("%i", 1, "%c0", "d")
LAST = condition("%i", 0, "%c3", "d")
WITHIN = condition("%j", 0, "%c0", "d")
UNKNOWN = condition("%given", 0, "%c3")
OPPOSITE = condition("%given", 1, "%c3", "d")
LESS, MORE = condition("%given", 2, "%c3"), condition("%given", 5, "%c3", "d")
ELSEWHERE = condition("%given", 0, "%c1", "d")
FLAG_OFF = NOT.format("%d", "%yes")


@pytest.mark.parametrize(
    ("inside", "products"),
    [
        # of 4 x 3 steps: opposites, known
        (FIRST + OTHERS + when("%c", MATMUL) + when("%d", MATMUL), 12),
        (FIRST + AFTER + when("%c", MATMUL) + when("%d", MATMUL), 12),
        (FIRST + OTHERS + when("%c", f"{MATMUL} {MATMUL}") + when("%d", MATMUL), 2 * 3 + 9),
        (FIRST + branches(f"{MATMUL} {MATMUL}", MATMUL).replace("%yes", "%c"), 2 * 3 + 9),
        # first and last, independent, nested, and within each other
        (FIRST + LAST + when("%c", MATMUL) + when("%d", MATMUL), 3 + 3),
        (FIRST + WITHIN + when("%c", MATMUL) + when("%d", MATMUL), 3 + 4),
        (FIRST + WITHIN + when("%c", when("%d", MATMUL)), 1),
        (FIRST + AFTER + when("%c", when("%d", MATMUL)), 0),
        (FIRST + when("%c", when("%c", MATMUL)), 3),
        (condition("%i", 4, "%c10") + when("%c", MATMUL), 0),
        # opposites of what is not known: one of them; others: all
        (UNKNOWN + OPPOSITE + when("%c", MATMUL) + when("%d", MATMUL), 12),
        (UNKNOWN + OPPOSITE + when("%c", MATMUL) + when("%d", f"{MATMUL} {MATMUL}"), 24),
        (LESS + MORE + when("%c", MATMUL) + when("%d", MATMUL), 12),
        (FLAG_OFF + when("%yes", MATMUL) + when("%d", MATMUL), 12),
        (UNKNOWN + ELSEWHERE + when("%c", MATMUL) + when("%d", MATMUL), 24),
        (UNKNOWN + when("%c", MATMUL) + when("%c", MATMUL), 24),
        (FIRST + OPPOSITE + when("%c", when("%d", MATMUL)), 3),
    ],
)
def test_branches_count_where_their_conditions_hold(
    inside: str, products: int, parser: HloParser
) -> None:
    found = work_of(with_body(text_of("tiled_v5e"), by_hand(inside, GRID)), parser)
    assert found.understood
    assert found.flops == products * ONE


def carried(trips: str, wrap: str, inside: str) -> str:
    """A loop that carries a number, which begins at 0 and returns there from `wrap`."""
    return f"""
    %last = "stable_mosaic.scf.for"(%c0, {trips}, %c1, %c0) ({{
    ^bb0(%at: i32, %k: i32):
      {inside}
      %more = "stable_mosaic.arith.addi"(%k, %c1) : (i32, i32) -> i32
      {condition("%more", 0, wrap, "round")}
      %next = "stable_mosaic.arith.select"(%round, %c0, %more) : (i1, i32, i32) -> i32
      "stable_mosaic.scf.yield"(%next) : (i32) -> ()
    }}) : (i32, i32, i32, i32) -> i32
    """


IN_K = condition("%k", 0, "%c0") + condition("%k", 4, "%c0", "d")
IN_LOOP = condition("%at", 0, "%c0") + when("%c", MATMUL)


@pytest.mark.parametrize(
    ("inside", "products"),
    [
        (carried("%c10", "%c3", IN_K + when("%c", MATMUL)), 12 * 4),
        (carried("%c10", "%c3", IN_K + when("%d", MATMUL)), 12 * 6),
        (carried("%c10", "%c3", IN_K + when("%c", MATMUL) + when("%d", MATMUL)), 12 * 10),
        (carried("%c10", "%given", IN_K + when("%c", MATMUL) + when("%d", ADD)), 12 * 10),
        (loop("%c0", "%c10", "%c3", IN_LOOP), 12),
        (loop("%c0", "%given", "%c1", IN_LOOP), 12),
        (FIRST + when("%c", loop("%c0", "%c10", "%c1", IN_LOOP.replace("%c", "%e"))), 3),
        (loop("%c0", "%c3", "%c1", condition("%at", 0, "%i") + when("%c", MATMUL)), 3 * 3),
    ],
)
def test_conditions_on_what_a_loop_carries(inside: str, products: int, parser: HloParser) -> None:
    """As in `emit_pipeline`, whose grid is a loop that carries its places."""
    inside = inside.replace("%e0", "%c0").replace("%e10", "%c10").replace("%e1,", "%c1,")
    found = work_of(with_body(text_of("tiled_v5e"), by_hand(inside, GRID)), parser)
    assert found.flops == products * ONE


def test_a_loop_of_many_steps_takes_no_longer_than_is_allowed(parser: HloParser) -> None:
    """What is not followed to its end may hold in every step."""
    far = 10**6
    many = f'%far = "stable_mosaic.arith.constant"() {{value = {far} : i32}} : () -> i32\n'
    inside = many + carried("%far", "%c3", IN_K + when("%c", MATMUL))
    began = monotonic()
    found = work_of(with_body(text_of("tiled_v5e"), by_hand(inside)), parser)
    assert monotonic() - began < LIMIT
    assert found.flops == far * ONE
