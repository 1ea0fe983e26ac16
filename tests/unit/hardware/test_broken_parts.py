"""Broken links and switches: what is written, printed and refused, and which links are out."""

import pickle
from typing import Any

import pytest

from tpusim.base import HardwareError
from tpusim.hardware import BrokenLink, BrokenParts, BrokenSwitch, Slice, degraded, link_ends

ALL = {
    "links": [{"between": [[7, 0, 0], [0, 0, 0]], "slice": 1}],
    "switches": [{"dim": 2, "at": [1, 2]}],
}


def pod(**broken: Any) -> Slice:
    return Slice("v4", "8x16x16", num_slices=2, broken=broken)


def test_broken_parts_are_part_of_a_slice_and_print_with_it() -> None:
    assert str(pod(**ALL)) == (
        "v4:8x16x16 x 2 slices, broken: switch z at 1,2; link 7,0,0 of slice 1 to 0,0,0"
    )
    assert pod(**ALL) != pod()
    assert pod(**ALL).healthy == pod() == Slice("v4", "8x16x16", num_slices=2)
    assert pickle.loads(pickle.dumps(pod(**ALL))) == pod(**ALL)
    assert hash(pod(**ALL)) == hash(pod(**ALL))
    assert pod(**ALL).changed(num_slices=3).broken == pod(**ALL).broken


def test_what_is_written_reads_back() -> None:
    broken = pod(**ALL).broken
    assert broken == pod(**broken.written).broken == Slice("v4", "8x16x16", 2, broken=broken).broken
    assert broken.links == (BrokenLink(((7, 0, 0), (0, 0, 0)), 1),)
    assert broken.switches == (BrokenSwitch(2, (1, 2)),)
    assert not BrokenParts()
    assert pod(links=[]) == pod()


@pytest.mark.parametrize("shape", ["4x4x4", "4x4x8_twisted", "4x8x8_twisted", "8x16x16"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_switch_carries_one_line_in_sixteen_every_four_hops(shape: str, dim: int) -> None:
    switched = degraded(Slice("v4", shape), "switch", dim)
    topology = switched.topology
    out = switched.broken.directed(0, topology)
    lines = {tuple(at for d, at in enumerate(chip) if d != dim) for _, _, chip in out}
    assert 16 * len(lines) * topology.dims[dim] == topology.chips
    assert {tuple(at % 4 for at in line) for line in lines} == {(1, 2)}
    cubes = topology.chips // 64
    assert len(out) == 2 * cubes
    for along, side, at in out:
        assert along == dim
        end = topology.neighbour(at, dim, -1 if side else 1)
        assert end is not None
        assert (dim, 1 - side, end) in out


@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_a_representative_link_is_one_of_those_of_the_switch(dim: int | None) -> None:
    healthy = Slice("v5p", "8x8x16", num_slices=2)
    link, switch = (degraded(healthy, fault, dim) for fault in ("link", "switch"))
    (one,) = link.broken.links
    out = switch.broken.directed(0, switch.topology)
    assert set(link_ends(*one.between, link.topology)) < out
    assert not link.broken.directed(1, link.topology)
    assert degraded(switch, "link", dim) == link
    if dim is None:
        assert "switch z" in str(switch)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (0.5, "broken is 0.5; write a table of lists, such as switches = "),
        ({"link": []}, "broken has no 'link'; did you mean 'links'"),
        ({"links": 5}, "broken.links is 5; write a list, such as"),
        ({"links": [5]}, r"broken.links\[0\] is 5; write \{ between"),
        ({"links": [{}]}, r"broken.links\[0\] has no 'between'; write"),
        ({"switches": [{"dim": 3, "at": [0, 0]}]}, r"dim is 3; write a dimension: 0, 1 or 2"),
        ({"switches": [{"dim": 0, "at": [0, 4]}]}, r"at is \[0, 4\]; write a position on the 4x4"),
        ({"switches": [{"dim": 0, "at": 3}]}, "at is 3; write a position on the 4x4 face"),
        ({"switches": [{"dim": 0, "at": [0, 0], "slice": 2}]}, "slice is 2, and the machine has 2"),
        ({"links": [{"between": [[0, 0, 0], [2, 0, 0]]}]}, "which no link joins; write a neighb"),
        ({"links": [{"between": [[0, 0, 0], [1, 0, 0]]}]}, "an electrical link inside a cube, whi"),
        ({"switches": 2 * [{"dim": 0, "at": [0, 0]}]}, "which the list has already; write each"),
        (
            {"switches": [{"dim": 0, "at": [y, z]} for y in range(4) for z in range(4)]},
            "whose links have no way round them of three links .*; leave out some",
        ),
    ],
)
def test_a_mistake_is_one_sentence(broken: Any, message: str) -> None:
    with pytest.raises(HardwareError, match=message) as error:
        Slice("v4", "8x16x16", num_slices=2, broken=broken)
    assert str(error.value).count(". ") == 0


@pytest.mark.parametrize("name", ["v5e:16x16", "v6e:16x16", "v4:2x2x4", "v5p:2x4x4", "v3:16x16"])
@pytest.mark.parametrize("fault", ["link", "switch"])
def test_a_slice_that_does_not_route_around_ends(name: str, fault: str) -> None:
    chip, shape = name.split(":")
    with pytest.raises(HardwareError, match=rf"{name} ends with its first broken link: only slic"):
        degraded(Slice(chip, shape), fault)


def test_a_fault_and_its_dimension_are_checked() -> None:
    with pytest.raises(HardwareError, match="the fault is 'swich'; did you mean 'switch'"):
        degraded(Slice("v4", "4x4x4"), "swich")
    with pytest.raises(HardwareError, match="dim is 3; write a dimension of 4x4x4, from 0"):
        degraded(Slice("v4", "4x4x4"), "link", 3)
