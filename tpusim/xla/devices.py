"""Where the devices of a program are: the slice, chip and core of each id that its HLO speaks of.

HLO numbers devices by their place in the device assignment, which for a program of JAX is
`mesh.devices.flat`; the ids that a runtime gives its devices do not occur.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tpusim.errors import PlanError
from tpusim.hardware import Slice
from tpusim.hardware.placement import DCN_PREFIX, check_mesh

Places = NDArray[np.intp]
"""A row a device: its slice, its coordinates on the torus, its core on the chip."""

_RINGS: Mapping[tuple[int, ...], tuple[int, ...]] = {
    (2, 2): (0, 1, 3, 2),
    (2, 4): (0, 1, 2, 3, 7, 6, 5, 4),
    (4, 4): (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4),
}
"""The orders in which JAX goes through small slices of v5e and v6e, of chips numbered row by row
along x."""
_HOST = (0, 1, 2, 3, 6, 7, 4, 5)
"""The order of the 8 devices of a host with two a chip."""


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """The place of each device id on the slice; note: what was assumed, if anything was."""

    places: Places
    note: str = ""

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def given(cls, rows: Sequence[Sequence[int]], pod: Slice) -> "Devices":
        """Devices in the order of their ids, a row [slice, x, y, z, core] each.

        Raises PlanError where they are not the devices of the pod, each once.
        """
        found = np.asarray(rows, dtype=np.intp)
        if found.ndim != 2 or found.shape[1] != 5:
            raise PlanError("devices are rows of slice, x, y, z and core; these are not")
        _check_all(len(found), pod)
        bounds = _bounds(pod)
        past = 1 + len(pod.topology.dims)
        lost = found[:, past:4].any() or (found < 0).any()
        places = np.delete(found, slice(past, 4), axis=1)
        places[:, 0] -= places[:, 0].min(initial=0)
        if lost or (places >= bounds).any():
            most = "x".join(str(length) for length in (found.max(axis=0) + 1)[1:4])
            raise PlanError(
                f"the devices of the program are on a torus of {most} chips with "
                f"{found[:, 4].max() + 1} devices each, which {pod} has not; write the slice that "
                "it was compiled for"
            )
        if len(np.unique(places @ _strides(bounds))) < len(places):
            raise PlanError("a device of the program is given twice; write each once")
        return cls(places)

    def of_slice(self) -> "Devices":
        """Those of the first slice alone, in their order, as the program of one slice has them."""
        return replace(self, places=self.places[self.places[:, 0] == 0])

    @classmethod
    def on_mesh(cls, mesh: Mapping[str, int], pod: Slice) -> "Devices":
        """The order that `mesh_utils.create_device_mesh` of JAX gives the mesh (jax 0.10.2).

        Whole dimensions of the torus where the axes take them, the last axis first; else split
        ones, with the later axes on neighbouring chips. Small slices of v5e, v6e and 7x are
        gone through as one ring, v2 and v3 in the order of `jax.devices()`.
        Axes that start with `dcn_` run across slices (`create_hybrid_device_mesh`).
        Raises PlanError for a mesh that does not have the devices of the pod.
        """
        check_mesh(pod, mesh)
        inside = [1 if axis.startswith(DCN_PREFIX) else size for axis, size in mesh.items()]
        across = [size if axis.startswith(DCN_PREFIX) else 1 for axis, size in mesh.items()]
        one = _on_one(inside, pod).reshape(*inside, -1)
        slices = np.arange(pod.num_slices).reshape(*across, 1)
        sizes = tuple(mesh.values())
        parts = (
            np.broadcast_to(slices, (*sizes, 1)),
            np.broadcast_to(one, (*sizes, one.shape[-1])),
        )
        return cls(np.concatenate(parts, axis=-1).reshape(prod(sizes), -1))

    @classmethod
    def in_order(cls, pod: Slice) -> "Devices":
        """The order of `jax.devices()`, for a program that says nothing of its devices."""
        one = _in_order(pod)
        slices = np.repeat(np.arange(pod.num_slices), len(one))[:, None]
        places = np.concatenate([slices, np.tile(one, (pod.num_slices, 1))], axis=1)
        return cls(
            places,
            f"the program does not say which device is where: taken as jax.devices() of {pod} "
            "lists them, host by host; give the mesh that it was compiled for",
        )


def check_count(count: int, pod: Slice) -> None:
    """Raise PlanError unless a program of so many devices fits the pod.

    The compiler makes one program for all devices, or, where transfers between slices go through
    their hosts (megascale), one for those of a slice.
    """
    if count not in (pod.devices, pod.devices // pod.num_slices):
        raise PlanError(
            f"the program is for {count} device{'s' * (count != 1)}, but {pod} has {pod.devices}; "
            "write the slice that it was compiled for"
        )


def _check_all(count: int, pod: Slice) -> None:
    if count != pod.devices:
        raise PlanError(
            f"the program was compiled for {count} device{'s' * (count != 1)}, but {pod} has "
            f"{pod.devices}; write the slice that it was compiled for"
        )


def _bounds(pod: Slice) -> Places:
    return np.array((pod.num_slices, *pod.topology.dims, pod.chip.devices), dtype=np.intp)


def _strides(bounds: Places) -> Places:
    return np.append(np.cumprod(bounds[:0:-1])[::-1], 1).astype(np.intp)


def _in_order(pod: Slice) -> Places:
    """Coordinates and core of the devices of one slice: by hosts of 2 x 2 chips, x first."""
    dims = (*pod.topology.dims, 1)[:3]
    hosts = [range(0, length, min(2, length)) for length in dims[:2]]
    chips = [
        (x, y, z)[: len(pod.topology.dims)]
        for z in range(dims[2]) for y0 in hosts[1] for x0 in hosts[0]
        for y in range(y0, min(y0 + 2, dims[1])) for x in range(x0, min(x0 + 2, dims[0]))
    ]  # fmt: skip
    return np.array([(*chip, core) for chip in chips for core in range(pod.chip.devices)], np.intp)


def _on_one(sizes: Sequence[int], pod: Slice) -> Places:
    """Coordinates and core of the devices of a mesh on one slice, in the order of the mesh."""
    generation, dims = pod.chip.generation, pod.topology.dims
    ordered = _in_order(pod)
    if generation in ("v2", "v3"):
        return _by_hosts(ordered) if len(ordered) == 8 or sizes[-1] == 8 else ordered
    if generation in ("7x", "7") and len(ordered) <= 32 and max(dims[:2]) <= 2 and prod(dims) > 1:
        return _by_hosts(ordered)
    if generation in ("v5e", "v6e") and dims in _RINGS and (dims != (4, 4) or max(sizes) == 16):
        ring = np.array(_RINGS[dims])
        chips = np.stack(np.unravel_index(ring, dims[::-1])[::-1], axis=1)
        return np.append(chips, np.zeros((len(ring), 1), np.intp), axis=1)
    lengths = (*(*dims, 1)[:3], *([pod.chip.devices] if pod.chip.devices > 1 else []))
    found = np.stack(np.unravel_index(_numbers(lengths, sizes), lengths), axis=1)
    found = np.delete(found, slice(len(dims), 3), axis=1)
    cored = found if pod.chip.devices > 1 else np.append(found, 0 * found[:, :1], axis=1)
    return np.asarray(cored, dtype=np.intp)


def _by_hosts(ordered: Places) -> Places:
    return ordered.reshape(-1, 8, ordered.shape[1])[:, _HOST].reshape(ordered.shape)


def _numbers(lengths: Sequence[int], sizes: Sequence[int]) -> NDArray[np.intp]:
    """The number on the torus, row by row, of each device of a mesh."""
    shares = _whole(lengths, sizes) or _split(lengths, sizes)
    count = len(sizes)
    laid = np.arange(prod(lengths)).reshape([share[dim] for dim in range(len(lengths))
                                             for share in shares])  # fmt: skip
    order = [dim * count + axis for axis in range(count) for dim in range(len(lengths))]
    return np.asarray(laid.transpose(order).reshape(-1), dtype=np.intp)


_Share = tuple[int, ...]
"""How many places of each dimension an axis takes."""


def _whole(lengths: Sequence[int], sizes: Sequence[int]) -> list[_Share]:
    """Whole dimensions for each axis, the last axis first and as many as can be; or nothing."""
    left = dict(enumerate(lengths))
    found: list[_Share] = []
    for size in reversed(sizes):
        ways = (way for many in (3, 2, 1) for way in combinations(left, many)
                if prod(left[dim] for dim in way) == size)  # fmt: skip
        way = next(ways, ())
        if size > 1 and not way:
            return []
        found.append(tuple(left.pop(dim) if dim in way else 1 for dim in range(len(lengths))))
    return found[::-1]


def _split(lengths: Sequence[int], sizes: Sequence[int]) -> list[_Share]:
    """Parts of dimensions for each axis, the last first: whole ones, then many, then the first."""
    taken = [1] * len(lengths)
    found: list[_Share] = []
    for size in reversed(sizes):
        free = [range(1, length // used + 1) for length, used in zip(lengths, taken, strict=True)]
        parts = [[part for part in ways if length // used % part == 0 and size % part == 0]
                 for ways, length, used in zip(free, lengths, taken, strict=True)]  # fmt: skip
        ways = [way for way in product(*parts) if prod(way) == size]
        best = max(ways, key=lambda way: _preference(way, lengths, taken))
        taken = [used * part for used, part in zip(taken, best, strict=True)]
        found.append(best)
    return found[::-1]


def _preference(
    way: _Share, lengths: Sequence[int], taken: Sequence[int]
) -> tuple[int, int, int, _Share]:
    """What JAX prefers: the most on whole dimensions, many of them, then those in use already."""
    whole = [part for part, length in zip(way, lengths, strict=True) if part == length]
    used = prod(part for part, before in zip(way, taken, strict=True) if before > 1)
    return prod(whole), sum(part > 1 for part in whole), used, way
