"""Topologies: what is refused and with which words, neighbours, twist."""

import re
from itertools import product

import numpy as np
import pytest
from extent import examples
from hypothesis import given
from hypothesis import strategies as st

from tpusim.base import HardwareError
from tpusim.hardware import Topology, default_shape, legal_shapes, parse_shape


def test_a_shape_is_lengths_joined_by_x() -> None:
    assert parse_shape("8x16x16") == (8, 16, 16)
    assert parse_shape("8") == (8,)


@pytest.mark.parametrize(
    "text", ["", "8x", "x8", "8X16", "0x4", "8x16x16x2", "08x8", "8 x 8", "-4x4", "4x٤", "9999999"]
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(HardwareError, match="write chips along each dimension, as in '8x16x16'"):
        parse_shape(text)


@pytest.mark.parametrize(
    ("generation", "shape", "sentence"),
    [
        ("v5p", "16x8x8", "non-decreasing order .* with 1024 chips write 8x8x16, "),
        ("v4", "4x4x5", "multiples of 4 in any order .* nearest are 2x4x4 .32 chips. and 4x4x4"),
        ("v4", "16x16x32", "at most 4096 chips"),
        ("v5e", "16x32", "v5e slices are 1x1, 2x2, .* nearest are 8x16 .128 chips., 16x16"),
        ("v5e", "2x32", "with 64 chips write 8x8"),
        ("v5e", "4x4x4", "with 64 chips write 8x8"),
        ("v4", "8x8", "with 64 chips write 4x4x4"),
        ("v4", "1x1x1", "nearest are 2x2x1"),
        ("v9", "4x4x4", "no topology rules for the generation 'v9'; valid are 7, 7x, v2"),
    ],
)
def test_an_illegal_shape_names_the_rule_and_the_nearest(
    generation: str, shape: str, sentence: str
) -> None:
    with pytest.raises(HardwareError, match=sentence):
        Topology.of(generation, shape)


def test_v4_takes_any_order_and_wraps_alike() -> None:
    assert Topology.of("v4", "16x16x8").wrap == (True, True, True)
    assert Topology.of("v4", "4x2x2").wrap == (False, False, False)
    with pytest.raises(HardwareError, match="non-decreasing"):
        Topology.of("7x", "24x16x24")


def test_2d_slices_wrap_at_the_pods_length() -> None:
    assert Topology.of("v3", "16x16").wrap == (False, False)
    assert Topology.of("v3", "16x32").wrap == (False, True)
    assert Topology.of("v2", "16x16").wrap == (True, True)
    assert Topology.of("v6e", "16x8").wrap == (True, False)


def test_a_twist_where_there_can_be_none_lists_the_eligible_shapes() -> None:
    eligible = "4x4x8, 4x8x8, 8x8x16, 8x16x16 or 12x12x24"
    with pytest.raises(HardwareError, match=re.escape(eligible)):
        Topology.of("v4", "8x8x8", twisted=True)
    with pytest.raises(HardwareError, match="7x has no twisted tori; only v4 and v5p have"):
        Topology.of("7x", "4x4x8", twisted=True)
    with pytest.raises(HardwareError, match="n x n x 2n or n x 2n x 2n"):
        Topology((4, 4, 8), (True, True, False), twisted=True)


@pytest.mark.parametrize(("dims", "wrap"), [((), ()), ((4, 0), (True, True)), ((4, 4), (True,))])
def test_a_topology_that_cannot_be_is_refused(
    dims: tuple[int, ...], wrap: tuple[bool, ...]
) -> None:
    with pytest.raises(HardwareError, match="cannot be; write one to three lengths"):
        Topology(dims, wrap)


@pytest.mark.parametrize(
    ("generation", "chips", "dims"),
    [
        ("v5p", 512, (8, 8, 8)),
        ("v5p", 256, (4, 8, 8)),
        ("v4", 2048, (8, 16, 16)),
        ("v4", 16, (2, 2, 4)),
        ("v5e", 128, (8, 16)),
        ("7x", 64, (4, 4, 4)),
        ("7x", 1, (1, 1, 1)),
    ],
)
def test_the_default_shape_is_the_most_cube_like(
    generation: str, chips: int, dims: tuple[int, ...]
) -> None:
    assert default_shape(generation, chips) == dims


def test_a_count_without_a_slice_names_its_neighbours() -> None:
    with pytest.raises(HardwareError, match=r"no slice of 100 chips; nearest are 4x4x4 .* 4x4x8"):
        default_shape("v5p", 100)


TORI = st.sampled_from(
    [Topology.of("v4", dims) for dims in legal_shapes("v4") if max(dims) <= 16]
    + [Topology.of("v5e", dims) for dims in legal_shapes("v5e")]
    + [Topology.of("v4", shape, twisted=True) for shape in ("4x4x8", "4x8x8", "8x4x8")]
)


@given(TORI, st.data())
def test_a_link_leads_back(topology: Topology, data: st.DataObject) -> None:
    at = tuple(data.draw(st.integers(0, length - 1)) for length in topology.dims)
    dim = data.draw(st.integers(0, len(topology.dims) - 1))
    there = topology.neighbour(at, dim, 1)
    if there is None:
        assert at[dim] == topology.dims[dim] - 1
        assert not topology.wrap[dim]
    else:
        assert topology.neighbour(there, dim, -1) == at


def test_the_short_wrap_of_a_twisted_torus_shifts_along_the_long_dimensions() -> None:
    one_long = Topology.of("v4", "4x4x8", twisted=True)
    assert one_long.neighbour((3, 1, 1), 0, 1) == (0, 1, 5)
    assert one_long.neighbour((1, 1, 7), 2, 1) == (1, 1, 0)
    two_long = Topology.of("v4", "4x8x8", twisted=True)
    assert two_long.neighbour((3, 1, 6), 0, 1) == (0, 5, 2)
    assert two_long.neighbour((3, 7, 6), 1, 1) == (3, 0, 6)


@examples(40)
@given(TORI)
def test_many_steps_at_once_are_single_ones(topology: Topology) -> None:
    every = list(product(*map(range, topology.dims)))
    for dim, sign in product(range(len(topology.dims)), (1, -1)):
        ends = {at: topology.neighbour(at, dim, sign) for at in every}
        starts = [at for at in every if ends[at] is not None]
        places = np.array(starts, int).reshape(1, -1, len(topology.dims))
        found = topology.step(places, dim, sign)
        assert found.tolist() == [[list(ends[at] or ()) for at in starts]]


def test_every_chip_of_a_twisted_torus_has_six_neighbours() -> None:
    topology = Topology.of("v4", "4x4x8", twisted=True)
    for at in product(range(4), range(4), range(8)):
        around = {topology.neighbour(at, dim, step) for dim in range(3) for step in (1, -1)}
        assert len(around - {None, at}) == 6
