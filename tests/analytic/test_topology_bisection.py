"""The bisection, counted link by link, against formulas and the published figures.

Sources: arXiv:2606.15870 (IEEE Micro 2026), Table 1 (v2, v3, v4, v5p, 7x); Cloud TPU documentation
(v5e, v6e).
"""

from itertools import combinations, product

import pytest

from tpusim.hardware import Topology, legal_shapes, load_chip


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("v2", 1984),
        ("v3", 4480),
        ("v4", 25600),
        ("v5e", 1600),
        ("v5p", 64000),
        ("v6e", 3200),
        ("7x", 76800),
    ],
)
def test_a_pods_bisection_is_the_published_one(name: str, gigabytes: float) -> None:
    chip = load_chip(name)
    pod = Topology.of(chip.generation, chip.pod_shape)
    assert pod.bisection_links * chip.ici_bandwidth == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize(("name", "terabytes"), [("v5e", 51.2), ("v6e", 102.4)])
def test_a_pods_all_reduce_bandwidth_is_chips_times_links(name: str, terabytes: float) -> None:
    chip = load_chip(name)
    pod = Topology.of(chip.generation, chip.pod_shape)
    links = 2 * chip.ici_dimensions
    assert pod.chips * links * chip.ici_bandwidth == pytest.approx(terabytes * 1e12)


def test_a_mesh_has_half_the_bisection_of_a_torus() -> None:
    assert Topology((8, 8), (False, False)).bisection_links == 8
    assert Topology((8, 8), (True, True)).bisection_links == 16
    assert Topology((4, 16), (True, False)).bisection_links == 4
    assert Topology((1, 1), (False, False)).bisection_links == 0


@pytest.mark.parametrize("generation", ["v3", "v4", "v5e", "7x"])
def test_a_regular_torus_has_two_links_a_chip_of_its_smaller_plane(generation: str) -> None:
    """2 x the product of the two smaller lengths; half of it where the longest does not wrap."""
    for dims in legal_shapes(generation)[::7]:
        pod = Topology.of(generation, dims)
        plane = pod.chips // max(dims)
        wraps = pod.wrap[dims.index(max(dims))]
        assert pod.bisection_links == (plane * (1 + wraps) if pod.chips > 1 else 0), dims


@pytest.mark.parametrize(
    ("shape", "links"),
    [("4x4x8", 32), ("4x8x8", 64), ("8x8x16", 128), ("8x16x16", 256), ("12x12x24", 288)],
)
def test_a_twist_doubles_the_bisection(shape: str, links: int) -> None:
    assert Topology.of("v4", shape).bisection_links == links
    assert Topology.of("v4", f"{shape}_twisted").bisection_links == 2 * links


def test_an_odd_torus_is_cut_as_evenly_as_it_can_be() -> None:
    assert Topology((3, 5), (True, True)).bisection_links == 6
    assert Topology((3, 5), (False, False)).bisection_links == 3
    assert Topology((9,), (True,)).bisection_links == 2
    assert Topology((5, 4), (True, True)).bisection_links == 10  # 8 would leave 8 chips and 12


@pytest.mark.parametrize(
    "topology",
    [
        Topology((4, 4), (True, True)),
        Topology((4, 4), (False, True)),
        Topology((2, 8), (False, True)),
        Topology((2, 2, 4), (False, False, False)),
    ],
)
def test_no_half_of_the_chips_at_all_has_a_smaller_cut(topology: Topology) -> None:
    """Over every choice of half of 16 chips, not planes alone."""
    places = list(product(*map(range, topology.dims)))
    links = [
        (start, places.index(end))
        for start, at in enumerate(places)
        for dim, sign in product(range(len(topology.dims)), (1, -1))
        if (end := topology.neighbour(at, dim, sign)) is not None
    ]
    halves = (frozenset((0, *others)) for others in combinations(range(1, 16), 7))
    cuts = (sum(end not in half for start, end in links if start in half) for half in halves)
    assert min(cuts) == topology.bisection_links
