"""Replica groups and source-target pairs of HLO, in all their forms, as arrays of device ids."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import FileError
from tpusim.compiler.hlo.shapes import integers

Ids = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaGroups:
    """Device ids, [group, member]; or pairs, [pair, (source, target)].

    note: anything in the text that was left out.
    """

    ids: Ids
    pairs: bool = False
    note: str = ""

    @property
    def key(self) -> tuple[bool, tuple[int, ...], bytes]:
        """Key that is equal for equal groups in any order; the order of members counts."""
        return _key(self)

    @property
    def size(self) -> int:
        """Members per group."""
        return int(self.ids.shape[1])


@lru_cache(maxsize=4096)
def _key(groups: ReplicaGroups) -> tuple[bool, tuple[int, ...], bytes]:
    ordered = groups.ids[np.argsort(groups.ids[:, 0], kind="stable")]
    return groups.pairs, ordered.shape, ordered.astype(np.int32).tobytes()


_GROUPS_ATTRIBUTE = re.compile(r"\breplica_groups=")
_SOURCE_TARGET_PAIRS = re.compile(r"\bsource_target_pairs=(\{(?:\{\d+,\d+\},?)*\})")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"@?mesh\[([^\]]*)\](?:, ?device_ids=\(\[?([^)\]]*?)\]?(?:T\(([\d,]+)\))?\))? ?\{([^}]*)\}"
)
_MESH_AXIS = re.compile(r"'?([^'=,]+)'?=(\d+)")
_SUB_AXIS = re.compile(r"'?([^',:]+)'?(?::\((\d+)\)(\d+))?")
_GROUP_LISTS = re.compile(r"\{((?:\{[\d,]*\},?)*)\}")
_CHANNEL = re.compile(r"\bchannel_id=\d+")

ACROSS_PARTITIONS = (
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
"""Collectives whose ids, with a channel, are partitions rather than replicas."""


@lru_cache(maxsize=4096)
def read_groups(
    attributes: str, opcode: str, devices: int, replicas: int = 1
) -> ReplicaGroups | None:
    """Return the groups or pairs of a collective; None if it names none.

    devices: devices that run the program, `replicas` for each partition. The number of a device is
        replica x partitions + partition.

    The meaning of the ids follows from `channel_id` and `use_global_device_ids` (XLA,
    `collective_ops_utils.h`, GetCollectiveOpGroupMode). Raise FileError for text that is not
    groups of that many devices.
    """
    opened, pairs = _GROUPS_ATTRIBUTE.search(attributes), _SOURCE_TARGET_PAIRS.search(attributes)
    if not opened and not pairs:
        return None
    text = pairs[1] if pairs else attributes[opened.end() :] if opened else ""
    try:
        whole = (
            ReplicaGroups(_numbers(text).reshape(-1, 2), pairs=True)
            if pairs
            else _parse(text, devices)
        )
    except (ValueError, OverflowError) as error:
        raise FileError(
            f"{text[:60]!r} are not groups of the program's {devices} devices"
        ) from error
    channel = bool(_CHANNEL.search(attributes))
    kind = opcode.removesuffix("-start")
    everywhere = channel and "use_global_device_ids=true" in attributes
    found = _device_groups(whole, channel, everywhere, kind, devices // replicas, replicas)
    if found.ids.max(initial=0) >= devices:
        raise FileError(
            f"the groups {text[:60]!r} name device {found.ids.max()}, but the program is for "
            f"{devices} devices"
        )
    return found


def _parse(text: str, devices: int) -> ReplicaGroups:
    """Return the ids in the text; an empty array where it leaves the groups out."""
    if found := _IOTA.match(text):
        _check(integers(found[2]), devices)
        return ReplicaGroups(_iota(found[1], found[2], found[3] or ""))
    if found := _MESH.match(text):
        _check([int(size) for _, size in _MESH_AXIS.findall(found[1])], devices)
        return ReplicaGroups(_mesh(found[1], found[2] or "", found[3] or "", found[4]))
    found = _GROUP_LISTS.match(text)
    if found is None:
        raise ValueError(text)
    return _listed(found[0])


def _check(sizes: Sequence[int], devices: int) -> None:
    if prod(sizes) > devices:
        raise ValueError(sizes)


@lru_cache(maxsize=1024)
def _listed(text: str) -> ReplicaGroups:
    members = [part.strip("{,") for part in text[1:-1].split("}") if part.strip("{,")]
    sizes = [part.count(",") + 1 for part in members]
    most = max(sizes, default=0)
    kept = [part for part, size in zip(members, sizes, strict=True) if size == most]
    note = "" if len(kept) == len(sizes) else "of groups of several sizes, only the largest count"
    return ReplicaGroups(_numbers(",".join(kept)).reshape(len(kept), most), note=note)


@lru_cache(maxsize=1024)
def _iota(shape: str, dims: str, order: str) -> Ids:
    """Read `[4,2]<=[2,4]T(1,0)`: 0, 1, ... row by row, transposed, then reshaped into groups."""
    return _transposed_iota(integers(dims), order).reshape(integers(shape))


@lru_cache(maxsize=1024)
def _mesh(axes: str, dims: str, order: str, grouped: str) -> Ids:
    """Return the groups along axes of a mesh, or along parts of axes.

    `'a':(4)2` is the digit of axis a that follows a digit of 4: the axis is split into 4, 2, and
    the rest (XLA, `replica_group.cc`).
    """
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(axes)}
    ids = np.arange(prod(sizes.values()), dtype=np.intp)
    if order:
        ids = _transposed_iota(integers(dims), order)
    elif dims:
        ids = np.array(integers(dims), dtype=np.intp)
    wanted = [
        (name, int(before or 1), int(size or sizes[name]))
        for name, before, size in _SUB_AXIS.findall(grouped)
        if name in sizes
    ]
    cuts = {name: {1, size} for name, size in sizes.items()}
    for name, before, size in wanted:
        cuts[name] |= {before, before * size}
    digits = [
        (name, low, high // low)
        for name in sizes
        for low, high in list(pairwise(sorted(cuts[name]))) or [(1, 1)]
    ]
    inner = [digits.index(each) for each in wanted if each in digits]
    outer = [at for at in range(len(digits)) if at not in inner]
    grid = ids.reshape([size for _, _, size in digits]).transpose(outer + inner)
    return grid.reshape(-1, prod(digits[at][2] for at in inner))


def _transposed_iota(dims: Sequence[int], order: str) -> Ids:
    iota = np.arange(prod(dims), dtype=np.intp).reshape(tuple(dims))
    return iota.transpose(integers(order)) if order else iota


def _numbers(text: str) -> Ids:
    plain = text.translate(_BRACES)
    return np.array(plain.split(","), dtype=np.intp) if plain else np.zeros(0, dtype=np.intp)


_BRACES = {ord("{"): None, ord("}"): None}


def _device_groups(
    groups: ReplicaGroups,
    channel: bool,
    everywhere: bool,
    kind: str,
    partitions: int,
    replicas: int,
) -> ReplicaGroups:
    """Return groups of devices for groups of replicas, of partitions, or of devices."""
    ids, across = groups.ids, channel and kind in ACROSS_PARTITIONS
    if groups.pairs and not ids.size:  # a permute that moves nothing, in programs for slices
        return groups
    if not ids.size:
        many = partitions * replicas if everywhere else partitions if across else replicas
        ids = np.arange(many, dtype=np.intp).reshape(1, -1)
    if everywhere:
        return replace(groups, ids=ids)
    if across:
        offsets = np.arange(replicas, dtype=np.intp)[:, None, None] * partitions
        flat = ids + offsets
    elif channel:
        members = ids[:, :, None] * partitions + np.arange(partitions, dtype=np.intp)
        flat = members.reshape(1, len(ids), -1)
    else:
        flat = ids * partitions + np.arange(partitions, dtype=np.intp)[:, None, None]
    return ReplicaGroups(flat.reshape(-1, flat.shape[-1]), groups.pairs, groups.note)
