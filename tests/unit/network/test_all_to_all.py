"""All-to-alls: closed forms of what their links carry."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from torus import link_loads, shortest_moves, shortest_routes
from toruses import places, torus, whole

from tpusim.hardware import Span, Topology
from tpusim.network import Algorithm, groups, link_shape, on_torus, pattern
from tpusim.network.all_to_all import exchange_loads, ordered_pairs
from tpusim.program import CollectiveKind as Kind


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 16])
def test_a_ring_carries_an_eighth_of_its_chips_bytes(size: int) -> None:
    """n/8, of an odd ring (n - 1/n)/8: as many as go half way round, both ways alike."""
    loads = exchange_loads((Span(0, size),), torus(size))
    np.testing.assert_allclose(loads, (size - (size % 2) / size) / 8)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 16])
def test_a_line_carries_all_before_a_link_to_all_behind_it(size: int) -> None:
    loads = exchange_loads((Span(0, size),), torus(size, wrap=False))[0, 0]
    expected = [(place + 1) * (size - 1 - place) / size for place in range(size)]
    np.testing.assert_allclose(loads, expected)


def test_each_dimension_is_loaded_as_if_alone() -> None:
    loads = exchange_loads((Span(0, 4), Span(1, 8)), torus(4, 8))
    np.testing.assert_allclose(loads[0], 4 / 8)
    np.testing.assert_allclose(loads[1], 8 / 8)


@settings(max_examples=40)
@given(places(32))
def test_links_carry_the_bytes_of_all_pairs_over_all_their_hops(
    where: tuple[tuple[Span, ...], Topology],
) -> None:
    """The sum over links is that of distances, each pair's share of a byte on each of its links."""
    spans, topology = where
    members = groups(on_torus(spans), topology)
    starts, ends = ordered_pairs(members)
    ways = (shortest_routes(tuple(offset), topology)[0] for offset in (ends - starts).tolist())
    hops = sum(sum(map(abs, way)) for way in ways)
    assert exchange_loads(spans, topology).sum() == pytest.approx(hops / members.shape[1])


@settings(max_examples=60)
@given(places(48))
def test_one_line_stands_for_all_that_are_alike(
    where: tuple[tuple[Span, ...], Topology],
) -> None:
    """To the last bit, what messages put on links that walk along every line of the torus."""
    spans, topology = where
    spans, order = on_torus(spans), range(len(topology.dims))
    walked = np.zeros(link_shape(topology))
    for dim in {span.dim for span in spans}:
        lines = groups([span for span in spans if span.dim == dim], topology)
        starts, ends = ordered_pairs(lines)
        shares = np.full(len(starts), 0.5 / lines.shape[1])
        both = (shortest_moves(starts, ends, topology, side) for side in (1, -1))
        walked += sum(link_loads(starts, moves, shares, topology, order) for moves in both)
    np.testing.assert_array_equal(exchange_loads(spans, topology), walked)


@pytest.mark.parametrize("wrap", list(product((True, False), repeat=2)))
def test_the_cut_of_a_slice_carries_half_of_the_bytes_of_half_of_the_chips(
    wrap: tuple[bool, bool],
) -> None:
    topology = Topology((4, 8), wrap)
    loads = exchange_loads(whole(topology), topology)
    cut = loads[1, 0, :, 3].sum() + (loads[1, 1, :, 0].sum() if wrap[1] else 0)
    assert cut == pytest.approx(32 / 4)


def test_the_farthest_chips_hops_count_where_bytes_do_not() -> None:
    """Alone, an all-to-all of no bytes takes as long as the way to the farthest chip."""
    for topology, far in ((torus(4, 8), 6), (torus(4, 8, wrap=False), 10), (torus(5), 2)):
        found = pattern(Kind.ALL_TO_ALL, Algorithm.PAIRS, whole(topology), topology)
        assert max(found.hops, *(hops for _, hops in found.paths)) == far
