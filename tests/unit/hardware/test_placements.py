"""Placements: every device of the torus belongs to one position of the mesh, in every placement."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations, product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.base import PlanError
from tpusim.hardware import DIE, Placement, Slice, Span, Topology, placement_from, placements
from tpusim.hardware.placement import dimensions
from tpusim.hardware.placement_candidates import assignments, symmetries

SHARED = {"fsdp": 32, "tensor": 16}


def _texts(found: tuple[Placement, ...]) -> list[str]:
    return [str(way) for way in found]


def test_the_flagship_has_one_placement() -> None:
    pod = Slice("v4", "8x16x16")
    (only,) = placements(pod, {"fsdp": 256, "tensor": 8})
    assert str(only) == "fsdp=256 on y,z · tensor=8 on x"
    assert only.spans("fsdp") == (Span(1, 16), Span(2, 16))
    assert only.spans("tensor") == (Span(0, 8),)


def test_like_dimensions_are_exchanged_for_free_and_the_first_way_stands_for_all() -> None:
    mesh = {"fsdp": 32, "tensor": 8}
    assert _texts(placements(Slice("v5p", "4x8x8"), mesh)) == ["fsdp=32 on x,y · tensor=8 on z"]
    assert _texts(placements(Slice("v5p", "4x8x8", twisted=True), mesh)) == [
        "fsdp=32 on x,y · tensor=8 on z"
    ]


def test_like_dimensions_of_which_one_wraps_are_not_alike() -> None:
    """16x16 of v3 is a mesh; its 16x32 wraps along the 32."""
    assert symmetries(Slice("v3", "16x16").topology) == ((0, 1), (1, 0))
    assert symmetries(Slice("v3", "16x32").topology) == ((0, 1),)
    assert symmetries(Topology((8, 8), (True, False))) == ((0, 1),)


def test_the_die_is_one_more_dimension() -> None:
    found = placements(Slice("7x", "4x8x8"), {"fsdp": 64, "context": 8})
    assert _texts(found) == [
        "fsdp=64 on x,y,die · context=8 on z",
        "fsdp=64 on y,z · context=8 on x,die",
    ]
    assert Span(DIE, 2) in found[0].spans("fsdp")


def test_axes_of_one_and_dcn_axes_take_no_dimension() -> None:
    pods = Slice("v5e", "16x16", num_slices=8)
    mesh = {"dcn_data": 8, "data": 1, "fsdp": 256}
    (only,) = placements(pods, mesh)
    assert only.spans("dcn_data") == only.spans("data") == ()
    assert str(only) == "fsdp=256 on x,y"


def test_a_single_device_needs_no_dimension() -> None:
    (only,) = placements(Slice("v5e", "1x1"), {"data": 1})
    assert only.spans("data") == ()
    assert placements(Slice("v5e", "1x1"), {}) == (Placement(()),)


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        ({"fsdp": 256}, "the mesh has fsdp=256 = 256, but there are 512 devices of v5p:8x8x8"),
        ({"fsdp": 512, "dcn_data": 2}, "dcn_data=2 = 2, but there is 1 slice \\(axes that"),
        ({}, "the mesh has nothing = 1, but there are 512 devices"),
        ({"fsdp": 512.0}, "mesh axis 'fsdp' is 512.0; write a whole number from 1 up"),
        ({"fsdp": -512, "data": -1}, "mesh axis 'fsdp' is -512"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh: dict[str, int], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        placements(Slice("v5p", "8x8x8"), mesh)


def test_axes_that_do_not_fit_whole_dimensions_together_share_one() -> None:
    cut = placements(Slice("7x", "4x4x16"), {"a": 8, "b": 8, "c": 8})
    assert cut
    assert all("[" in text for text in _texts(cut))
    assert all("[" in text for text in _texts(placements(Slice("v5p", "8x8x8"), SHARED)))


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
        ({"fsdp": ["y", "z"]}, "axis 'tensor' takes 8 positions on the torus but is on \\[\\]"),
        (
            {"fsdp": ["x", "z"], "tensor": ["y"]},
            "'fsdp' takes 256 positions .* multiply to 256 .*x=8",
        ),
        ({"fspd": ["y", "z"], "tensor": ["x"]}, "no axis 'fspd'; did you mean 'fsdp'"),
        ({"fsdp": ["y", "w"], "tensor": ["x"]}, "on 'w', which the slice does not have"),
        ({"fsdp": ["y", "die"], "tensor": ["x"]}, "'die', which the slice does not have"),
        ({"fsdp": ["y", "z"], "tensor": ["y"]}, "'y' to 'fsdp' and 'y' to .*: write y alone$"),
        (
            {"fsdp": ["y[4:]"], "tensor": ["x"]},
            r"'y\[4:\]', which is neither .* write y, y\[:4\] \(4",
        ),
        (
            {"fsdp": ["y[::0]"], "tensor": ["x"]},
            r"axis 'fsdp' is on 'y\[::0\]', whose stride is 0; write one from 1 up, as in "
            r"y\[::2\], every second position$",
        ),
        (
            {"fsdp": ["y[::16]"], "tensor": ["x"]},
            r"'y\[::16\]', which is 1 of the 16 positions of y, and a part has 2 or more; write y "
            "for all of them, or leave it out$",
        ),
        ({"fsdp": ["y[::32]"], "tensor": ["x"]}, "which is 1 of the 16 positions of y"),
        ({"fsdp": ["y[:1]"], "tensor": ["x"]}, "which is 1 of the 16 positions of y"),
        ({"fsdp": ["y[:0]"], "tensor": ["x"]}, "which is none of the 16 positions of y"),
        (
            {"fsdp": ["y[:8:3]"], "tensor": ["x"]},
            "but 8 positions are not a multiple of the stride 3",
        ),
        (
            {"fsdp": ["y[::3]"], "tensor": ["x"]},
            "but 16 positions are not a multiple of the stride 3",
        ),
        (
            {"fsdp": ["y", "z"], "tensor": ["x[:16:2]"]},
            r"is on 'x\[:16:2\]', but x has 8 positions, not 16; write x for all of them$",
        ),
        ({"fsdp": ["y", "z"], "tensor": None}, "'tensor' is on None, which is not a list of"),
        (["y", "z"], r"placement is \['y', 'z'\]; write parts for axes"),
        (
            {"fsdp": ["y[:16]"], "tensor": ["x"]},
            r"axis 'fsdp' takes 256 positions .* is on \['y\[:16\]'\]",
        ),
        ({"fsdp": [3], "tensor": ["x"]}, "is on 3, which is neither a dimension nor a part of one"),
        ({"fsdp": ["w[:4]", "z"], "tensor": ["x"]}, r"on 'w\[:4\]', which the slice does not"),
        (
            {"fsdp": ["y", "z[:4]"], "tensor": ["x"]},
            r"parts of z do not tile its 16 positions: 'z\[:4\]' to 'fsdp'; .* write z\[:4\] and "
            r"z\[::4\]$",
        ),
        (
            {"fsdp": ["y", "z[:2]"], "tensor": ["z[::4]", "x[::4]"]},
            r"x do not tile its 8 positions: 'x\[::4\]' to 'tensor'; .* write x\[:2\] and "
            r"x\[::2\]$",
        ),
        (
            {"fsdp": ["x", "z[:8:2]", "y"], "tensor": ["z[:4]"]},
            r"'z\[:4\]' to 'tensor' and 'z\[:8:2\]' to 'fsdp'; each stride must be the product "
            r"of the sizes below it, .* multiply to 16: write z\[:4\] and z\[::4\]$",
        ),
        ({"fsdp": ["y", "z[:32]"], "tensor": ["x"]}, "z has 16 positions, not 32; write z for all"),
        (
            {"fsdp": ["y", "z[::8]"], "tensor": ["x", "z[:8]"]},
            "takes 256 positions .* or parts of them$",
        ),
    ],
)
def test_a_placement_that_cannot_be_is_refused(
    given_one: Mapping[str, Sequence[Any]], sentence: str
) -> None:
    with pytest.raises(PlanError, match=sentence):
        placement_from(Slice("v4", "8x16x16"), {"fsdp": 256, "tensor": 8}, given_one)


def test_axes_that_have_no_positions_on_the_torus_have_no_spans() -> None:
    pods, mesh = Slice("v5e", "4x4", 2), {"dcn_fsdp": 2, "data": 1, "fsdp": 16}
    given = {"fsdp": ["x", "y"]}
    with pytest.raises(PlanError, match="dcn_ axes run across slices and take no dimension of the"):
        placement_from(pods, mesh, {**given, "dcn_fsdp": ["x"]})
    with pytest.raises(
        PlanError, match=r"'data' takes 1 position on .*; leave it out of the placement"
    ):
        placement_from(pods, mesh, {"fsdp": ["x"], "data": ["y"]})
    assert str(placement_from(pods, mesh, {**given, "dcn_fsdp": []})) == "fsdp=16 on x,y"


def test_parts_of_a_dimension_are_written_as_slices_of_it() -> None:
    pod, mesh = Slice("v6e", "16x16"), {"a": 16, "b": 4, "c": 2, "d": 2}
    way = placement_from(pod, mesh, {"a": ["x"], "b": ["y[:8:2]"], "c": "y[:2]", "d": ["y[::8]"]})
    assert way.spans("b") == (Span(1, 4, 2),)
    assert way.spans("c") == (Span(1, 2, 1),)
    assert way.spans("d") == (Span(1, 2, 8),)
    assert str(way) == "a=16 on x · b=4 on y[:8:2] · c=2 on y[:2] · d=2 on y[::8]"
    assert placement_from(pod, {"a": 256}, {"a": ["x[:16]", "y[::1]"]}).written == {"a": ["x", "y"]}


def test_one_axis_may_take_several_parts_of_a_dimension_in_any_order() -> None:
    way = placement_from(Slice("v5e", "4x8"), {"a": 32}, {"a": ["y[:2]", "x", "y[::2]"]})
    assert way.spans("a") == (Span(1, 2), Span(0, 4), Span(1, 4, 2))
    assert way.written == {"a": ["y[:2]", "x", "y[::2]"]}


def test_an_axis_that_is_not_there_is_named() -> None:
    (only,) = placements(Slice("v5e", "16x16"), {"fsdp": 256})
    with pytest.raises(PlanError, match="no axis 'fsd'; did you mean 'fsdp'"):
        only.spans("fsd")


def test_axes_share_a_dimension_only_where_they_must() -> None:
    pod = Slice("v6e", "16x16")
    assert _texts(placements(pod, {"fsdp": 16, "tensor": 16})) == ["fsdp=16 on x · tensor=16 on y"]
    assert _texts(placements(pod, {"fsdp": 64, "tensor": 4})) == [
        "fsdp=64 on x,y[:4] · tensor=4 on y[::4]",
        "fsdp=64 on x,y[::4] · tensor=4 on y[:4]",
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


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Slice, dict[str, int]]:
    """A slice and a mesh of its devices, of up to five axes and one across slices."""
    name, shape = draw(st.sampled_from([case[:2] for case in MESHES] + [("v4", "4x4x8_twisted")]))
    pod = Slice(name, shape, draw(st.integers(1, 3)))
    mesh, left = {"dcn_data": pod.num_slices}, pod.devices // pod.num_slices
    for axis in "abcd":
        mesh[axis] = draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
        left //= mesh[axis]
    return pod, mesh | {"e": left}


@given(_cases())
def test_what_a_placement_prints_reads_back(case: tuple[Slice, dict[str, int]]) -> None:
    for way in placements(*case):
        assert placement_from(*case, way.written) == way
        parts = (part.partition(" on ")[2] for part in str(way).split(" · ") if part)
        assert list(parts) == [",".join(names) for names in way.written.values()]


def _as_sets(axes: Mapping[str, Sequence[Span]], order: Sequence[int]) -> frozenset[Any]:
    """Which axis has which spans, with dimensions renamed."""
    return frozenset(
        (axis, DIE if span.dim == DIE else order[span.dim], span.size, span.stride)
        for axis, spans in axes.items()
        for span in spans
    )


@given(_cases())
def test_each_class_of_like_placements_has_one(case: tuple[Slice, dict[str, int]]) -> None:
    """All ways, found without symmetry, are images of the ones that are kept; no two of those."""
    pod, mesh = case
    kept = [dict(way.axes) for way in placements(pod, mesh)]
    orders = _automorphisms(pod.topology)
    images = [{_as_sets(way, order) for order in orders} for way in kept]
    assert sum(map(len, images)) == len(set().union(*images))
    cuts = sum(len(spans) for spans in kept[0].values()) - len(dimensions(pod))
    inside = {axis: size for axis, size in mesh.items() if axis != "dcn_data"}
    found = assignments(tuple(dimensions(pod).items()), inside, cuts)
    ways = {_as_sets({a: [s for o, s in way if o == a] for a in mesh}, range(3)) for way in found}
    assert ways == set().union(*images)


def _automorphisms(topology: Topology) -> list[tuple[int, ...]]:
    """The orders of dimensions under which the two far corners keep their neighbours."""
    dims = range(len(topology.dims))

    def image(at: tuple[int, ...] | None, order: tuple[int, ...]) -> tuple[int, ...] | None:
        return at and tuple(at[order.index(dim)] for dim in dims)

    def kept(at: tuple[int, ...], order: tuple[int, ...]) -> bool:
        there = tuple(at[order.index(dim)] for dim in dims)
        return all(
            image(topology.neighbour(at, dim, sign), order)
            == topology.neighbour(there, order[dim], sign)
            for dim, sign in product(dims, (1, -1))
        )

    corners = [tuple(0 for _ in dims), tuple(length - 1 for length in topology.dims)]
    alike = [order for order in permutations(dims) if image(topology.dims, order) == topology.dims]
    return [order for order in alike if all(kept(corner, order) for corner in corners)]


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


@pytest.mark.thorough
def test_axes_that_cannot_all_have_dimensions_are_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight axes on three dimensions need five cuts: what has fewer is ruled out at its root."""
    tried: list[int] = []

    def counted(lengths: Any, left: Any, cuts: int) -> Any:
        tried.append(len(left))
        yield from assignments(lengths, left, cuts)

    monkeypatch.setattr("tpusim.hardware.placement_candidates.assignments", counted)
    mesh = {f"axis{at}": 2 if at < 4 else 4 for at in range(8)}
    found = placements(Slice("v5p", "16x16x16"), mesh)
    assert len(found) == 2880
    assert len(tried) < 200_000


def test_more_placements_than_can_be_tried_are_refused_with_a_sentence() -> None:
    mesh = {f"axis{at}": 2 for at in range(12)}
    with pytest.raises(PlanError, match="12 axes larger than one, which can lie on v5p:16x16x16"):
        placements(Slice("v5p", "16x16x16"), mesh)
