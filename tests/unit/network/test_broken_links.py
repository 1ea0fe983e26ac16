"""Routes around broken links, and what they do to rings and all-to-alls; closed forms."""

from itertools import product

import numpy as np
import pytest
from extent import sample, thorough

from tpusim.costs import CollectiveRoute, SliceLinks, route
from tpusim.hardware import Slice, Span, degraded
from tpusim.network import broken_links, groups, link_numbers, messages, rerouted_messages
from tpusim.network.paths import walk
from tpusim.network.wild_first import aside, link_count, prefixes, wild_first_ways
from tpusim.program import CollectiveKind

SHAPES = ("4x4x4", "4x4x8", "8x8x8", "4x4x8_twisted", "4x8x8_twisted")


def out_of(pod: Slice) -> frozenset[int]:
    return link_numbers(pod.broken.directed(0, pod.topology), pod.topology)


def end_of(way: list[int], start: tuple[int, ...], pod: Slice) -> tuple[int, ...]:
    """Follow a route link by link; each must leave the chip that the one before led to."""
    topology, at = pod.topology, start
    for link in way:
        if link < link_count(topology):
            number, place = divmod(link, topology.chips)
            assert at == tuple(map(int, np.unravel_index(place, topology.dims)))
            found = topology.neighbour(at, number // 2, -1 if number % 2 else 1)
            assert found is not None
            at = found
    return at


def rings(pod: Slice, dim: int, kind: CollectiveKind) -> list[tuple[CollectiveRoute, bool]]:
    """The route of each ring along a dimension, and whether it goes over a link that is out."""
    spans = (Span(dim, pod.topology.dims[dim]),)
    healthy, links = route(kind, spans, pod.topology), SliceLinks.of(pod, 0)
    out = {at for _, _, at in pod.broken.directed(0, pod.topology)}
    return [
        (links.route(healthy, ring), any(tuple(chip) in out for chip in ring.tolist()))
        for ring in groups(spans, pod.topology)
    ]


@pytest.mark.parametrize("shape", ["4x4x8", thorough("8x8x8"), thorough("4x8x8_twisted")])
@pytest.mark.parametrize("dims", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL])
def test_groups_that_are_not_asked_have_the_pattern_of_a_healthy_torus(
    shape: str, dims: tuple[int, ...], kind: CollectiveKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = Slice("v4", shape, broken={"switches": [{"dim": 1, "at": [2, 3]}]})
    spans = tuple(Span(dim, pod.topology.dims[dim]) for dim in dims)
    healthy, links = route(kind, spans, pod.topology), SliceLinks.of(pod, 0)
    members = groups(spans, pod.topology)
    found = [links.route(healthy, group) for group in members]
    sent = broken_links._sent
    everywhere = np.ones(pod.topology.dims, dtype=np.bool_)
    monkeypatch.setattr(
        broken_links, "_sent", lambda *asked: sent(*asked)._replace(changed=everywhere)
    )
    assert [links.route(healthy, group) for group in members] == found


@pytest.mark.parametrize("shape", ["4x4x4", "4x4x8", "8x8x8", "4x8x16"])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(
    "kind",
    [CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE, CollectiveKind.PERMUTE],
)
def test_one_ring_in_sixteen_is_hit_and_runs_at_half(
    shape: str, dim: int, kind: CollectiveKind
) -> None:
    """Its bytes double those of the ring that lends its links, which is slowed as much."""
    pod = degraded(Slice("v4", shape), "switch", dim)
    healthy = route(kind, (Span(dim, pod.topology.dims[dim]),), pod.topology)
    found = rings(pod, dim, kind)
    hit = [each for each, broken in found if broken]
    others = [each for each, broken in found if not broken]
    assert 16 * len(hit) == len(found)
    assert {each.share for each in hit} == {2 * healthy.share}
    slowed = [each for each in others if each != healthy]
    assert len(slowed) == len(hit)
    assert {each.share for each in slowed} == {2 * healthy.share}
    assert {each.hops for each in slowed} == {healthy.hops}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_neighbours_whose_link_is_broken_are_three_hops_apart(shape: str, dim: int) -> None:
    pod = degraded(Slice("v4", shape), "switch", dim)
    topology, out = pod.topology, out_of(pod)
    for along, side, at in sorted(pod.broken.directed(0, topology)):
        end = topology.neighbour(at, along, -1 if side else 1)
        (way,) = aside(np.array([at]), np.array([end]), out, topology).tolist()
        links = [link for link in way if link < link_count(topology)]
        dims = [link // topology.chips // 2 for link in links]
        assert out.isdisjoint(links)
        assert end_of(way, at, pod) == end
        assert dims == [dims[0], dim, dims[0]]
        assert dims[0] != dim


def test_every_wild_first_way_leads_to_its_end() -> None:
    """Up to one wild hop a dimension, in any order, then the longer dimensions first."""
    assert len(prefixes(3)) == 1 + 6 + 24 + 48
    for shape in ("4x4x8", "4x4x8_twisted"):
        pod = degraded(Slice("v4", shape), "switch")
        chips = list(product(*map(range, pod.topology.dims)))
        starts, ends = chips[5::37], chips[::37][: len(chips[5::37])]
        ways = wild_first_ways(np.array(starts), np.array(ends), pod.topology)
        for start, end, every in zip(starts, ends, ways.tolist(), strict=True):
            assert {end_of(way, start, pod) for way in every} == {end}


def test_half_way_round_the_sign_is_that_of_the_parity() -> None:
    pod = Slice("v4", "4x4x8")
    for at, side in ((0, 0), (1, 1), (2, 0), (3, 1)):
        start, end = np.array([[at, 0, 0]]), np.array([[(at + 2) % 4, 0, 0]])
        first = wild_first_ways(start, end, pod.topology)[0, 0, 0]
        assert divmod(int(first) // pod.topology.chips, 2) == (0, side)


@pytest.mark.parametrize("shape", sample(SHAPES, 4))
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_TO_ALL, thorough(CollectiveKind.ALL_GATHER)])
def test_rerouted_messages_deliver_the_same_bytes(shape: str, kind: CollectiveKind) -> None:
    pod = degraded(Slice("v4", shape), "switch", 1)
    if kind is CollectiveKind.ALL_TO_ALL and pod.chips > 128:
        return
    spans = tuple(Span(dim, size) for dim, size in enumerate(pod.topology.dims))
    algorithm = "pairs" if kind is CollectiveKind.ALL_TO_ALL else "nd"
    healthy, out = messages(kind, algorithm, spans, pod.topology), out_of(pod)
    evenly = kind is CollectiveKind.ALL_TO_ALL
    found = rerouted_messages(healthy, pod.topology, out, evenly=evenly)
    cut = 0
    for before, after in zip(healthy, found, strict=True):
        assert (before.share, before.after) == (after.share, after.after)
        assert out.isdisjoint(after.links)
        if out.isdisjoint(before.links):
            assert before is after
            continue
        place = before.links[0] % pod.topology.chips
        start = tuple(map(int, np.unravel_index(place, pod.topology.dims)))
        ends = [end_of(list(each.links), start, pod) for each in (before, after)]
        assert ends[0] == ends[1]
        cut += 1
    assert cut


@pytest.mark.parametrize("size", [2, 4])
def test_an_exchange_that_crosses_no_broken_link_stays_as_it_is(size: int) -> None:
    """Of the rings of z, only those whose links are out or are lent take longer."""
    pod = degraded(Slice("v4", "8x8x8"), "link", 2)
    spans = (Span(2, size, 1),)
    healthy, links = route(CollectiveKind.ALL_TO_ALL, spans, pod.topology), SliceLinks.of(pod, 0)
    found = [links.route(healthy, each) for each in groups(spans, pod.topology)]
    assert all(each == healthy for each in found)


def test_walkers_are_those_of_the_paths() -> None:
    """The route in the order of the dimensions is the one that `walk` takes."""
    topology = Slice("v4", "4x4x8").topology
    start, end = np.array([[0, 1, 2]]), np.array([[1, 3, 5]])
    way = wild_first_ways(start, end, topology)[0, 0].tolist()
    moves = np.array([[1, -2, 3]])
    walked = [int(links[0]) for _, links in walk(start, moves, topology, (2, 0, 1))]
    assert [link for link in way if link < link_count(topology)] == walked
