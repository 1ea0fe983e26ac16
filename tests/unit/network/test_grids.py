"""Groups that are grids: lines counted once give what walking every edge of every group gives."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from toruses import places, torus

from tpusim.hardware import Span, Topology
from tpusim.network import (
    Algorithm,
    Chain,
    ChainMove,
    dimension_sizes,
    groups,
    is_ring,
    on_torus,
    one_chain,
    pattern,
)
from tpusim.network.chains import best_chain, edge_weights
from tpusim.network.grids import Grid, tours
from tpusim.network.groups import merged
from tpusim.program import CollectiveKind

Place = tuple[tuple[Span, ...], Topology]


def regular(where: Place) -> bool:
    """The torus has no twist, and the group several chips."""
    return not where[1].twisted and bool(on_torus(where[0]))


def walked(chain: Chain) -> Chain:
    """The same chain without what is known of its groups."""
    return replace(chain, grid=None, tour=None)


@given(places().filter(regular))
def test_lines_of_a_grid_carry_what_walking_its_edges_puts_on_them(where: Place) -> None:
    found = one_chain(on_torus(where[0]), where[1])
    for chain in (found, found.passed_on(closed=True), found.passed_on(closed=False)):
        for move in ChainMove:
            weights = edge_weights(move, chain)
            loads = walked(chain).loads(weights)
            assert (chain.loads(weights) == loads).all()
            assert chain.busiest(weights) == loads.max()
            assert chain.busiest(weights, alone=True) == chain.first.loads(weights).max()


@given(places().filter(regular))
def test_the_best_chain_of_a_grid_is_the_best_of_all_that_are_walked(where: Place) -> None:
    spans, topology = on_torus(where[0]), where[1]
    chips = groups(sorted(spans, key=lambda span: (span.dim, -span.stride)), topology)
    best = best_chain(
        chain
        for tour in tours(Grid.of(spans, topology).sizes)
        for chain in Chain.variants(chips[:, tour.order], topology)
    )
    found = one_chain(spans, topology)
    assert found.chips.tolist() == best.chips.tolist()
    assert found.forward.tolist() == best.forward.tolist()
    assert (found.closed, found.same_order) == (best.closed, best.same_order)


@given(places())
def test_a_ring_carries_half_the_bytes_on_every_link_of_a_permute(where: Place) -> None:
    """To both neighbours, on a group over several dimensions."""
    spans, topology = on_torus(where[0]), where[1]
    assume(len(dimension_sizes(spans)) > 1)
    shifted = pattern(CollectiveKind.PERMUTE, Algorithm.NEIGHBOURS, spans, topology)
    assert is_ring(spans, topology) == (max(load for _, load in shifted.links) == 0.5)


@given(places())
def test_spans_that_are_joined_make_the_same_groups(where: Place) -> None:
    spans, topology = on_torus(where[0]), where[1]
    found, joined = (
        {frozenset(map(tuple, group)) for group in groups(each, topology).tolist()}
        for each in (spans, merged(spans))
    )
    assert found == joined
    ends = {(span.dim, span.size * span.stride) for span in merged(spans)}
    assert not ends & {(span.dim, span.stride) for span in merged(spans)}


@pytest.mark.parametrize(
    ("span", "loads"),
    [
        (Span(0, 8), [1.0] * 8),
        (Span(0, 4, 2), [2.0] * 8),  # every second chip: two rings
        (Span(0, 2, 4), [4.0] * 8),  # opposite chips: four rings, half of each on either side
        (Span(0, 4), [2.0, 2.0, 2.0, 0.0] * 2),  # neighbours: the last edge returns over all
    ],
)
def test_edges_of_closed_chains_along_a_dimension(span: Span, loads: list[float]) -> None:
    """Of 8 chips that wrap, half a byte each way on every edge: the edges over each cable."""
    chain = one_chain((span,), torus(8)).passed_on(closed=True)
    half = np.full(span.size, 0.5)
    found = chain.loads((half, half))
    assert (found[0, 0] + np.roll(found[0, 1], -1)).tolist() == loads
