"""Mesh inference: from groups of device ids to the axes of a mesh on the torus.

The groups of a program are mostly products of parts of the torus: a part is a digit of the
coordinates along a dimension (`tpusim.hardware.spans`), of the cores of a chip, or of the slices.
The coarsest parts of which all groups are made are the axes of the program, or the axes of the
user's mesh where these are such parts. Groups that no parts make are listed device by device.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from tpusim.base.errors import PlanError
from tpusim.compiler.hlo.replica_groups import Ids, ReplicaGroups
from tpusim.compiler.to_program.axis_names import AxisNames, unique_name
from tpusim.compiler.to_program.device_ids import Coordinates, DeviceIds, check_device_count
from tpusim.compiler.to_program.mesh_axes import ProgramAxes, merge_spans, program_axes
from tpusim.compiler.to_program.torus_digits import SLICES, Parts, TorusDigits, mesh_parts
from tpusim.hardware import DCN_PREFIX, ListedGroups, Placement, Slice, Span

RARE_FACTOR = 10
"""Groups that are rarer than the most frequent ones by this factor do not make axes first."""

_GroupsKey = tuple[bool, tuple[int, ...], bytes]


@dataclass(frozen=True, slots=True)
class InferredMesh:
    """The axes that make up a program's groups, with their sizes and their placement.

    across: those that run across slices, as parts of the slice number.
    unnamed: those that are no axes of the user's mesh, and are named for what they are on.
    """

    axes: tuple[tuple[str, int], ...]
    placement: Placement
    across: tuple[tuple[str, Parts], ...] = ()
    unnamed: tuple[str, ...] = ()
    _known: Mapping[_GroupsKey, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _sent: Mapping[_GroupsKey, tuple[str, ...]] = field(default_factory=dict, repr=False)

    @property
    def devices(self) -> int:
        """Devices of all slices, even if each slice has a program of its own."""
        return prod(size for _, size in self.axes)

    def axes_of(self, groups: ReplicaGroups) -> tuple[str, ...]:
        """Return the axes that the groups span, none for groups of one.

        Groups that no axes make have a name of their own, which the placement lists. Raises
        KeyError for groups that the mesh was not inferred from.
        """
        return self._known[groups.key]

    def axes_across(self, slices: ReplicaGroups | None) -> tuple[str, ...]:
        """Return the axes that groups or pairs of slices span; for None, all that cross slices.

        Pairs have a name of their own, which the placement lists.
        """
        if slices is None:
            return tuple(name for name, _ in self.across)
        sent = self._sent.get(slices.key) if slices.pairs else None
        return _slice_axes_crossed(slices.ids, self.across) if sent is None else sent


def _slice_axes_crossed(
    slices: Coordinates, across: Iterable[tuple[str, Parts]]
) -> tuple[str, ...]:
    """Return the axes across slices along which members of a group, [group, member], differ."""
    return tuple(
        name for name, parts in across if any(_crosses_slices(slices, part) for part in parts)
    )


def _crosses_slices(slices: Coordinates, part: Span) -> bool:
    digits = slices // part.stride % part.size
    return bool((digits != digits[:, :1]).any())


def infer_mesh(
    module_groups: Iterable[ReplicaGroups],
    devices: DeviceIds,
    pod: Slice,
    mesh: Mapping[str, int] | None = None,
    sent: Iterable[ReplicaGroups] = (),
) -> InferredMesh:
    """Return the axes for all groups and permutes of a program.

    module_groups: groups, once per occurrence. If no group has an id beyond those of one slice, the
        program is that of each slice.
    mesh: the user's, over the devices in row-major order. Its axes keep their names where they are
        parts of the torus, with `dcn_` before the part that runs across slices, and there alone.
        Without a mesh the most frequent groups make the axes, which are named for their parts of
        the torus.
    sent: pairs of slices, for transfers from some slices to others.

    Raise PlanError for a mesh of other devices.
    """
    counts: Counter[_GroupsKey] = Counter()
    every: dict[_GroupsKey, ReplicaGroups] = {}
    for groups in module_groups:
        counts[groups.key] += 1
        every.setdefault(groups.key, groups)
    whole = TorusDigits.of(devices, pod)
    alone = _is_one_slice(every.values(), devices, pod)
    torus = TorusDigits.of(devices.of_slice(), pod) if alone else whole
    wanted = {key: torus.parts(groups.ids) for key, groups in every.items() if not groups.pairs}
    made = _by_frequency({parts: counts[key] for key, parts in wanted.items() if parts})
    given = mesh or {}
    axes = program_axes(whole.lengths, [*mesh_parts(given, whole), *made])
    axes = _give_last_axis(axes, given)
    called = AxisNames.of(axes.axes, given, whole.lengths)
    listed: dict[str, ListedGroups] = {}
    known = {}
    for key, groups in every.items():
        numbers = None if groups.pairs else axes.made_of(wanted[key])
        if numbers is None:
            along = _axes_crossed(groups.ids, axes, called, torus, {} if alone else given)
            known[key] = _list_groups(groups, wanted.get(key), torus, along, listed, called)
        else:
            known[key] = tuple(called.names[number] for number in numbers)
    named = tuple(zip(called.names, axes.axes, strict=True))
    sizes = tuple((name, axis.size) for name, axis in named)
    spans = tuple((name, () if axis.across else axis.parts) for name, axis in named)
    across = tuple((name, axis.parts) for name, axis in named if axis.across)
    pairs = {
        each.key: _list_slice_pairs(each, across, torus, listed, called)
        for each in sent
        if each.ids.min() >= 0 and each.ids.max() < pod.num_slices
    }
    placement = Placement(spans, tuple(listed.items()))
    return InferredMesh(sizes, placement, across, called.unnamed, known, pairs)


def _is_one_slice(every: Iterable[ReplicaGroups], devices: DeviceIds, pod: Slice) -> bool:
    """Return True if each of several slices has a program of its own, by the ids in use.

    Raise PlanError for the id of no device.
    """
    last = max((int(groups.ids.max(initial=0)) for groups in every), default=0)
    if last >= len(devices):
        raise PlanError(
            f"a collective names device {last}, and the program has {len(devices)}, from 0 on; "
            "give the HLO as the compiler printed it"
        )
    return pod.num_slices > 1 and last < len(devices) // pod.num_slices


def _list_slice_pairs(
    pairs: ReplicaGroups,
    across: Iterable[tuple[str, Parts]],
    torus: TorusDigits,
    listed: dict[str, ListedGroups],
    called: AxisNames,
) -> tuple[str, ...]:
    """Return the name under which pairs of slices are listed, for any sending devices."""
    along = _slice_axes_crossed(pairs.ids, across)
    ends = np.zeros((*pairs.ids.shape, torus.all_coordinates.shape[1]), dtype=np.intp)
    ends[..., 0] = pairs.ids
    if not along:
        return ()
    return (_listed_name(ListedGroups.of(ends, True, along), listed, 2, called),)


def locate_devices(
    module_groups: Iterable[ReplicaGroups],
    count: int,
    pod: Slice,
    rows: Sequence[Sequence[int]] = (),
    mesh: Mapping[str, int] | None = None,
) -> DeviceIds:
    """Return the positions of the `count` devices of a program.

    rows: [slice, x, y, z, core] of each, if known. Otherwise JAX's order of the mesh on the slice
        is taken, and without a mesh that of the one implied by the program's groups: a guess, with
        a note.

    Raise PlanError if the program, the mesh or the rows do not have the devices of the pod.
    """
    check_device_count(count, pod)
    if len(rows):
        return DeviceIds.from_rows(rows, pod)
    if mesh:
        return DeviceIds.on_mesh(mesh, pod)
    sizes = implied_mesh(module_groups, pod.devices // pod.num_slices)
    if len(sizes) < 2:
        return DeviceIds.in_order(pod)
    across = {f"{DCN_PREFIX}slices": pod.num_slices} if pod.num_slices > 1 else {}
    found = DeviceIds.on_mesh(across | {f"axis_{at}": size for at, size in enumerate(sizes)}, pod)
    shape = " x ".join(map(str, [*across.values(), *sizes]))
    note = (
        "the program does not record the positions of its devices: its groups are those of a mesh "
        f"of {shape}, placed on {pod} as JAX does; give the mesh that it was compiled for"
    )
    return replace(found, note="; ".join(filter(None, (found.note, note))))


def implied_mesh(module_groups: Iterable[ReplicaGroups], count: int) -> tuple[int, ...]:
    """Return the sizes of the mesh whose axes, in the order of the ids, make most of the groups.

    count: devices per slice, whose ids are consecutive.
    """
    line = TorusDigits(np.arange(count)[:, None], {0: count}, np.zeros((0, 0), dtype=np.intp))
    found: Counter[Parts] = Counter()
    for groups in module_groups:
        ids = groups.ids[(groups.ids < count).all(axis=1)]
        parts = None if groups.pairs else line.parts(ids)
        if parts:
            found[parts] += 1
    axes = program_axes(line.lengths, _by_frequency(found))
    spans = [span for axis in axes.axes for span in axis.parts]
    return tuple(span.size for span in sorted(spans, key=lambda span: -span.stride))


def _give_last_axis(axes: ProgramAxes, mesh: Mapping[str, int]) -> ProgramAxes:
    """Return the axes; if one is of no user's axis and the user has one left, they are the same.

    This occurs where JAX traverses a small slice as one ring: groups over both axes are the same as
    if the axis were the rest of the torus; those along it alone are listed.
    """
    placed = {axis.user for axis in axes.axes}
    left = [user for user, size in mesh.items() if size > 1 and user not in placed]
    free = [at for at, axis in enumerate(axes.axes) if axis.user is None]
    if len(left) != 1 or len(free) != 1:
        return axes
    last = axes.axes[free[0]]
    if last.size != mesh[left[0]] or last.across:
        return axes
    given = list(axes.axes)
    given[free[0]] = last._replace(user=left[0])
    return replace(axes, axes=given)


def _by_frequency(counts: Mapping[Parts, int]) -> list[tuple[None, Parts]]:
    """Return groups in the order in which they make axes: small before large, and rare ones last.

    Large groups can be several axes; small ones would be lost in the axis of a large one.
    """
    most = max(counts.values(), default=0)

    def order(parts: Parts) -> tuple[bool, int, int]:
        return RARE_FACTOR * counts[parts] < most, prod(p.size for p in parts), -counts[parts]

    return [(None, parts) for parts in sorted(counts, key=order)]


def _axes_crossed(
    ids: Ids, axes: ProgramAxes, called: AxisNames, torus: TorusDigits, mesh: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the axes along which members of a group differ: the user's own within a slice.

    A user's axis need not be part of the torus, as where JAX traverses a small slice as one ring.
    """
    crossed = [at for at, axis in enumerate(axes.axes) if _crosses(ids, axis.parts, torus)]
    if not mesh or any(axes.axes[at].across for at in crossed):
        return tuple(called.names[at] for at in crossed)
    indices = np.unravel_index(ids, tuple(mesh.values()))
    return tuple(
        called.users[user]
        for user, index in zip(mesh, indices, strict=True)
        if (index != index[:, :1]).any()
    )


def _list_groups(
    groups: ReplicaGroups,
    parts: Parts | None,
    torus: TorusDigits,
    along: tuple[str, ...],
    listed: dict[str, ListedGroups],
    called: AxisNames,
) -> tuple[str, ...]:
    """Return the name under which pairs, or groups that no axes make, are listed, if any."""
    if parts is not None:
        spans = tuple(part for part in merge_spans(parts) if part.dim != SLICES)
        across = prod(part.size for part in parts if part.dim == SLICES)
        found = ListedGroups(along, spans=spans, slices=across)
    elif along:
        ids = groups.ids
        ids = ids[ids[:, 0] != ids[:, 1]] if groups.pairs else ids
        found = ListedGroups.of(torus.all_coordinates[ids], groups.pairs, along)
    else:
        return ()
    return (_listed_name(found, listed, groups.size, called),)


def _crosses(ids: Ids, parts: Parts, torus: TorusDigits) -> bool:
    for part in (part for part in parts if part.dim in torus.lengths):
        digits = torus.digit(part)[ids]
        if (digits != digits[:, :1]).any():
            return True
    return False


def _listed_name(
    found: ListedGroups, listed: dict[str, ListedGroups], size: int, called: AxisNames
) -> str:
    """Return a name for listed groups: the same for equal groups, and that of no axis."""
    known = next((name for name, other in listed.items() if other == found), "")
    if known:
        return known
    kind = "permute" if found.pairs else f"of {size}"
    base = f"{'+'.join(found.along)} {kind}".strip()
    name = unique_name(base, {*listed, *called.names, *called.users.values()})
    listed[name] = found
    return name
