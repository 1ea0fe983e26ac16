"""Replica groups and source-target pairs of HLO, in all its forms, as arrays of device ids."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from tpusim.errors import FileError

Ids = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Device ids, [group, member]; or pairs, [pair, (source, target)].

    note: what of the text was left out, if anything was.
    """

    ids: Ids
    pairs: bool = False
    note: str = ""

    @property
    def key(self) -> tuple[bool, tuple[int, ...], bytes]:
        """Equal for equal groups, whatever their order; the order of members counts."""
        return _key(self)

    @property
    def size(self) -> int:
        """Members of a group."""
        return int(self.ids.shape[1])


@lru_cache(maxsize=4096)
def _key(groups: Groups) -> tuple[bool, tuple[int, ...], bytes]:
    ordered = groups.ids[np.argsort(groups.ids[:, 0], kind="stable")]
    return groups.pairs, ordered.shape, ordered.astype(np.int32).tobytes()


_GROUPS = re.compile(r"\breplica_groups=")
_PAIRS = re.compile(r"\bsource_target_pairs=(\{(?:\{\d+,\d+\},?)*\})")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"@?mesh\[([^\]]*)\](?:, ?device_ids=\(\[?([^)\]]*?)\]?(?:T\(([\d,]+)\))?\))? ?\{([^}]*)\}"
)
_AXIS = re.compile(r"'?([^'=,]+)'?=(\d+)")
_SUB_AXIS = re.compile(r"'?([^',:]+)'?(?::\((\d+)\)(\d+))?")
_LIST = re.compile(r"\{((?:\{[\d,]*\},?)*)\}")
_CHANNEL = re.compile(r"\bchannel_id=\d+")

ACROSS_PARTITIONS = (
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
"""Collectives whose ids, with a channel, are partitions rather than replicas."""


@lru_cache(maxsize=4096)
def read_groups(attributes: str, opcode: str, devices: int, replicas: int = 1) -> Groups | None:
    """The groups or pairs of a collective; None where it names none.

    devices: that run the program, `replicas` of each partition. A device's number is
    replica x partitions + partition. What the ids stand for follows from `channel_id` and
    `use_global_device_ids` (XLA, `collective_ops_utils.h`, GetCollectiveOpGroupMode).
    Raises FileError for what is no groups of so many devices.
    """
    opened, pairs = _GROUPS.search(attributes), _PAIRS.search(attributes)
    if not opened and not pairs:
        return None
    text = pairs[1] if pairs else attributes[opened.end() :] if opened else ""
    try:
        whole = (
            Groups(_numbers(text).reshape(-1, 2), pairs=True) if pairs else _parse(text, devices)
        )
    except (ValueError, IndexError, OverflowError) as error:
        raise FileError(
            f"{text[:60]!r} are no groups of the program's {devices} devices"
        ) from error
    channel = bool(_CHANNEL.search(attributes))
    kind = opcode.removesuffix("-start")
    found = _flat(whole, channel, _is_global(attributes), kind, devices // replicas, replicas)
    if found.ids.max(initial=0) >= devices:
        raise FileError(
            f"the groups {text[:60]!r} are of device {found.ids.max()}, but the program is for "
            f"{devices} devices"
        )
    return found


def _is_global(attributes: str) -> bool:
    return "use_global_device_ids=true" in attributes


def _parse(text: str, devices: int) -> Groups:
    """The ids as the text has them; none where it leaves the groups out."""
    if found := _IOTA.match(text):
        _check(_integers(found[2]), devices)
        return Groups(_iota(found[1], found[2], found[3] or ""))
    if found := _MESH.match(text):
        _check([int(size) for _, size in _AXIS.findall(found[1])], devices)
        return Groups(_mesh(found[1], found[2] or "", found[3] or "", found[4]))
    found = _LIST.match(text)
    if found is None:
        raise ValueError(text)
    return _listed(found[0])


def _check(sizes: Sequence[int], devices: int) -> None:
    if prod(sizes) > devices:
        raise ValueError(sizes)


@lru_cache(maxsize=1024)
def _listed(text: str) -> Groups:
    members = [part.strip("{,") for part in text[1:-1].split("}") if part.strip("{,")]
    sizes = [part.count(",") + 1 for part in members]
    most = max(sizes, default=0)
    kept = [part for part, size in zip(members, sizes, strict=True) if size == most]
    note = "" if len(kept) == len(sizes) else "only the largest of groups of several sizes count"
    return Groups(_numbers(",".join(kept)).reshape(len(kept), most), note=note)


@lru_cache(maxsize=1024)
def _iota(shape: str, dims: str, turned: str) -> Ids:
    """`[4,2]<=[2,4]T(1,0)`: 0, 1, ... laid row by row, transposed, and cut into groups anew."""
    laid = _laid(_integers(dims), turned)
    return laid.reshape(_integers(shape))


@lru_cache(maxsize=1024)
def _mesh(axes: str, dims: str, turned: str, grouped: str) -> Ids:
    """The groups along axes of a mesh, or along parts of them.

    `'a':(4)2` is the digit of axis a with 4 places before it: the axis is split into 4, 2, and the
    rest (XLA, `replica_group.cc`).
    """
    sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
    ids = np.arange(prod(sizes.values()), dtype=np.intp)
    if turned:
        ids = _laid(_integers(dims), turned)
    elif dims:
        ids = np.array(_integers(dims), dtype=np.intp)
    wanted = [(name, int(before or 1), int(size or sizes[name]))
              for name, before, size in _SUB_AXIS.findall(grouped) if name in sizes]  # fmt: skip
    cuts = {name: sorted({1, size, *(cut for axis, before, part in wanted if axis == name
                                     for cut in (before, before * part))})
            for name, size in sizes.items()}  # fmt: skip
    digits = [(name, low, high // low) for name in sizes
              for low, high in _between(cuts[name])]  # fmt: skip
    inside = [digits.index(each) for each in wanted if each in digits]
    order = [at for at in range(len(digits)) if at not in inside] + inside
    laid = ids.reshape([size for _, _, size in digits]).transpose(order)
    return laid.reshape(-1, prod(digits[at][2] for at in inside))


def _between(cuts: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(cuts)) or [(1, 1)]


def _laid(dims: Sequence[int], turned: str) -> Ids:
    laid = np.arange(prod(dims), dtype=np.intp).reshape(tuple(dims))
    return laid.transpose(_integers(turned)) if turned else laid


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _numbers(text: str) -> Ids:
    """All the numbers of a text, fast."""
    plain = text.translate(_BRACES)
    return np.array(plain.split(","), dtype=np.intp) if plain else np.zeros(0, dtype=np.intp)


_BRACES = {ord("{"): None, ord("}"): None}


def _flat(
    groups: Groups, channel: bool, whole: bool, kind: str, partitions: int, replicas: int
) -> Groups:  # fmt: skip
    """The groups of devices that groups of replicas, of partitions, or of devices are."""
    ids, everywhere = groups.ids, whole and channel
    across = channel and kind in ACROSS_PARTITIONS
    if not ids.size:
        many = partitions * replicas if everywhere else partitions if across else replicas
        ids = np.arange(many, dtype=np.intp).reshape(1, -1)
    if everywhere:
        return replace(groups, ids=ids)
    if across:
        turns = np.arange(replicas, dtype=np.intp)[:, None, None] * partitions
        flat = ids + turns
    elif channel:
        members = ids[:, :, None] * partitions + np.arange(partitions, dtype=np.intp)
        flat = members.reshape(1, len(ids), -1)
    else:
        flat = ids * partitions + np.arange(partitions, dtype=np.intp)[:, None, None]
    return Groups(flat.reshape(-1, flat.shape[-1]), groups.pairs, groups.note)
