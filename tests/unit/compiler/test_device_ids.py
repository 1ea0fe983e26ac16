"""Where the devices of a program are: given, as JAX lays a mesh, or as JAX lists them."""

from importlib.util import find_spec

import numpy as np
import pytest

from tpusim.base import PlanError
from tpusim.compiler.to_program.device_ids import DeviceIds, check_device_count
from tpusim.compiler.topologies import devices_of
from tpusim.hardware import Slice


def rows(pod: Slice) -> list[list[int]]:
    """All devices of a slice in some order, as a file gives them."""
    places = DeviceIds.in_order(pod).coordinates
    padding = np.zeros((len(places), 3 - len(pod.topology.dims)), dtype=np.intp)
    return np.concatenate([places[:, :-1], padding, places[:, -1:]], axis=1).tolist()


def chips(devices: DeviceIds) -> list[list[int]]:
    return devices.coordinates[:, 1:-1].tolist()


def test_given_places_are_kept() -> None:
    pod = Slice("v4", "2x2x4")
    given = rows(pod)[::-1]
    assert DeviceIds.from_rows(given, pod).coordinates.tolist() == given


def test_places_of_a_flat_slice_lose_their_third_coordinate() -> None:
    found = DeviceIds.from_rows(rows(Slice("v5e", "2x2")), Slice("v5e", "2x2"))
    assert found.coordinates.tolist()[1] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (Slice("v4", "2x2x2"), "for 16 devices, but v4:2x2x2 has 8"),
        (
            Slice("v5e", "4x4"),
            "a torus of 2x2x4 chips with 1 devices each, which v5e:4x4 does not have",
        ),
        (Slice("7x", "2x2x2"), "a torus of 2x2x4 chips .* which 7x:2x2x2 does not have"),
    ],
)
def test_places_that_the_slice_has_not(pod: Slice, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        DeviceIds.from_rows(rows(Slice("v4", "2x2x4")), pod)


def test_a_device_that_is_given_twice() -> None:
    pod = Slice("v4", "2x2x1")
    given = rows(pod)
    with pytest.raises(PlanError, match="twice"):
        DeviceIds.from_rows([given[0], given[0], *given[2:]], pod)


def test_a_program_of_other_devices_than_the_slice_has() -> None:
    with pytest.raises(PlanError, match="for 512 devices, but v4:8x16x16 has 2048; write"):
        check_device_count(512, Slice("v4", "8x16x16"))
    check_device_count(4, Slice("v6e", "2x2", num_slices=2))
    check_device_count(8, Slice("v6e", "2x2", num_slices=2))


def test_whole_dimensions_are_laid_the_last_axis_first() -> None:
    """The flagship: 8 along x, 256 over y and z."""
    found = DeviceIds.on_mesh({"fsdp": 256, "tensor": 8}, Slice("v4", "8x16x16"))
    expected = [[x, y, z] for y in range(16) for z in range(16) for x in range(8)]
    assert chips(found) == expected


def test_a_split_dimension_gives_neighbours_to_the_last_axis() -> None:
    found = DeviceIds.on_mesh({"data": 8, "model": 2}, Slice("v5e", "4x4"))
    assert chips(found)[:4] == [[0, 0], [1, 0], [0, 1], [1, 1]]


def test_small_flat_slices_are_one_ring() -> None:
    found = DeviceIds.on_mesh({"data": 16}, Slice("v5e", "4x4"))
    ring = np.array(chips(found))
    assert np.abs(ring - np.roll(ring, -1, axis=0)).sum(axis=1).tolist() == [1] * 16


def test_axes_across_slices_number_them() -> None:
    found = DeviceIds.on_mesh({"fsdp": 4, "dcn_data": 2}, Slice("v5e", "2x2", num_slices=2))
    assert found.coordinates[:, 0].tolist() == [0, 1] * 4
    assert chips(found)[::2] == chips(found)[1::2] == [[0, 0], [1, 0], [1, 1], [0, 1]]


def test_the_devices_of_one_slice_keep_their_order() -> None:
    found = DeviceIds.on_mesh({"fsdp": 4, "dcn_data": 2}, Slice("v5e", "2x2", num_slices=2))
    assert chips(found.of_slice()) == chips(found)[::2]


def test_unknown_devices_are_taken_host_by_host_and_noted() -> None:
    found = DeviceIds.in_order(Slice("v4", "4x4x4"))
    assert chips(found)[:5] == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [2, 0, 0]]
    assert "jax.devices()" in found.note


MESHES = [
    ("v2", "4x4", (4, 8)), ("v3", "8x8", (16, 8)), ("v4", "4x4x8", (32, 4)),
    ("v4", "8x16x16", (32, 64)), ("v4", "2x2x4", (2, 8)), ("v5e", "4x8", (16, 2)),
    ("v5e", "2x4", (4, 2)), ("v5e", "4x4", (1, 16)), ("v5p", "4x4x8", (2, 16, 4)),
    ("v5p", "2x2x2", (2, 4)), ("v6e", "16x16", (32, 8)), ("7x", "4x4x4", (8, 16)),
    ("7x", "2x2x2", (4, 4)), ("7x", "2x2x1", (2, 4)),
]  # fmt: skip
"""Chip, slice and mesh."""


@pytest.mark.xla
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'")
@pytest.mark.parametrize(("chip", "shape", "sizes"), MESHES)
def test_jax_lays_meshes_and_lists_devices_so(
    chip: str, shape: str, sizes: tuple[int, ...]
) -> None:
    from jax.experimental import mesh_utils

    pod = Slice(chip, shape)
    listed = devices_of(pod)
    laid = mesh_utils.create_device_mesh(sizes, listed, allow_split_physical_axes=True)
    mesh = {f"axis_{at}": size for at, size in enumerate(sizes)}
    for devices, ours in (
        (listed, DeviceIds.in_order(pod)),
        (laid.flat, DeviceIds.on_mesh(mesh, pod)),
    ):
        theirs = DeviceIds.from_rows(
            [[0, *each.coords, each.core_on_chip] for each in devices], pod
        )
        assert (theirs.coordinates == ours.coordinates).all()
