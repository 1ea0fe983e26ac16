"""Digits of device coordinates: parts of torus dimensions, of the cores of a chip, or of slices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from tpusim.base.errors import PlanError
from tpusim.base.units import format_mesh
from tpusim.compiler.hlo.replica_groups import Ids
from tpusim.compiler.to_program.device_ids import Coordinates, DeviceIds
from tpusim.hardware import DIE, Slice, Span

SLICES = -2
"""Number of the dimension of slices."""

Parts = tuple[Span, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TorusDigits:
    """The devices' coordinates along each dimension longer than one, [device, dimension].

    all_coordinates: with those of length one.
    """

    coordinates: Coordinates
    lengths: Mapping[int, int]
    all_coordinates: Coordinates

    @classmethod
    def of(cls, devices: DeviceIds, pod: Slice) -> "TorusDigits":
        """Return the torus of the pod with these devices on it, of all its slices or of one."""
        numbers = (SLICES, *range(len(pod.topology.dims)), DIE)
        slices = len(np.unique(devices.coordinates[:, 0]))
        sizes = (slices, *pod.topology.dims, pod.chip.devices)
        lengths = {dim: size for dim, size in zip(numbers, sizes, strict=True) if size > 1}
        kept = [at for at, size in enumerate(sizes) if size > 1]
        return cls(devices.coordinates[:, kept], lengths, devices.coordinates)

    def parts(self, ids: Ids) -> Parts | None:
        """Return the parts of which each of these groups is the product; None if there are none."""
        if ids.size != len(self.coordinates) or len(np.unique(ids)) != ids.size:
            return None
        members = self.coordinates[ids]
        first = members[0]
        found: list[Span] = []
        for column, (dim, length) in enumerate(self.lengths.items()):
            digits = _digits(np.unique(first[:, column]), dim, length)
            if digits is None:
                return None
            found += digits
        if prod(part.size for part in found) != ids.shape[1]:
            return None
        rest = members.copy()
        for column, dim in enumerate(self.lengths):
            for part in (part for part in found if part.dim == dim):
                rest[..., column] -= members[..., column] // part.stride % part.size * part.stride
        return tuple(found) if (rest == rest[:, :1]).all() else None

    def digit(self, part: Span) -> Coordinates:
        """Return the coordinate of each device on a part."""
        column = list(self.lengths).index(part.dim)
        return np.asarray(self.coordinates[:, column] // part.stride % part.size)


def _digits(values: Coordinates, dim: int, length: int) -> list[Span] | None:
    """Return the digits in which coordinates along a dimension differ, lowest first, or None."""
    left = values - values[0]
    found: list[Span] = []
    while len(left) > 1:
        stride = int(left[1])
        run = int(np.argmin(np.append(left[: len(left)] == stride * np.arange(len(left)), False)))
        if len(left) % run or length % (stride * run):
            return None
        blocks = left.reshape(-1, run)
        if (blocks - blocks[:, :1] != left[:run]).any():
            return None
        found.append(Span(dim, run, stride))
        left = blocks[:, 0]
    return found


def mesh_parts(mesh: Mapping[str, int], torus: TorusDigits) -> Iterator[tuple[str, Parts | None]]:
    """Yield the parts of each axis of the user's mesh; None if it is not made of parts."""
    if mesh and prod(mesh.values()) != len(torus.coordinates):
        written = format_mesh(mesh)
        raise PlanError(
            f"the mesh has {written} = {prod(mesh.values())}, but the program is for "
            f"{len(torus.coordinates)} devices; write the mesh that it was compiled for"
        )
    if not mesh:
        return
    ids = np.arange(len(torus.coordinates)).reshape(tuple(mesh.values()))
    for at, (axis, size) in enumerate(mesh.items()):
        yield axis, torus.parts(np.moveaxis(ids, at, -1).reshape(-1, size))
