"""Shardings of GSPMD: tiles over devices that name no axes.

The uses of JAX's private names for them are in this file.
"""

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tpusim.base.errors import CompileError
from tpusim.compiler.hlo.replica_groups import ReplicaGroups
from tpusim.compiler.to_program.infer_mesh import implied_mesh

_TILES = re.compile(r"devices=\[([\d,]*)\](?:<=\[([\d,]*)\](?:T\(([\d,]*)\))?|([\d,]+))", re.ASCII)
_MOST_DEVICES = 2**20


def check_tiles(text: str) -> None:
    """Raise CompileError for a sharding whose tiles do not have its devices, each once.

    XLA ends the process for most of these. All else that is wrong with the text, it says.
    """
    for found in _TILES.finditer(text):
        tiles, grid, turned, listed = (
            [int(number[:9]) for number in (part or "").split(",") if number]
            for part in found.groups()
        )
        count = prod(tiles)
        if listed:
            fits = count == len(listed) and sorted(listed) == list(range(count))
        else:
            fits = count == prod(grid) and (not turned or sorted(turned) == list(range(len(grid))))
        if not tiles or not (grid or listed) or not fits or not 0 < count <= _MOST_DEVICES:
            raise CompileError(
                f"the sharding {text[:200]} does not have each of its devices once; write as many "
                "devices as its tiles multiply to"
            )


def tiled_sizes(shardings: Sequence[Any], devices: int) -> tuple[int, ...]:
    """Return the sizes of the mesh that shardings are over, in the order of the devices' numbers.

    shardings: `HloSharding`s, or None.
    """
    groups = (
        groups
        for each in shardings
        if each is not None and each.is_tiled() and each.num_devices() == devices
        for groups in _groups(each)
    )
    return implied_mesh(groups, devices)


def _groups(sharding: Any) -> Iterator[ReplicaGroups]:
    """Yield the groups of devices along each dimension of the tiles."""
    tiles = np.asarray(sharding.tile_assignment_devices())
    tiles = tiles.reshape(sharding.tile_assignment_dimensions())
    for at, size in enumerate(tiles.shape):
        if size > 1:
            yield ReplicaGroups(np.moveaxis(tiles, at, -1).reshape(-1, size))


def placed_over(grid: Any, sharding: Any, array: Any, what: str) -> Any:
    """Return a sharding over the devices of a mesh in its order, whatever its axes are.

    grid: a `jax.sharding.Mesh`.
    sharding: an `HloSharding`; None, and None is returned, where it is left to the compiler.
    array: the `jax.core.ShapedArray` that has it.
    what: says which array that is.

    Raise CompileError for a sharding that does not fit the array or the devices.
    """
    from jax._src.sharding_impls import GSPMDSharding

    if sharding is None or sharding.is_unknown():
        return None
    if fault := _fault(grid.size, sharding, tuple(array.shape)):
        shape = ", ".join(map(str, array.shape))
        raise CompileError(f"{what} is {array.dtype}[{shape}], and its sharding {sharding} {fault}")
    return GSPMDSharding(tuple(grid.devices.flat), sharding)


def _fault(devices: int, sharding: Any, shape: tuple[int, ...]) -> str:
    """Return what is wrong with a sharding, and a remedy; "" if it fits."""
    if sharding.is_replicated():
        return ""
    if not sharding.is_tiled():
        return f"is not over all {devices} devices; write tiles of it, or {{replicated}}"
    if sharding.num_devices() != devices:
        return f"is over {sharding.num_devices()} devices, and the slice has {devices}"
    beside = len(sharding.subgroup_types()) or int(sharding.replicate_on_last_tile_dim())
    tiles = list(sharding.tile_assignment_dimensions())
    tiles = tiles[: len(tiles) - beside]
    if len(tiles) != len(shape):
        return f"is of {len(tiles)} dimensions; write one number of parts for each dimension"
    for at, (parts, size) in enumerate(zip(tiles, shape, strict=True)):
        if size % parts:
            return (
                f"cuts dimension {at} into {parts} parts, of which {size} is no multiple; pad it, "
                "or shard another dimension"
            )
    return ""
