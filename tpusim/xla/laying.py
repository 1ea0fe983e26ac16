"""From groups of device ids to axes of a mesh on the torus.

The groups of a program are mostly products of parts of the torus: a part is a digit of the places
along a dimension (`tpusim.hardware.spans`), of the cores of a chip, or of the slices. The coarsest
parts of which all groups are made are the axes of the program, or the axes of the user's mesh where
these are such parts. What no parts make is listed device by device.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from tpusim.errors import PlanError
from tpusim.hardware import Placement, Slice, Span
from tpusim.hardware.listed import Listed
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.xla.axes import Axes, axes_of, merged
from tpusim.xla.devices import Devices, Places, check_count
from tpusim.xla.groups import Groups, Ids
from tpusim.xla.torus import SLICES, Parts, Torus, mesh_parts

RARE = 10
"""Groups that occur so many times less than the most frequent ones do not make axes first."""

_Key = tuple[bool, tuple[int, ...], bytes]


@dataclass(frozen=True, slots=True)
class Laid:
    """The axes that a program's groups are made of, with their sizes, and where they lie.

    across: those that run across slices, as parts of the number of a slice. sent: what pairs of
    slices that send are listed as.
    """

    axes: tuple[tuple[str, int], ...]
    placement: Placement
    across: tuple[tuple[str, Parts], ...] = ()
    _known: Mapping[_Key, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _sent: Mapping[_Key, tuple[str, ...]] = field(default_factory=dict, repr=False)

    @property
    def devices(self) -> int:
        """Devices of all slices, also where each slice has a program of its own."""
        return prod(size for _, size in self.axes)

    def of(self, groups: Groups) -> tuple[str, ...]:
        """The axes over which the groups reach, none for groups of one.

        Groups that no axes make have a name of their own, which the placement lists. Raises
        KeyError for groups that the layout was not made for.
        """
        return self._known[groups.key]

    def between(self, slices: Groups | None) -> tuple[str, ...]:
        """The axes over which groups or pairs of slices reach; all that there are, of none.

        Pairs have a name of their own, which the placement lists.
        """
        if slices is None:
            return tuple(name for name, _ in self.across)
        sent = self._sent.get(slices.key) if slices.pairs else None
        return _reached(slices.ids, self.across) if sent is None else sent


def _reached(slices: Places, across: Iterable[tuple[str, Parts]]) -> tuple[str, ...]:
    """The axes across slices on which those of a group, [group, member], differ in their place."""
    return tuple(name for name, parts in across if any(_apart(slices, part) for part in parts))


def _apart(slices: Places, part: Span) -> bool:
    digits = slices // part.stride % part.size
    return bool((digits != digits[:, :1]).any())


def laid(
    module_groups: Iterable[Groups], devices: Devices, pod: Slice,
    mesh: Mapping[str, int] | None = None, sent: Iterable[Groups] = (),
) -> Laid:  # fmt: skip
    """The axes for all groups and permutes of a program, each as often as it occurs.

    Where no group has an id beyond those of one slice, the program is that of each slice.
    mesh: the user's, whose places in order are the devices. Its axes keep their names where they
    are parts of the torus, with `dcn_` before what of them runs across slices. Without a mesh the
    groups that occur most make the axes, and the parts that these lie on name them.
    sent: pairs of slices, of what is sent from some to others.
    Raises PlanError for a mesh of other devices.
    """
    counts: Counter[_Key] = Counter()
    every: dict[_Key, Groups] = {}
    for groups in module_groups:
        counts[groups.key] += 1
        every.setdefault(groups.key, groups)
    whole = Torus.of(devices, pod)
    torus = Torus.of(devices.of_slice(), pod) if _alone(every.values(), devices, pod) else whole
    wanted = {key: torus.parts(groups.ids) for key, groups in every.items() if not groups.pairs}
    made = _often({parts: counts[key] for key, parts in wanted.items() if parts})
    atoms = _called(axes_of(whole.lengths, [*mesh_parts(mesh or {}, whole), *made]), mesh or {})
    listed: dict[str, Listed] = {}
    known = {}
    for key, groups in every.items():
        axes = None if groups.pairs else atoms.axes(wanted[key])
        if axes is None:
            along = _along(groups.ids, atoms, torus, mesh if torus is whole else None)
            axes = _listed(groups, wanted.get(key), torus, along, listed)
        known[key] = axes
    sizes = tuple((name, prod(part.size for part in parts)) for name, parts in atoms.named)
    spans = tuple((name, tuple(part for part in parts if part.dim != SLICES))
                  for name, parts in atoms.named)  # fmt: skip
    across = tuple((name, parts) for name, parts in atoms.named
                   if parts and parts[0].dim == SLICES)  # fmt: skip
    pairs = {each.key: _sent(each, across, torus, listed) for each in sent
             if each.ids.min() >= 0 and each.ids.max() < pod.num_slices}  # fmt: skip
    return Laid(sizes, Placement(spans, tuple(listed.items())), across, known, pairs)


def _alone(every: Iterable[Groups], devices: Devices, pod: Slice) -> bool:
    """Whether each of several slices has a program of its own, by the ids that there are.

    Raises PlanError for those of no device.
    """
    last = max((int(groups.ids.max(initial=0)) for groups in every), default=0)
    if last >= len(devices):
        raise PlanError(
            f"a collective names device {last}, and the program has {len(devices)}, from 0 on; "
            "give the HLO as the compiler printed it"
        )
    return pod.num_slices > 1 and last < len(devices) // pod.num_slices


def _sent(
    pairs: Groups, across: Iterable[tuple[str, Parts]], torus: Torus, listed: dict[str, Listed]
) -> tuple[str, ...]:  # fmt: skip
    """The name under which pairs of slices are listed, whichever devices send; none for none."""
    along = _reached(pairs.ids, across)
    places = np.zeros((*pairs.ids.shape, torus.whole.shape[1]), dtype=np.intp)
    places[..., 0] = pairs.ids
    return (_name(Listed.of(places, True, along), listed, 2),) if along else ()


def places_of(
    module_groups: Iterable[Groups], count: int, pod: Slice, rows: Sequence[Sequence[int]] = (),
    mesh: Mapping[str, int] | None = None,
) -> Devices:  # fmt: skip
    """Where the `count` devices of a program are.

    rows: [slice, x, y, z, core] of each, where that is known. Else JAX lays the mesh on the slice,
    and without a mesh the one that the program's groups are made of: a guess, and noted.
    Raises PlanError where the program, the mesh or the rows do not have the devices of the pod.
    """
    check_count(count, pod)
    if len(rows):
        return Devices.given(rows, pod)
    if mesh:
        return Devices.on_mesh(mesh, pod)
    sizes = implied_mesh(module_groups, pod.devices // pod.num_slices)
    if len(sizes) < 2:
        return Devices.in_order(pod)
    across = {f"{DCN_PREFIX}slices": pod.num_slices} if pod.num_slices > 1 else {}
    found = Devices.on_mesh(across | {f"axis_{at}": size for at, size in enumerate(sizes)}, pod)
    shape = " x ".join(map(str, [*across.values(), *sizes]))
    return replace(
        found,
        note=f"the program does not say which device is where: its groups are those of a mesh of "
        f"{shape}, taken as JAX lays it on {pod}; give the mesh that it was compiled for",
    )


def implied_mesh(module_groups: Iterable[Groups], count: int) -> tuple[int, ...]:
    """The sizes of the mesh whose axes, in the order of the ids, make most of the groups.

    count: devices of a slice, with as many ids in a row each.
    """
    line = Torus(np.arange(count)[:, None], {0: count}, np.zeros((0, 0), dtype=np.intp))
    found: Counter[Parts] = Counter()
    for groups in module_groups:
        ids = groups.ids[(groups.ids < count).all(axis=1)]
        parts = None if groups.pairs else line.parts(ids)
        if parts:
            found[parts] += 1
    atoms = axes_of(line.lengths, _often(found))
    spans = [span for _, parts in atoms.named for span in parts]
    return tuple(span.size for span in sorted(spans, key=lambda span: -span.stride))


def _called(atoms: Axes, mesh: Mapping[str, int]) -> Axes:
    """The axes, of which the only one without a name bears that of the user's only axis left.

    So it is where JAX goes through a small slice as one ring: all groups of the two together are as
    if the axis were the part of the torus that is left; those along it alone are listed.
    """
    named = [name for name, _ in atoms.named]
    left = [axis for axis, size in mesh.items() if size > 1 and axis not in named]
    unnamed = [at for at, name in enumerate(named) if name not in mesh]
    if len(left) != 1 or len(unnamed) != 1:
        return atoms
    name, parts = atoms.named[unnamed[0]]
    if prod(part.size for part in parts) != mesh[left[0]] or name.startswith(DCN_PREFIX):
        return atoms
    renamed = list(atoms.named)
    renamed[unnamed[0]] = (left[0], parts)
    return replace(atoms, named=renamed)


def _often(counts: Mapping[Parts, int]) -> list[tuple[None, Parts]]:
    """Groups in the order in which they make axes: small before large, and rare ones last.

    Large groups can be several axes; small ones would be lost in the axis of a large one.
    """
    most = max(counts.values(), default=0)

    def late(parts: Parts) -> tuple[bool, int, int]:
        return RARE * counts[parts] < most, prod(p.size for p in parts), -counts[parts]

    return [(None, parts) for parts in sorted(counts, key=late)]


def _along(ids: Ids, atoms: Axes, torus: Torus, mesh: Mapping[str, int] | None) -> tuple[str, ...]:
    """The axes in which members of a group differ: the user's own where no slices are crossed.

    An axis of the user's may be no part of the torus, as where JAX goes through a small slice as
    one ring.
    """
    along = tuple(name for name, own in atoms.named if _differ(ids, own, torus))
    if not mesh or any(name.startswith(DCN_PREFIX) for name in along):
        return along
    places = np.unravel_index(ids, tuple(mesh.values()))
    return tuple(axis for axis, place in zip(mesh, places, strict=True)
                 if (place != place[:, :1]).any())  # fmt: skip


def _listed(
    groups: Groups, parts: Parts | None, torus: Torus, along: tuple[str, ...],
    listed: dict[str, Listed],
) -> tuple[str, ...]:  # fmt: skip
    """The name under which groups that no axes make, or pairs, are listed; none for no transfer."""
    if parts is not None:
        spans = tuple(part for part in merged(parts) if part.dim != SLICES)
        across = prod(part.size for part in parts if part.dim == SLICES)
        found = Listed(along, spans=spans, slices=across)
    elif along:
        ids = groups.ids
        ids = ids[ids[:, 0] != ids[:, 1]] if groups.pairs else ids
        found = Listed.of(torus.whole[ids], groups.pairs, along)
    else:
        return ()
    return (_name(found, listed, groups.size),)


def _differ(ids: Ids, parts: Parts, torus: Torus) -> bool:
    """Whether members of a group differ in their place on some of these parts."""
    for part in (part for part in parts if part.dim in torus.lengths):
        digits = torus.digit(part)[ids]
        if (digits != digits[:, :1]).any():
            return True
    return False


def _name(found: Listed, listed: dict[str, Listed], size: int) -> str:
    """A name for what is listed, the same for the same."""
    known = next((name for name, other in listed.items() if other == found), "")
    if known:
        return known
    what = "permute" if found.pairs else f"of {size}"
    base = f"{'+'.join(found.along)} {what}".strip()
    name = base if base not in listed else f"{base} ({sum(n.startswith(base) for n in listed) + 1})"
    listed[name] = found
    return name
