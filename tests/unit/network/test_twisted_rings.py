"""Rings of a twisted torus, and what a gather along them brings."""

from itertools import permutations
from math import prod

import pytest

from tpusim.hardware import Span, Topology
from tpusim.network import Algorithm, Chain, pattern
from tpusim.network.schedule import orbit_chains
from tpusim.program import CollectiveKind

Place = tuple[int, ...]
SHAPES = [("4x4x8", True), ("4x8x8", True), ("8x8x16", True), ("4x4x8", False), ("4x8x16", False)]


def gathered(chains: list[Chain], topology: Topology) -> dict[Place, set[Place]]:
    """Whose chunks each chip holds when each chain has passed them half way round both ways."""
    held: dict[Place, set[Place]] = {}
    for chain in chains:
        before = held
        held = {}
        for ring in chain.chips.tolist():
            places = [tuple(place) for place in ring]
            for at, place in enumerate(places):
                reach = range(-(chain.chunks // 2), chain.chunks // 2 + 1)
                near = {places[(at + step) % len(places)] for step in reach}
                held[place] = set().union(*(before.get(other, {other}) for other in near))
    assert len(held) == topology.chips
    return held


@pytest.mark.parametrize(("shape", "twisted"), SHAPES)
def test_a_gather_along_the_rings_brings_every_chunk_to_every_chip(
    shape: str, twisted: bool
) -> None:
    topology = Topology.of("v4", shape, twisted)
    for order in permutations(range(3)):
        chains = orbit_chains(order, topology)
        assert prod(chain.chunks for chain in chains) == topology.chips
        everywhere = gathered(chains, topology)
        assert all(len(held) == topology.chips for held in everywhere.values())


def test_a_short_dimension_closes_after_twice_its_length() -> None:
    chains = orbit_chains((0, 1, 2), Topology.of("v4", "4x4x8", twisted=True))
    assert [(chain.length, chain.chunks) for chain in chains] == [(8, 8), (8, 4), (8, 4)]
    plain = orbit_chains((0, 1, 2), Topology.of("v4", "4x4x8"))
    assert [(chain.length, chain.chunks) for chain in plain] == [(4, 4), (4, 4), (8, 8)]


@pytest.mark.parametrize("shape", ["4x4x8", "4x8x8", "8x8x16"])
def test_a_twist_loads_all_links_alike(shape: str) -> None:
    """So all six links of a chip are busy all the time: (N-1)/N over six, which nothing beats."""
    topology = Topology.of("v4", shape, twisted=True)
    spans = tuple(Span(dim, size) for dim, size in enumerate(topology.dims))
    found = pattern(CollectiveKind.ALL_GATHER, Algorithm.ND, spans, topology)
    best = (topology.chips - 1) / topology.chips / 6
    assert [load for _, load in found.links] == pytest.approx([best] * 6)
    assert found.paths == ((pytest.approx(best), found.hops),)


@pytest.mark.parametrize(("shape", "gain"), [("4x4x8", 1.157), ("4x8x8", 1.125)])
def test_a_twist_gathers_faster_than_a_torus_of_unequal_sides(shape: str, gain: float) -> None:
    plain, turned = (Topology.of("v4", shape, twist) for twist in (False, True))
    spans = tuple(Span(dim, size) for dim, size in enumerate(plain.dims))
    one, other = (
        pattern(CollectiveKind.ALL_GATHER, Algorithm.ND, spans, each) for each in (plain, turned)
    )
    assert one.paths[0][0] / other.paths[0][0] == pytest.approx(gain, abs=1e-3)
    assert other.hops < one.hops
