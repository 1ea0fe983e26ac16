"""Placements: every device of the torus belongs to one place of the mesh, however it is laid."""

from collections import Counter
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.errors import PlanError
from tpusim.hardware import (
    DIE,
    Placement,
    Slice,
    Span,
    placement_from,
    placements,
    whole_dimension_placements,
)
from tpusim.hardware.placement import dimensions


def _texts(found: tuple[Placement, ...]) -> list[str]:
    return [str(way) for way in found]


def test_the_flagship_has_one_placement() -> None:
    pod = Slice("v4", "8x16x16")
    (only,) = whole_dimension_placements(pod, {"fsdp": 256, "tensor": 8})
    assert str(only) == "fsdp=256 on y,z · tensor=8 on x"
    assert only.spans("fsdp") == (Span(1, 16), Span(2, 16))
    assert only.spans("tensor") == (Span(0, 8),)


def test_equal_dimensions_give_a_placement_each_in_a_fixed_order() -> None:
    found = whole_dimension_placements(Slice("v5p", "4x8x8"), {"fsdp": 32, "tensor": 8})
    assert _texts(found) == ["fsdp=32 on x,y · tensor=8 on z", "fsdp=32 on x,z · tensor=8 on y"]


def test_the_die_is_one_more_dimension() -> None:
    found = whole_dimension_placements(Slice("7x", "4x8x8"), {"fsdp": 64, "context": 8})
    assert _texts(found) == [
        "fsdp=64 on x,y,die · context=8 on z",
        "fsdp=64 on x,z,die · context=8 on y",
        "fsdp=64 on y,z · context=8 on x,die",
    ]
    assert Span(DIE, 2) in found[0].spans("fsdp")


def test_axes_of_one_and_dcn_axes_take_no_dimension() -> None:
    pods = Slice("v5e", "16x16", num_slices=8)
    mesh = {"dcn_data": 8, "data": 1, "fsdp": 256}
    (only,) = whole_dimension_placements(pods, mesh)
    assert only.spans("dcn_data") == only.spans("data") == ()
    assert str(only) == "fsdp=256 on x,y"


def test_a_single_device_needs_no_dimension() -> None:
    (only,) = whole_dimension_placements(Slice("v5e", "1x1"), {"data": 1})
    assert only.spans("data") == ()
    assert whole_dimension_placements(Slice("v5e", "1x1"), {}) == (Placement(()),)


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        ({"fsdp": 256}, "the mesh has fsdp=256 = 256, but there are 512 devices of v5p:8x8x8"),
        ({"fsdp": 512, "dcn_data": 2}, "dcn_data=2 = 2, but there are 1 slices"),
        ({}, "the mesh has nothing = 1, but there are 512 devices"),
        ({"fsdp": 512.0}, "mesh axis 'fsdp' is 512.0; write a whole number from 1 up"),
        ({"fsdp": -512, "data": -1}, "mesh axis 'fsdp' is -512"),
        (
            {"fsdp": 32, "tensor": 16},
            "v5p:8x8x8: they are x=8, y=8, z=8, and none of their products is fsdp=32 or tensor=16;"
            " write axes of sizes 8, 64, 512",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh: dict[str, int], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        whole_dimension_placements(Slice("v5p", "8x8x8"), mesh)


def test_axes_that_fit_alone_but_not_together() -> None:
    with pytest.raises(PlanError, match="z=16, die=2, and the axes need the same ones"):
        whole_dimension_placements(Slice("7x", "4x4x16"), {"a": 8, "b": 8, "c": 8})


def test_a_placement_that_is_given() -> None:
    pod = Slice("v4", "8x16x16")
    mesh = {"fsdp": 256, "tensor": 8, "data": 1}
    given_one = placement_from(pod, mesh, {"fsdp": ["z", "y"], "tensor": ["x"]})
    assert str(given_one) == "fsdp=256 on z,y · tensor=8 on x"
    ironwood = placement_from(
        Slice("7x", "4x4x4"), {"a": 32, "b": 4}, {"a": ["die", "x", "y"], "b": ["z"]}
    )
    assert ironwood.spans("a")[0] == Span(DIE, 2)


@pytest.mark.parametrize(
    ("given_one", "sentence"),
    [
        ({"fsdp": ["y", "z"]}, "axis 'tensor' takes 8 places on the torus but is laid on \\[\\]"),
        ({"fsdp": ["x", "z"], "tensor": ["y"]}, "'fsdp' takes 256 places .* multiply to 256 .*x=8"),
        ({"fspd": ["y", "z"], "tensor": ["x"]}, "no axis 'fspd'; did you mean 'fsdp'"),
        ({"fsdp": ["y", "w"], "tensor": ["x"]}, "laid on 'w', which the slice does not have"),
        ({"fsdp": ["y", "die"], "tensor": ["x"]}, "'die', which the slice does not have"),
        ({"fsdp": ["y", "z"], "tensor": ["y"]}, "'y' is given to 'fsdp' and to 'tensor'"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(
    given_one: dict[str, list[str]], sentence: str
) -> None:
    with pytest.raises(PlanError, match=sentence):
        placement_from(Slice("v4", "8x16x16"), {"fsdp": 256, "tensor": 8}, given_one)


def test_an_axis_that_is_not_there_is_named() -> None:
    (only,) = whole_dimension_placements(Slice("v5e", "16x16"), {"fsdp": 256})
    with pytest.raises(PlanError, match="no axis 'fsd'; did you mean 'fsdp'"):
        only.spans("fsd")


def test_axes_share_a_dimension_only_where_they_must() -> None:
    pod = Slice("v6e", "16x16")
    assert placements(pod, {"fsdp": 16, "tensor": 16}) == whole_dimension_placements(
        pod, {"fsdp": 16, "tensor": 16}
    )
    assert _texts(placements(pod, {"fsdp": 64, "tensor": 4})) == [
        "fsdp=64 on x,y[:4] · tensor=4 on y[::4]",
        "fsdp=64 on x,y[::4] · tensor=4 on y[:4]",
        "fsdp=64 on x[:4],y · tensor=4 on x[::4]",
        "fsdp=64 on x[::4],y · tensor=4 on x[:4]",
    ]


def test_the_fewest_cuts_are_made_and_the_count_is_checked() -> None:
    (way,) = placements(Slice("v4", "4x4x4"), {"a": 64})
    assert str(way) == "a=64 on x,y,z"
    cut = placements(Slice("v4", "4x4x12"), {"a": 32, "b": 6})
    assert {sum(len(spans) for _, spans in way.axes) for way in cut} == {4}
    with pytest.raises(PlanError, match="a=3 x b=5 = 15, but there are 64 devices"):
        placements(Slice("v4", "4x4x4"), {"a": 3, "b": 5})


MESHES = [
    ("v4", "8x16x16", {"fsdp": 256, "tensor": 8}),
    ("v5p", "8x8x8", {"fsdp": 32, "tensor": 16}),
    ("v5p", "4x8x8", {"data": 2, "fsdp": 16, "tensor": 8}),
    ("v6e", "16x16", {"fsdp": 64, "tensor": 4}),
    ("v5e", "4x8", {"a": 2, "b": 2, "c": 2, "d": 4}),
    ("7x", "2x2x1", {"a": 4, "b": 2}),
    ("v3", "8x8", {"x": 8, "y": 16}),
]


@given(st.sampled_from(MESHES), st.data())
def test_a_placement_numbers_each_device_once(
    case: tuple[str, str, dict[str, int]], data: st.DataObject
) -> None:
    name, shape, mesh = case
    pod = Slice(name, shape)
    way = data.draw(st.sampled_from(placements(pod, mesh)))
    places = Counter(
        _place(way, dict(zip(dimensions(pod), at, strict=True)))
        for at in product(*(range(length) for length in dimensions(pod).values()))
    )
    assert set(places.values()) == {1}
    assert len(places) == pod.devices
    assert {axis: prod(span.size for span in way.spans(axis)) for axis in mesh} == mesh


def _place(way: Placement, at: dict[int, int]) -> tuple[int, ...]:
    """The coordinates in the mesh of the device at `at` on the torus."""
    found = []
    for axis, _ in way.axes:
        index = 0
        for span in way.spans(axis):
            index = index * span.size + at[span.dim] // span.stride % span.size
        found.append(index)
    return tuple(found)
