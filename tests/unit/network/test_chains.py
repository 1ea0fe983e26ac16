"""The chains of groups: rings, lines, and rings through several dimensions."""

import numpy as np
import pytest
from hypothesis import given
from toruses import places, torus, whole

from tpusim.hardware import Span, Topology
from tpusim.network import Chain, ChainMove, dimension_chain, groups, one_chain
from tpusim.network.chains import chain_hops, move_loads


def facts(chain: Chain) -> tuple[int, bool, float, int]:
    """Chips, whether it closes, chunks on the busiest link of a gather, and its hops."""
    busiest = float(move_loads(ChainMove.GATHER, chain).max())
    return chain.length, chain.closed, busiest, chain_hops(ChainMove.GATHER, chain)


@given(places())
def test_a_chain_visits_each_chip_of_its_group_once(
    where: tuple[tuple[Span, ...], Topology],
) -> None:
    spans, topology = where
    chain = one_chain(tuple(span for span in spans if span.size > 1), topology)
    found = {frozenset(map(tuple, group)) for group in chain.chips.tolist()}
    expected = {frozenset(map(tuple, group)) for group in groups(spans, topology).tolist()}
    assert found == expected
    assert all(len(group) == chain.length for group in found)


@given(places())
def test_edges_lead_from_each_chip_to_the_next_and_back(
    where: tuple[tuple[Span, ...], Topology],
) -> None:
    spans, topology = where
    chain = one_chain(tuple(span for span in spans if span.size > 1), topology)
    edges = chain.forward.shape[1]
    assert edges == chain.length - (not chain.closed)
    for side in (0, 1):
        starts, moves = (each.reshape(-1, len(topology.dims)) for each in chain.edges(side))
        nexts = np.roll(chain.chips, -1, axis=1)[:, :edges].reshape(-1, len(topology.dims))
        heres = chain.chips[:, :edges].reshape(-1, len(topology.dims))
        origin, goal = (nexts, heres) if side else (heres, nexts)
        assert starts.tolist() == origin.tolist()
        assert end_of(starts, moves, topology, chain.order(side)).tolist() == goal.tolist()


def end_of(starts: np.ndarray, moves: np.ndarray, topology: Topology, order: range) -> np.ndarray:
    """Where moves lead, link by link."""
    ends = []
    for start, move in zip(starts.tolist(), moves.tolist(), strict=True):
        at = tuple(start)
        for dim in order:
            for _ in range(abs(move[dim])):
                moved = topology.neighbour(at, dim, 1 if move[dim] > 0 else -1)
                assert moved is not None
                at = moved
        ends.append(at)
    return np.array(ends)


def test_a_whole_wrapped_dimension_is_a_ring() -> None:
    assert facts(dimension_chain(1, (Span(1, 16),), torus(8, 16, 16))) == (16, True, 7.5, 8)


def test_a_contiguous_part_is_a_line() -> None:
    assert facts(dimension_chain(1, (Span(1, 4),), torus(8, 16, 16))) == (4, False, 3, 3)


def test_a_strided_part_is_a_ring_that_shares_its_links() -> None:
    """Four of 16, every fourth: each link is on the ways of four such rings."""
    assert facts(dimension_chain(1, (Span(1, 4, 4),), torus(8, 16, 16))) == (4, True, 6, 8)


def test_two_parts_of_one_dimension_join() -> None:
    parts = one_chain((Span(0, 4), Span(0, 4, 4)), torus(16))
    assert facts(parts) == facts(one_chain((Span(0, 16),), torus(16)))


@pytest.mark.parametrize(
    ("topology", "closed", "busiest"),
    [
        (torus(8, 16), True, 127 / 2),  # along wrapped rows
        (torus(4, 4, wrap=False), True, 15 / 2),  # a comb: rows, and back through a column
        (torus(2, 2, wrap=False), True, 3 / 2),  # a face of four chips
        (torus(3, 4, wrap=False), True, 11 / 2),  # a comb whose teeth are of even count
        (torus(3, 5, wrap=False), True, 14),  # odd by odd: two edges of the ring share a link
        (torus(2, 2, 2, wrap=False), True, 7 / 2),
        (Topology((4, 16), (True, False)), True, 63 / 2),
    ],
    ids=str,
)
def test_a_ring_through_several_dimensions(
    topology: Topology, closed: bool, busiest: float
) -> None:
    chain = one_chain(whole(topology), topology)
    assert facts(chain)[:3] == (topology.chips, closed, busiest)


def test_a_ring_through_a_plane_crosses_one_link_an_edge() -> None:
    """Half way round, or one more link where a ring turns into the next row."""
    for spans in ((Span(0, 8), Span(2, 16)), (Span(2, 16), Span(0, 8))):
        chain = one_chain(spans, torus(8, 16, 16))
        assert 64 <= chain_hops(ChainMove.GATHER, chain) <= 65


@pytest.mark.parametrize(
    ("move", "ring", "line"),
    [
        (ChainMove.GATHER, [3.5] * 16, [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7]),
        (ChainMove.SCATTER, [3.5] * 16, [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7]),
        (ChainMove.SHIFT, [0.5] * 16, [1] * 14),
        (ChainMove.HALO, [0.5] * 16, [0.5] * 14),
        (ChainMove.SPREAD, [0.5] * 14, [1] * 7),
        (ChainMove.MIRROR, [1, 1, 1, 1, 2, 2] * 2, [1, 1, 2, 2, 3, 3, 4] * 2),
    ],
)
def test_what_links_of_a_ring_and_of_a_line_carry(
    move: ChainMove, ring: list[float], line: list[float]
) -> None:
    """Of 8 chips. A shift from end to end of a line comes back over all of its links."""
    chips = np.arange(8)[None, :, None]
    for expected, wrap in ((ring, True), (line, False)):
        closed = wrap or move is ChainMove.SHIFT
        loads = move_loads(move, Chain.of(chips, closed, torus(8, wrap=wrap)))
        assert sorted(loads[loads > 0].tolist()) == sorted(expected)


def test_a_gather_on_a_line_sends_all_before_a_link_over_it() -> None:
    loads = move_loads(ChainMove.GATHER, dimension_chain(0, (Span(0, 4),), torus(4, wrap=False)))
    assert loads[0].tolist() == [[1, 2, 3, 0], [0, 3, 2, 1]]
    scatter = move_loads(ChainMove.SCATTER, dimension_chain(0, (Span(0, 4),), torus(4, wrap=False)))
    assert scatter[0].tolist() == [[3, 2, 1, 0], [0, 1, 2, 3]]
