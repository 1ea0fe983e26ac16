"""What a collective puts on the busiest links, in closed form."""

import pytest
from toruses import torus, whole

from tpusim.hardware import Span, Topology
from tpusim.network import Algorithm, Pattern, link_loads_of, pattern
from tpusim.network.algorithm import schedule
from tpusim.program import CollectiveKind as Kind

RING, ND, PAIRS = Algorithm.RING, Algorithm.ND, Algorithm.PAIRS


def of(kind: Kind, how: Algorithm, spans: tuple[Span, ...], topology: Topology) -> Pattern:
    return pattern(kind, how, spans, topology)


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
def test_a_ring_moves_half_of_all_other_shards_each_way(size: int) -> None:
    found = of(Kind.ALL_GATHER, RING, (Span(0, size),), torus(size))
    share = pytest.approx((size - 1) / size / 2)
    assert found.links == (("ici:x+", share), ("ici:x-", share))
    assert (found.hops, found.paths) == (size // 2, ((share, size // 2),))


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
def test_a_line_moves_all_other_shards_over_its_last_links(size: int) -> None:
    found = of(Kind.ALL_GATHER, RING, (Span(0, size),), torus(size, wrap=False))
    assert dict(found.links) == pytest.approx(dict.fromkeys(("ici:x+", "ici:x-"), 1 - 1 / size))
    assert found.hops == size - 1


@pytest.mark.parametrize("dims", [(4, 4), (4, 8), (4, 4, 8), (8, 8, 8), (2, 16)])
@pytest.mark.parametrize("wrap", [True, False])
def test_all_dimensions_at_once_share_the_bytes(dims: tuple[int, ...], wrap: bool) -> None:
    """Each colour spends as long on its links: of equal dimensions, k times one ring's speed."""
    topology = torus(*dims, wrap=wrap)
    found = of(Kind.ALL_GATHER, ND, whole(topology), topology)
    phases = schedule(Kind.ALL_GATHER, ND, whole(topology), topology)
    assert sum(stage.chain.length * stage.chunk for stage in phases[-1]) == pytest.approx(1)
    times = [sum(stage.busiest for stage in colour) for colour in zip(*phases, strict=True)]
    assert times == pytest.approx([times[0]] * len(dims))
    if len(set(dims)) == 1:
        ideal = (1 - 1 / topology.chips) / len(dims) / (2 if wrap else 1)
        assert found.paths[0][0] == pytest.approx(ideal)
        assert found.hops == sum(dim // 2 if wrap else dim - 1 for dim in dims)


@pytest.mark.parametrize("wrap", [(True, False), (False, True)])
def test_colours_have_shares_that_let_them_end_together(wrap: tuple[bool, bool]) -> None:
    """Where a ring meets a line, the colour that starts along the line is slower, and has less."""
    topology = Topology((4, 8), wrap)
    phases = schedule(Kind.ALL_GATHER, ND, whole(topology), topology)
    colours = list(zip(*phases, strict=True))
    first, second = (sum(stage.busiest for stage in colour) for colour in colours)
    assert first == pytest.approx(second)
    parts = [colour[-1].chunk * colour[-1].chain.length for colour in colours]
    assert sum(parts) == pytest.approx(1)
    assert parts[0] != pytest.approx(parts[1])


def test_a_reduction_goes_the_way_of_a_gather_back() -> None:
    """Its first phase passes the largest chunks, and the gather after it starts with the least."""
    topology = torus(4, 6, 8)
    phases = schedule(Kind.ALL_REDUCE, ND, whole(topology), topology)
    for colour in zip(*phases, strict=True):
        passed = [(stage.chain, stage.chunk) for stage in colour]
        assert passed == passed[::-1]
        sizes = [chunk for _, chunk in passed]
        assert sizes[:3] == sorted(sizes[:3], reverse=True)
        assert sizes[0] == pytest.approx(sizes[1] * colour[1].chain.length)


@pytest.mark.parametrize("how", [RING, ND])
def test_an_all_reduce_is_a_scatter_and_a_gather(how: Algorithm) -> None:
    topology = Topology((4, 6), (True, False))
    both, scatter, gather = (
        of(kind, how, whole(topology), topology)
        for kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
    )
    assert both.hops == scatter.hops + gather.hops
    assert both.paths[0][0] == pytest.approx(scatter.paths[0][0] + gather.paths[0][0])
    one, other = (
        link_loads_of(kind, how, whole(topology), topology)
        for kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
    )
    reversed_ = link_loads_of(Kind.ALL_REDUCE, how, whole(topology), topology)
    assert reversed_ == pytest.approx(one + other)


@pytest.mark.parametrize(
    ("how", "wrap", "links", "hops"),
    [
        (Algorithm.NEIGHBOURS, True, 0.5, 1),
        (Algorithm.NEIGHBOURS, False, 1.0, 7),
        (Algorithm.HALO, True, 0.5, 1),
        (Algorithm.HALO, False, 0.5, 1),
    ],
)
def test_a_permute_sends_half_each_way(how: Algorithm, wrap: bool, links: float, hops: int) -> None:
    """On a line the chips at its ends are neighbours, all of it apart; but not for a halo."""
    found = of(Kind.PERMUTE, how, (Span(0, 8),), torus(8, wrap=wrap))
    assert dict(found.links) == {"ici:x+": links, "ici:x-": links}
    assert found.hops == hops


def test_a_permute_onward_sends_all_one_way_and_back_along_a_line() -> None:
    ring, line = (
        of(Kind.PERMUTE, Algorithm.ONWARD, (Span(0, 8),), torus(8, wrap=wrap)) for wrap in (1, 0)
    )
    assert (dict(ring.links), ring.hops) == ({"ici:x+": 1.0}, 1)
    assert (dict(line.links), line.hops) == ({"ici:x+": 1.0, "ici:x-": 1.0}, 7)


def test_a_broadcast_goes_half_each_way_round_and_all_along_a_line() -> None:
    ring, line = (of(Kind.BROADCAST, RING, (Span(0, 8),), torus(8, wrap=wrap)) for wrap in (1, 0))
    assert (dict(ring.links), ring.hops) == ({"ici:x+": 0.5, "ici:x-": 0.5}, 7)
    assert (dict(line.links), line.hops) == ({"ici:x+": 1.0}, 7)


@pytest.mark.parametrize(
    ("kind", "how", "spans", "text"),
    [
        (Kind.ALL_GATHER, RING, (Span(1, 16), Span(2, 16)), "one ring of 256 through y,z"),
        (Kind.ALL_GATHER, RING, (Span(1, 4),), "one line of 4 through y"),
        (Kind.ALL_REDUCE, ND, (Span(1, 16), Span(2, 16)), "all of y,z at once, 2 colours"),
        (Kind.ALL_TO_ALL, PAIRS, (Span(0, 8),), "every pair of 8 through x by shortest ways"),
        (Kind.PERMUTE, Algorithm.NEIGHBOURS, (Span(0, 8),), "neighbours on a ring of 8 through x"),
        (Kind.PERMUTE, Algorithm.HALO, (Span(0, 8),), "neighbours on a line of 8 through x"),
        (Kind.PERMUTE, Algorithm.ONWARD, (Span(0, 8),), "onward on a ring of 8 through x"),
    ],
)
def test_it_says_what_it_does(
    kind: Kind, how: Algorithm, spans: tuple[Span, ...], text: str
) -> None:
    assert of(kind, how, spans, torus(8, 16, 16)).text == text
