"""The algorithm of a collective: the compiler's choice, and the caller's."""

import pytest
from toruses import torus, whole

from tpusim.base import PlanError
from tpusim.hardware import DIE, Span
from tpusim.network import Algorithm, default_algorithm, dimension_sizes, resolve_algorithm
from tpusim.program import CollectiveKind as Kind

TORUS = torus(8, 16, 16)
AXIS = (Span(1, 16),)
PLANE = (Span(1, 16), Span(2, 16))


@pytest.mark.parametrize(
    ("kind", "axis", "plane", "slice_"),
    [
        (Kind.ALL_GATHER, "ring", "ring", "nd"),
        (Kind.REDUCE_SCATTER, "ring", "ring", "all-reduce"),
        (Kind.ALL_REDUCE, "ring", "nd", "nd"),
        (Kind.ALL_TO_ALL, "pairs", "pairs", "pairs"),
        (Kind.PERMUTE, "neighbours", "neighbours", "neighbours"),
        (Kind.BROADCAST, "ring", "ring", "ring"),
    ],
)
def test_the_compilers_choice(kind: Kind, axis: str, plane: str, slice_: str) -> None:
    chosen = [default_algorithm(kind, where, TORUS) for where in (AXIS, PLANE, whole(TORUS))]
    assert chosen == [axis, plane, slice_]


@pytest.mark.parametrize("kind", [Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE])
def test_a_group_over_part_of_a_dimension_is_one_ring(kind: Kind) -> None:
    """4 x 16 of 16x16, whether the four are a line or every fourth."""
    for stride in (1, 4):
        spans = (Span(0, 4, stride), Span(1, 16))
        assert default_algorithm(kind, spans, torus(16, 16)) is Algorithm.RING


def test_parts_that_cover_a_dimension_together_count_as_the_whole() -> None:
    spans = (Span(1, 4, 4), Span(2, 16), Span(1, 4), Span(0, 1), Span(DIE, 2))
    assert dimension_sizes(spans) == {1: 16, 2: 16}
    assert default_algorithm(Kind.ALL_REDUCE, spans, TORUS) is Algorithm.ND


@pytest.mark.parametrize(
    ("requested", "found"),
    [("ring", "ring"), ("ring flat", "ring"), ("nd flat", "nd"), (" flat", "nd"), ("flat", "nd")],
)
def test_flat_is_left_out_of_an_algorithm(requested: str, found: str) -> None:
    assert resolve_algorithm(Kind.ALL_GATHER, whole(TORUS), TORUS, requested) == found


@pytest.mark.parametrize(
    ("kind", "requested"),
    [(Kind.ALL_GATHER, "rings"), (Kind.ALL_TO_ALL, "ring"), (Kind.ALL_REDUCE, "halo")],
)
def test_an_algorithm_that_cannot_be_is_refused(kind: Kind, requested: str) -> None:
    with pytest.raises(PlanError, match=rf"algorithm '{requested}' cannot carry out {kind}; "):
        resolve_algorithm(kind, AXIS, TORUS, requested)
