"""Positions of a program's devices: slice, chip and core of each id in its HLO.

HLO numbers devices by their index in the device assignment, which for a JAX program is
`mesh.devices.flat`; a runtime's own device ids do not occur.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError
from tpusim.hardware import DCN_PREFIX, Slice, check_mesh

Coordinates = NDArray[np.intp]
"""One row per device: its slice, its coordinates on the torus, its core on the chip."""

_RING_ORDERS: Mapping[tuple[int, ...], tuple[int, ...]] = {
    (2, 2): (0, 1, 3, 2),
    (2, 4): (0, 1, 2, 3, 7, 6, 5, 4),
    (4, 4): (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4),
}
"""JAX's order of devices on small slices that are one ring: chips row by row along x."""
_HOST_ORDER = (0, 1, 2, 3, 6, 7, 4, 5)
"""JAX's order of the 8 devices of a host with two per chip."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceIds:
    """The coordinates of each device id on the slice.

    note: anything that was assumed.
    """

    coordinates: Coordinates
    note: str = ""

    def __len__(self) -> int:
        return len(self.coordinates)

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], pod: Slice) -> "DeviceIds":
        """Return devices in the order of their ids, one row [slice, x, y, z, core] each.

        Raise PlanError unless they are the devices of the pod, each once.
        """
        found = np.asarray(rows, dtype=np.intp)
        if found.ndim != 2 or found.shape[1] != 5:
            raise PlanError("each device must be a row of slice, x, y, z and core")
        if len(found) != pod.devices:
            raise PlanError(
                f"the program was compiled for {len(found)} device{'s' * (len(found) != 1)}, but "
                f"{pod} has {pod.devices}; write the slice that it was compiled for"
            )
        bounds = _bounds(pod)
        past = 1 + len(pod.topology.dims)
        lost = found[:, past:4].any() or (found < 0).any()
        coordinates = np.delete(found, slice(past, 4), axis=1)
        coordinates[:, 0] -= coordinates[:, 0].min(initial=0)
        if lost or (coordinates >= bounds).any():
            most = "x".join(str(length) for length in (found.max(axis=0) + 1)[1:4])
            raise PlanError(
                f"the devices of the program are on a torus of {most} chips with "
                f"{found[:, 4].max() + 1} devices each, which {pod} does not have; write the slice "
                "that it was compiled for"
            )
        if len(np.unique(coordinates @ _strides(bounds))) < len(coordinates):
            raise PlanError("a device of the program is given twice; write each once")
        return cls(coordinates)

    def of_slice(self) -> "DeviceIds":
        """Return the devices of the first slice in order, as a program of one slice has them."""
        return replace(self, coordinates=self.coordinates[self.coordinates[:, 0] == 0])

    @classmethod
    def on_mesh(cls, mesh: Mapping[str, int], pod: Slice) -> "DeviceIds":
        """Return the order that JAX's `mesh_utils.create_device_mesh` gives the mesh (jax 0.10.2).

        Axes take whole dimensions of the torus where they can, the last axis first; otherwise parts
        of dimensions, with the later axes on neighbouring chips. Other orders, on small slices or
        on all, are those that the chip's file names (`CompilerRules.mesh_order`). Axes that start
        with `dcn_` run across slices (`create_hybrid_device_mesh`).

        Raise PlanError for a mesh that does not have the devices of the pod.
        """
        check_mesh(pod, mesh)
        inside = [1 if axis.startswith(DCN_PREFIX) else size for axis, size in mesh.items()]
        across = [size if axis.startswith(DCN_PREFIX) else 1 for axis, size in mesh.items()]
        one = _mesh_order(inside, pod).reshape(*inside, -1)
        slices = np.arange(pod.num_slices).reshape(*across, 1)
        sizes = tuple(mesh.values())
        parts = (
            np.broadcast_to(slices, (*sizes, 1)),
            np.broadcast_to(one, (*sizes, one.shape[-1])),
        )
        note = pod.chip.unsaid("JAX is taken to lay meshes along the dimensions of the torus")
        return cls(np.concatenate(parts, axis=-1).reshape(prod(sizes), -1), "".join(note))

    @classmethod
    def in_order(cls, pod: Slice) -> "DeviceIds":
        """Return the order of `jax.devices()`, for a program that does not describe its devices."""
        one = _slice_order(pod)
        slices = np.repeat(np.arange(pod.num_slices), len(one))[:, None]
        coordinates = np.concatenate([slices, np.tile(one, (pod.num_slices, 1))], axis=1)
        return cls(
            coordinates,
            f"the program does not record the positions of its devices: the order of jax.devices() "
            f"of {pod} is taken, host by host; give the mesh that it was compiled for",
        )


def check_device_count(count: int, pod: Slice) -> None:
    """Raise PlanError unless a program for so many devices fits the pod.

    The compiler makes one program for all devices, or, if transfers between slices go through their
    hosts (megascale), one for those of a slice.
    """
    if count not in (pod.devices, pod.devices // pod.num_slices):
        raise PlanError(
            f"the program is for {count} device{'s' * (count != 1)}, but {pod} has {pod.devices}; "
            "write the slice that it was compiled for"
        )


def _bounds(pod: Slice) -> Coordinates:
    return np.array((pod.num_slices, *pod.topology.dims, pod.chip.devices), dtype=np.intp)


def _strides(bounds: Coordinates) -> Coordinates:
    return np.append(np.cumprod(bounds[:0:-1])[::-1], 1).astype(np.intp)


def _slice_order(pod: Slice) -> Coordinates:
    """Return coordinates and core of the devices of one slice: by hosts of 2 x 2 chips, x first."""
    dims = (*pod.topology.dims, 1)[:3]
    hosts = [range(0, length, min(2, length)) for length in dims[:2]]
    chips = [
        (x, y, z)[: len(pod.topology.dims)]
        for z in range(dims[2])
        for y0, x0 in product(hosts[1], hosts[0])
        for y in range(y0, min(y0 + 2, dims[1]))
        for x in range(x0, min(x0 + 2, dims[0]))
    ]
    return np.array([(*chip, core) for chip in chips for core in range(pod.chip.devices)], np.intp)


def _mesh_order(sizes: Sequence[int], pod: Slice) -> Coordinates:
    """Return coordinates and core of a mesh's devices on one slice, in the order of the mesh."""
    order, dims = pod.chip.compiler_rules.mesh_order, pod.topology.dims
    ordered = _slice_order(pod)
    if order == "hosts":
        return _host_order(ordered) if len(ordered) == 8 or sizes[-1] == 8 else ordered
    small = len(ordered) <= 32 and max(dims[:2]) <= 2 and prod(dims) > 1
    if order == "small hosts" and small:
        return _host_order(ordered)
    one_ring = dims in _RING_ORDERS and (dims != (4, 4) or max(sizes) == 16)
    if order == "small rings" and one_ring:
        ring = np.array(_RING_ORDERS[dims])
        chips = np.stack(np.unravel_index(ring, dims[::-1])[::-1], axis=1)
        return np.append(chips, np.zeros((len(ring), 1), np.intp), axis=1)
    lengths = (*(*dims, 1)[:3], *([pod.chip.devices] if pod.chip.devices > 1 else []))
    found = np.stack(np.unravel_index(_torus_numbers(lengths, sizes), lengths), axis=1)
    found = np.delete(found, slice(len(dims), 3), axis=1)
    cored = found if pod.chip.devices > 1 else np.append(found, 0 * found[:, :1], axis=1)
    return np.asarray(cored, dtype=np.intp)


def _host_order(ordered: Coordinates) -> Coordinates:
    return ordered.reshape(-1, 8, ordered.shape[1])[:, _HOST_ORDER].reshape(ordered.shape)


def _torus_numbers(lengths: Sequence[int], sizes: Sequence[int]) -> NDArray[np.intp]:
    """Return the row-major number on the torus of each device of a mesh."""
    shares = _whole_dimensions(lengths, sizes) or _split_dimensions(lengths, sizes)
    count = len(sizes)
    shape = [share[dim] for dim in range(len(lengths)) for share in shares]
    numbers = np.arange(prod(lengths)).reshape(shape)
    order = [dim * count + axis for axis in range(count) for dim in range(len(lengths))]
    return np.asarray(numbers.transpose(order).reshape(-1), dtype=np.intp)


_Share = tuple[int, ...]
"""The number of coordinates that an axis takes of each dimension."""


def _whole_dimensions(lengths: Sequence[int], sizes: Sequence[int]) -> list[_Share]:
    """Return whole dimensions for each axis, the last axis first and as many as possible; or []."""
    left = dict(enumerate(lengths))
    found: list[_Share] = []
    for size in reversed(sizes):
        choices = chain.from_iterable(combinations(left, many) for many in (3, 2, 1))
        dims = next((dims for dims in choices if prod(left[dim] for dim in dims) == size), ())
        if size > 1 and not dims:
            return []
        found.append(tuple(left.pop(dim) if dim in dims else 1 for dim in range(len(lengths))))
    return found[::-1]


def _split_dimensions(lengths: Sequence[int], sizes: Sequence[int]) -> list[_Share]:
    """Return parts of dimensions for each axis, the last first, by preference."""
    taken = [1] * len(lengths)
    found: list[_Share] = []
    for size in reversed(sizes):
        parts = [
            [part for part in range(1, free + 1) if free % part == 0 and size % part == 0]
            for free in (length // used for length, used in zip(lengths, taken, strict=True))
        ]
        splits = [split for split in product(*parts) if prod(split) == size]
        best = max(splits, key=lambda split: _preference(split, lengths, taken))
        taken = [used * part for used, part in zip(taken, best, strict=True)]
        found.append(best)
    return found[::-1]


def _preference(
    split: _Share, lengths: Sequence[int], taken: Sequence[int]
) -> tuple[int, int, int, _Share]:
    """Return JAX's preference: most devices on whole dimensions, many of these, then used ones."""
    whole = [part for part, length in zip(split, lengths, strict=True) if part == length]
    used = prod(part for part, before in zip(split, taken, strict=True) if before > 1)
    return prod(whole), sum(part > 1 for part in whole), used, split
