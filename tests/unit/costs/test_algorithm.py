"""The algorithm of a collective: the compiler's choice, and the caller's."""

import pytest

from tpusim.costs import Algorithm, default_algorithm, group, route
from tpusim.errors import PlanError
from tpusim.hardware import Span, Topology
from tpusim.program import CollectiveKind as Kind

V4 = Topology.of("v4", "8x16x16")
V6E = Topology.of("v6e", "16x16")
AXIS = group((Span(1, 16),), V4)
PLANE = group((Span(1, 16), Span(2, 16)), V4)
SLICE = group((Span(0, 16), Span(1, 16)), V6E)


@pytest.mark.parametrize(
    ("kind", "axis", "plane", "whole"),
    [
        (Kind.ALL_GATHER, "ring", "ring", "nd"),
        (Kind.REDUCE_SCATTER, "ring", "ring", "all-reduce"),
        (Kind.ALL_REDUCE, "nd", "nd", "nd"),
        (Kind.ALL_TO_ALL, "pairs", "pairs", "pairs"),
        (Kind.PERMUTE, "neighbours", "neighbours", "neighbours"),
    ],
)
def test_the_compilers_choice(kind: Kind, axis: str, plane: str, whole: str) -> None:
    chosen = [default_algorithm(kind, where) for where in (AXIS, PLANE, SLICE)]
    assert chosen == [axis, plane, whole]


def test_a_gather_as_an_all_reduce_moves_twice_the_bytes() -> None:
    spans = (Span(1, 16), Span(2, 16))
    gather, reduce = (
        route(Kind.ALL_GATHER, spans, V4, how) for how in (Algorithm.ND, Algorithm.ALL_REDUCE)
    )
    assert reduce.share == 2 * gather.share
    assert reduce == route(Kind.ALL_REDUCE, spans, V4)


def test_a_plane_on_one_ring_takes_twice_its_two_dimensions() -> None:
    spans = (Span(1, 16), Span(2, 16))
    ring, plane = (route(Kind.ALL_REDUCE, spans, V4, how) for how in ("ring", "nd"))
    assert ring.share == 2 * plane.share
    assert {link for link, _ in ring.uses} == {"ici:y+", "ici:y-", "hbm"}


@pytest.mark.parametrize(("kind", "asked"), [(Kind.ALL_GATHER, "rings"), (Kind.ALL_TO_ALL, "ring")])
def test_an_algorithm_that_cannot_be_is_refused(kind: Kind, asked: str) -> None:
    with pytest.raises(PlanError, match=rf"algorithm '{asked}' cannot carry out {kind}; "):
        route(kind, (Span(1, 16),), V4, asked)


def test_hbm_weights_of_a_ring() -> None:
    """Two bytes a byte received, three where they are summed; both directions receive."""
    weights = {kind: dict(route(kind, (Span(1, 16),), V4).uses)["hbm"] for kind in Kind}
    assert weights[Kind.ALL_GATHER] == 4
    assert weights[Kind.REDUCE_SCATTER] == 6
    assert weights[Kind.ALL_REDUCE] == 5
    assert weights[Kind.PERMUTE] == 4
