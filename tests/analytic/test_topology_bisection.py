"""The pods' bisection bandwidth by formula, against the published figures.

Sources: arXiv:2606.15870 (IEEE Micro 2026), Table 1 (v2, v3, v4, v5p, 7x); Cloud TPU documentation
(v5e, v6e).
"""

import pytest

from tpusim.hardware import Topology, load_chip


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
