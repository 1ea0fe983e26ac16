"""Groups of device ids as axes on the torus, or listed where no axes make them."""

import numpy as np
import pytest
from compiler_parts import DeviceIds
from hypothesis import given
from hypothesis import strategies as st

from tpusim.base import PlanError
from tpusim.compiler.hlo.replica_groups import ReplicaGroups
from tpusim.compiler.to_program.axis_names import AxisNames
from tpusim.compiler.to_program.infer_mesh import (
    InferredMesh,
    implied_mesh,
    infer_mesh,
    locate_devices,
)
from tpusim.compiler.to_program.mesh_axes import ProgramAxis
from tpusim.hardware import DIE, Slice, Span

FLAGSHIP = Slice("v4", "8x16x16")
MESH = {"fsdp": 256, "tensor": 8}


def along(mesh: dict[str, int], *axes: str) -> ReplicaGroups:
    """The groups along some axes of a mesh."""
    ids = np.arange(np.prod(list(mesh.values()))).reshape(tuple(mesh.values()))
    numbers = [list(mesh).index(axis) for axis in axes]
    ends = range(-len(axes), 0)
    size = int(np.prod([mesh[axis] for axis in axes]))
    return ReplicaGroups(np.moveaxis(ids, numbers, list(ends)).reshape(-1, size))


def flagship(*every: ReplicaGroups, named: bool = True) -> InferredMesh:
    devices = DeviceIds.on_mesh(MESH, FLAGSHIP)
    return infer_mesh(every, devices, FLAGSHIP, MESH if named else None)


def test_axes_of_the_users_mesh_keep_their_names() -> None:
    each, both = along(MESH, "fsdp"), along(MESH, "fsdp", "tensor")
    found = flagship(each, along(MESH, "tensor"), both)
    assert found.axes == (("fsdp", 256), ("tensor", 8))
    assert found.placement.written == {"fsdp": ["y", "z"], "tensor": ["x"]}
    assert found.axes_of(each) == ("fsdp",)
    assert found.axes_of(both) == ("fsdp", "tensor")
    assert not found.placement.listed


def test_without_a_mesh_the_parts_that_groups_lie_on_name_them() -> None:
    found = flagship(along(MESH, "fsdp"), along(MESH, "fsdp", "tensor"), named=False)
    assert found.axes == (("y,z", 256), ("x", 8))
    assert found.axes_of(along(MESH, "fsdp", "tensor")) == ("y,z", "x")


def test_a_part_of_an_axis_is_listed_by_what_it_lies_on() -> None:
    parts = {"outer": 8, "inner": 32, "tensor": 8}
    found = flagship(along(MESH, "fsdp"), along(parts, "inner"))
    (name,) = found.axes_of(along(parts, "inner"))
    listed = found.placement.listed_as((name,))
    assert listed is not None
    assert listed.spans == (Span(1, 2), Span(2, 16))
    assert listed.along == ("fsdp",)
    assert found.axes == (("fsdp", 256), ("tensor", 8))


def test_groups_that_wrap_in_another_order_are_still_parts() -> None:
    """The order of members does not count, nor that of groups."""
    one = along(MESH, "fsdp")
    random = np.random.default_rng(0)
    ids = random.permuted(one.ids, axis=1)[random.permutation(len(one.ids))]
    assert flagship(ReplicaGroups(ids)).axes_of(ReplicaGroups(ids)) == ("fsdp",)


def test_one_group_that_is_no_part_makes_all_listed() -> None:
    """Two devices change places between the last two groups; the first ones look right."""
    ids = along(MESH, "tensor").ids.copy()
    ids[-1, 0], ids[-2, 0] = ids[-2, 0], ids[-1, 0]
    found = flagship(ReplicaGroups(ids))
    (name,) = found.axes_of(ReplicaGroups(ids))
    listed = found.placement.listed_as((name,))
    assert listed is not None
    assert listed.shape == (256, 8, 5)
    assert listed.along == ("fsdp", "tensor")


def test_small_groups_make_axes_before_large_ones() -> None:
    pod = Slice("v6e", "16x16")
    mesh = {"fsdp": 32, "expert": 8}
    every = [along(mesh, "fsdp", "expert")] * 10 + [along(mesh, "fsdp"), along(mesh, "expert")] * 6
    found = infer_mesh(every, DeviceIds.on_mesh(mesh, pod), pod)
    assert found.axes_of(every[0]) == ("x[:8]", "x[::8],y")
    assert found.axes_of(every[-2]) == ("x[::8],y",)


def test_a_ring_order_keeps_the_axes_that_it_can() -> None:
    """JAX goes round v5e 2x4: four neighbours are a part, and pairs across are none."""
    pod, mesh = Slice("v5e", "2x4"), {"data": 2, "model": 4}
    found = infer_mesh(
        [along(mesh, "model"), along(mesh, "data")], DeviceIds.on_mesh(mesh, pod), pod, mesh
    )
    assert found.axes_of(along(mesh, "model")) == ("model",)
    assert found.placement.written["model"] == ["x", "y[:2]"]
    (name,) = found.axes_of(along(mesh, "data"))
    listed = found.placement.listed_as((name,))
    assert listed is not None
    assert (name, listed.along) == ("data of 2", ("data",))
    assert np.prod([size for _, size in found.axes]) == 8


def test_of_a_ring_the_one_axis_left_bears_the_users_name() -> None:
    """JAX lays every mesh on v5e 2x4 as one ring: data zigzags from pair to pair."""
    pod, mesh = Slice("v5e", "2x4"), {"data": 4, "space": 2}
    found = infer_mesh(
        [whole := along(mesh, "data", "space"), each := along(mesh, "space")],
        DeviceIds.on_mesh(mesh, pod), pod, mesh,
    )  # fmt: skip
    assert dict(found.axes) == mesh
    assert found.axes_of(each) == ("space",)
    assert set(found.axes_of(whole)) == {"data", "space"}


RING = {"x": 4, "y": 2}
"""The last axis goes along the torus' x, and the first one along what is left, its y."""


@pytest.mark.parametrize(
    "names", [("x", "y"), ("y", "x"), ("a", "b"), ("dcn_a", "a"), ("x[:2]", "die"), ("a,b", "a+b")]
)
def test_the_names_of_axes_say_nothing_of_where_they_are(names: tuple[str, str]) -> None:
    """A 4 x 2 mesh on v5e:2x4, whatever its axes are called: jax#21562 calls them x and y."""
    pod, mesh = Slice("v5e", "2x4"), dict(zip(names, (4, 2), strict=True))
    devices = DeviceIds.on_mesh(RING, pod)
    whole, inner, outer = along(mesh, *names), along(mesh, names[1]), along(mesh, names[0])
    found = infer_mesh([whole, inner, outer], devices, pod, mesh)
    sizes, both = dict(found.axes), found.axes_of(whole)
    assert [found.placement.spans(axis) for axis in both] == [(Span(0, 2),), (Span(1, 4),)]
    assert [sizes[axis] for axis in both] == [2, 4]
    assert found.axes_of(inner) == both[:1]
    assert not any(axis.startswith("dcn_") for axis in sizes), "there is one slice"
    (name,) = found.axes_of(outer)
    listed = found.placement.listed_as((name,))
    assert listed is not None
    assert (listed.along, listed.shape) == (both[1:], (2, 4, 4))
    assert found.unnamed == ()


def test_a_part_of_no_axis_has_the_name_of_none() -> None:
    """The user's x and y lie on no parts; the torus' y is another."""
    axes = ProgramAxis(None, (Span(0, 2),)), ProgramAxis(None, (Span(1, 4),))
    found = AxisNames.of(axes, ("y", "die"), {0: 2, 1: 4})
    assert found.names == ["x", "y (2)"]
    assert found.unnamed == ("x", "y (2)")
    assert found.users == {"y": "y", "die": "die"}


def test_groups_that_are_listed_have_the_name_of_no_axis() -> None:
    pod, mesh = Slice("v5e", "2x4"), {"data": 2, "data of 2": 4}
    found = infer_mesh([along(mesh, "data")], DeviceIds.on_mesh(mesh, pod), pod, mesh)
    (name,) = found.axes_of(along(mesh, "data"))
    assert name not in dict(found.axes)
    assert found.placement.listed_as((name,)) is not None


def test_a_mesh_of_other_devices_is_refused() -> None:
    devices = DeviceIds.on_mesh(MESH, FLAGSHIP)
    with pytest.raises(PlanError, match="fsdp=4 x tensor=8 = 32, but the program is for 2048"):
        infer_mesh([], devices, FLAGSHIP, {"fsdp": 4, "tensor": 8})


def test_the_die_is_a_part() -> None:
    pod, mesh = Slice("7x", "4x4x4"), {"data": 64, "model": 2}
    found = infer_mesh([along(mesh, "model")], DeviceIds.on_mesh(mesh, pod), pod, mesh)
    assert found.placement.spans("model") == (Span(DIE, 2),)


def test_slices_are_an_axis_over_dcn() -> None:
    pod, mesh = Slice("v5e", "4x4", num_slices=2), {"dcn_data": 2, "fsdp": 16}
    devices = DeviceIds.on_mesh(mesh, pod)
    both = along(mesh, "dcn_data", "fsdp")
    for said, names in ((mesh, ("dcn_data", "fsdp")), (None, ("dcn_slices", "x,y"))):
        found = infer_mesh([both, along(mesh, "fsdp")], devices, pod, said)
        assert set(found.axes_of(both)) == set(names)
        assert (
            found.axes_across(ReplicaGroups(np.array([[0, 1]])))
            == found.axes_across(None)
            == names[:1]
        )
        assert found.placement.spans(names[0]) == ()


def test_an_axis_over_slices_and_torus_is_two() -> None:
    pod, mesh = Slice("v5e", "4x4", num_slices=2), {"dcn_data": 2, "fsdp": 16}
    devices = DeviceIds.on_mesh(mesh, pod)
    found = infer_mesh([], devices, pod, {"fsdp": 32})
    assert found.axes == (("dcn_fsdp", 2), ("fsdp", 16))


def test_four_slices_can_be_two_axes() -> None:
    pod = Slice("v5e", "2x2", num_slices=4)
    mesh = {"dcn_data": 2, "dcn_stage": 2, "fsdp": 4}
    found = infer_mesh([], DeviceIds.on_mesh(mesh, pod), pod, mesh)
    assert found.axes_across(ReplicaGroups(np.array([[0, 1], [2, 3]]))) == ("dcn_stage",)
    assert found.axes_across(ReplicaGroups(np.array([[0, 2], [1, 3]]))) == ("dcn_data",)


def pairs(*each: tuple[int, int]) -> ReplicaGroups:
    return ReplicaGroups(np.array(each), pairs=True)


def test_what_slices_send_to_others_is_listed_with_the_slices_that_take_part() -> None:
    pod, mesh = Slice("v5e", "2x2", num_slices=4), {"dcn_stage": 4, "fsdp": 4}
    on, back, beyond = pairs((0, 1), (1, 2), (2, 3)), pairs((3, 0)), pairs((3, 4))
    itself = pairs((2, 2))
    sent = (on, back, on, beyond, itself)
    found = infer_mesh([], DeviceIds.on_mesh(mesh, pod), pod, mesh, sent)
    names = [found.axes_across(each) for each in (on, back)]
    assert names == [("dcn_stage permute",), ("dcn_stage permute (2)",)]
    listed = [found.placement.listed_as(name) for name in names]
    assert [each.along for each in listed if each] == 2 * [("dcn_stage",)]
    assert [each.ends for each in listed if each] == [({0, 1, 2}, {1, 2, 3}), ({3}, {0})]
    assert len(found.placement.listed) == 2
    assert found.axes_across(itself) == ()
    assert found.axes_across(beyond) == ("dcn_stage",)


def test_a_program_of_each_slice_numbers_its_own_devices() -> None:
    pod, mesh = Slice("v6e", "2x2", num_slices=2), {"dcn_stage": 2, "fsdp": 4}
    own = ReplicaGroups(np.arange(4)[None])
    found = infer_mesh([own], DeviceIds.on_mesh(mesh, pod), pod, mesh)
    assert found.axes_of(own) == ("fsdp",)
    assert found.axes == (("dcn_stage", 2), ("fsdp", 4))
    assert found.devices == 8


def test_permutes_are_listed_with_the_axes_that_they_go_along() -> None:
    ring = along(MESH, "tensor").ids
    onward = ReplicaGroups(
        np.stack([ring, np.roll(ring, -1, 1)], axis=2).reshape(-1, 2), pairs=True
    )
    back = ReplicaGroups(onward.ids[:, ::-1], pairs=True)
    found = flagship(onward, back)
    names = [*found.axes_of(onward), *found.axes_of(back)]
    assert names == ["tensor permute", "tensor permute (2)"]
    assert all(each.along == ("tensor",) for _, each in found.placement.listed)


def test_devices_that_send_to_themselves_send_nothing() -> None:
    ids = np.arange(2048)
    alone = ReplicaGroups(np.stack([ids, ids], axis=1), pairs=True)
    assert flagship(alone).axes_of(alone) == ()
    ones = ReplicaGroups(ids[:, None])
    assert flagship(ones).axes_of(ones) == ()


@given(st.sampled_from([(256, 8), (32, 64), (16, 16, 8), (2048,), (4, 64, 8)]))
def test_groups_tell_the_mesh_that_they_are_of(sizes: tuple[int, ...]) -> None:
    mesh = {f"axis_{at}": size for at, size in enumerate(sizes)}
    assert implied_mesh([along(mesh, axis) for axis in mesh], 2048) == sizes


def test_places_are_guessed_as_jax_would_lay_the_mesh_of_the_groups() -> None:
    groups = [along(MESH, axis) for axis in MESH]
    found = locate_devices(groups, 2048, FLAGSHIP)
    assert (found.coordinates == DeviceIds.on_mesh(MESH, FLAGSHIP).coordinates).all()
    assert "a mesh of 256 x 8" in found.note
    assert not locate_devices(groups, 2048, FLAGSHIP, mesh=MESH).note
    with pytest.raises(PlanError, match="for 1024 devices"):
        locate_devices(groups, 1024, FLAGSHIP)
