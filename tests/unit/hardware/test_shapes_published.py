"""Every published slice shape: legal, chips, wraparound, twist, name. 1059 rows.

`topologies.csv` was generated from XPK's rules and checked against MaxText's map of 223 shapes.
"""

import csv
from collections import defaultdict
from math import prod
from pathlib import Path

import pytest
from inputs import catalogue_rules

from tpusim.base import HardwareError
from tpusim.hardware import Topology, can_twist, legal_shapes, parse_shape
from tpusim.hardware.slices import slice_name

ROWS = list(csv.DictReader(Path(__file__).with_name("topologies.csv").open()))
KEYS = {"tpu7x": "7x", "tpu7": "7"}
WRAP = {
    "all": lambda dims: (True,) * len(dims),
    "none": lambda dims: (False,) * len(dims),
    "axis of 16 only": lambda dims: tuple(length == 16 for length in dims),
}


def _generation(row: dict[str, str]) -> str:
    return KEYS.get(row["gen"], row["gen"])


def test_the_list_is_whole() -> None:
    assert len(ROWS) == 1059


@pytest.mark.parametrize("gen", sorted({row["gen"] for row in ROWS}))
def test_the_rules_make_exactly_the_published_shapes(gen: str) -> None:
    listed = {parse_shape(row["shape"]) for row in ROWS if row["gen"] == gen}
    assert set(legal_shapes(KEYS.get(gen, gen))) == listed


def test_every_shape_has_its_chips_wraparound_and_name() -> None:
    for row in ROWS:
        generation = _generation(row)
        topology = Topology.of(generation, row["shape"])
        assert str(topology) == row["shape"]
        assert topology.chips == int(row["chips"]), row
        assert topology.wrap == WRAP[row["wraparound"]](topology.dims), row
        assert slice_name(generation, topology.chips) == row["slice_name"], row


def test_exactly_the_listed_shapes_can_be_twisted() -> None:
    for row in ROWS:
        generation, dims = _generation(row), parse_shape(row["shape"])
        if row["twistable"] == "yes":
            assert Topology.of(generation, dims, twisted=True).twisted
        else:
            with pytest.raises(HardwareError, match="twisted"):
                Topology.of(generation, dims, twisted=True)


def test_shapes_come_by_chips_and_once() -> None:
    for generation in catalogue_rules():
        shapes = legal_shapes(generation)
        assert len(set(shapes)) == len(shapes)
        assert [prod(dims) for dims in shapes] == sorted(prod(dims) for dims in shapes)


def test_shapes_of_one_count_are_the_subset_of_that_count() -> None:
    by_chips: dict[tuple[str, int], list[str]] = defaultdict(list)
    for row in ROWS:
        by_chips[_generation(row), int(row["chips"])].append(row["shape"])
    for (generation, chips), shapes in by_chips.items():
        assert ["x".join(map(str, dims)) for dims in legal_shapes(generation, chips)] == sorted(
            shapes, key=parse_shape
        )


def test_twistable_by_geometry_alone() -> None:
    assert can_twist((4, 8, 4))
    assert not can_twist((2, 2, 4))
    assert not can_twist((4, 4, 4))
    assert not can_twist((8, 16))
