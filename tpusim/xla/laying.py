"""From groups of device ids to axes of a mesh on the torus.

The groups of a program are mostly products of parts of the torus: a part is a digit of the places
along a dimension (`tpusim.hardware.spans`), of the cores of a chip, or of the slices. The coarsest
parts of which all groups are made are the axes of the program, or the axes of the user's mesh where
these are such parts. What no parts make is listed device by device.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

import numpy as np

from tpusim.errors import PlanError
from tpusim.hardware import DIE, Placement, Slice, Span
from tpusim.hardware.listed import Listed
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.xla.devices import Devices, Places, check_count
from tpusim.xla.groups import Groups, Ids

RARE = 10
"""Groups that occur so many times less than the most frequent ones do not make axes first."""

SLICES = -2
"""The number of the dimension that the slices are."""

Parts = tuple[Span, ...]
_Key = tuple[bool, tuple[int, ...], bytes]


@dataclass(frozen=True, slots=True)
class Laid:
    """The axes that a program's groups are made of, with their sizes, and where they lie.

    across: those that run across slices, as parts of the number of a slice.
    """

    axes: tuple[tuple[str, int], ...]
    placement: Placement
    across: tuple[tuple[str, Parts], ...] = ()
    _known: Mapping[_Key, tuple[str, ...]] = field(default_factory=dict, repr=False)

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

    def between(self, slices: Iterable[Sequence[int]]) -> tuple[str, ...]:
        """The axes over which groups or pairs of slices reach; all that there are, of no groups."""
        groups = [np.array(group, dtype=np.intp) for group in slices if len(group) > 1]
        return tuple(
            name
            for name, parts in self.across
            if not groups or any(_apart(group, part) for group in groups for part in parts)
        )


def _apart(slices: Places, part: Span) -> bool:
    """Whether these slices differ in their place on a part of the number of a slice."""
    digits = slices // part.stride % part.size
    return bool((digits != digits[0]).any())


def laid(
    module_groups: Iterable[Groups], devices: Devices, pod: Slice,
    mesh: Mapping[str, int] | None = None,
) -> Laid:  # fmt: skip
    """The axes for all groups and permutes of a program, each as often as it occurs.

    Where no group has an id beyond those of one slice, the program is that of each slice.
    Raises PlanError for a mesh of other devices.
    mesh: the user's, whose places in order are the devices. Its axes keep their names where they
    are parts of the torus, with `dcn_` before what of them runs across slices. Without a mesh the
    groups that occur most make the axes, and the parts that these lie on name them.
    """
    counts: Counter[_Key] = Counter()
    every: dict[_Key, Groups] = {}
    for groups in module_groups:
        counts[groups.key] += 1
        every.setdefault(groups.key, groups)
    whole = torus = _Torus.of(devices, pod)
    last = max((int(groups.ids.max(initial=0)) for groups in every.values()), default=0)
    if last >= len(devices):
        raise PlanError(
            f"a collective names device {last}, and the program has {len(devices)}, from 0 on; "
            "give the HLO as the compiler printed it"
        )
    if last < len(devices) // pod.num_slices:
        torus = _Torus.of(devices.of_slice(), pod)
    wanted = {key: torus.parts(groups.ids) for key, groups in every.items() if not groups.pairs}
    made = _often({parts: counts[key] for key, parts in wanted.items() if parts})
    atoms = _atoms(whole.lengths, [*_mesh_parts(mesh or {}, whole), *made])
    listed: dict[str, Listed] = {}
    known = {}
    for key, groups in every.items():
        axes = None if groups.pairs else atoms.axes(wanted[key])
        known[key] = (
            _listed(groups, wanted.get(key), torus, atoms, listed) if axes is None else axes
        )
    sizes = tuple((name, prod(part.size for part in parts)) for name, parts in atoms.named)
    spans = tuple((name, tuple(part for part in parts if part.dim != SLICES))
                  for name, parts in atoms.named)  # fmt: skip
    across = tuple((name, parts) for name, parts in atoms.named
                   if parts and parts[0].dim == SLICES)  # fmt: skip
    return Laid(sizes, Placement(spans, tuple(listed.items())), across, known)


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
    line = _Torus(np.arange(count)[:, None], {0: count}, np.zeros((0, 0), dtype=np.intp))
    found: Counter[Parts] = Counter()
    for groups in module_groups:
        ids = groups.ids[(groups.ids < count).all(axis=1)]
        parts = None if groups.pairs else line.parts(ids)
        if parts:
            found[parts] += 1
    atoms = _atoms(line.lengths, _often(found))
    spans = [span for _, parts in atoms.named for span in parts]
    return tuple(span.size for span in sorted(spans, key=lambda span: -span.stride))


def _often(counts: Mapping[Parts, int]) -> list[tuple[None, Parts]]:
    """Groups in the order in which they make axes: small before large, and rare ones last.

    Large groups can be several axes; small ones would be lost in the axis of a large one.
    """
    most = max(counts.values(), default=0)

    def late(parts: Parts) -> tuple[bool, int, int]:
        return RARE * counts[parts] < most, prod(p.size for p in parts), -counts[parts]

    return [(None, parts) for parts in sorted(counts, key=late)]


@dataclass(frozen=True, slots=True, eq=False)
class _Torus:
    """The devices' places along each dimension longer than one, [device, dimension]."""

    places: Places
    lengths: Mapping[int, int]
    whole: Places

    @classmethod
    def of(cls, devices: Devices, pod: Slice) -> "_Torus":
        numbers = (SLICES, *range(len(pod.topology.dims)), DIE)
        slices = len(np.unique(devices.places[:, 0]))
        sizes = (slices, *pod.topology.dims, pod.chip.devices)
        lengths = {dim: size for dim, size in zip(numbers, sizes, strict=True) if size > 1}
        kept = [at for at, size in enumerate(sizes) if size > 1]
        return cls(devices.places[:, kept], lengths, devices.places)

    def parts(self, ids: Ids) -> Parts | None:
        """The parts of which each of these groups is the product; None if there are none."""
        if ids.size != len(self.places) or len(np.unique(ids)) != ids.size:
            return None
        members = self.places[ids]
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

    def digit(self, part: Span) -> Places:
        """The place of each device on a part."""
        column = list(self.lengths).index(part.dim)
        return np.asarray(self.places[:, column] // part.stride % part.size)


def _digits(values: Places, dim: int, length: int) -> list[Span] | None:
    """The digits in which places along a dimension differ, lowest first; None if these do not."""
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


def _mesh_parts(mesh: Mapping[str, int], torus: _Torus) -> Iterator[tuple[str, Parts | None]]:
    """The parts of each axis of the user's mesh; None where it is not made of any."""
    if mesh and prod(mesh.values()) != len(torus.places):
        written = " x ".join(f"{axis}={size}" for axis, size in mesh.items())
        raise PlanError(
            f"the mesh has {written} = {prod(mesh.values())}, but the program is for "
            f"{len(torus.places)} devices; write the mesh that it was compiled for"
        )
    if not mesh:
        return
    ids = np.arange(len(torus.places)).reshape(tuple(mesh.values()))
    for at, (axis, size) in enumerate(mesh.items()):
        yield axis, torus.parts(np.moveaxis(ids, at, -1).reshape(-1, size))


_Cuts = Mapping[int, Sequence[int]]
"""Where the places along each dimension are cut into digits: 1, the strides, the length."""


@dataclass(frozen=True, slots=True)
class _Atoms:
    """The axes of the program: parts that always come together, outermost first."""

    named: Sequence[tuple[str, Parts]]
    cuts: _Cuts

    def axes(self, parts: Parts | None) -> tuple[str, ...] | None:
        """The axes that together are these parts; None if there are none."""
        wanted = None if parts is None else _pieces(parts, self.cuts)
        if wanted is None:
            return None
        inside = [(name, _pieces(own, self.cuts) or []) for name, own in self.named if own]
        inside = [(name, own) for name, own in inside if set(own) <= set(wanted)]
        whole = sum(len(own) for _, own in inside) == len(wanted)
        return tuple(name for name, _ in inside) if whole else None


def _atoms(
    lengths: Mapping[int, int], wanted: Iterable[tuple[str | None, Parts | None]]
) -> _Atoms:  # fmt: skip
    """The axes that these groups make, in their order, as far as they do not cut one another.

    A group that contains axes made before makes one of what else it has.
    """
    cuts: _Cuts = {dim: (1, length) for dim, length in lengths.items()}
    made: list[tuple[str | None, list[Span]]] = []
    for name, parts in wanted:
        tried = _cut(cuts, parts or ())
        if parts is None or tried is None:
            continue
        rest = set(_pieces(parts, tried) or ())
        for _, atom in made:
            own = set(_pieces(atom, tried) or ())
            if own & rest and not own <= rest:
                break
            rest -= own
        else:
            if rest or name:
                made.append((name, list(rest)))
                cuts = tried
    left = {piece for dim, length in lengths.items()
            for piece in _pieces([Span(dim, length)], cuts) or ()}  # fmt: skip
    left -= {piece for _, atom in made for piece in _pieces(atom, cuts) or ()}
    made += [(None, [piece]) for piece in sorted(left, key=_outermost_first)]
    named = [axis for name, atom in made for axis in _split_axis(name, _merged(atom), lengths)]
    return _Atoms(named, cuts)


def _cut(cuts: _Cuts, parts: Iterable[Span]) -> _Cuts | None:
    """The cuts, and those at both ends of the parts; None where they are no digits then."""
    tried = {dim: set(at) for dim, at in cuts.items()}
    for part in parts:
        tried[part.dim] |= {part.stride, part.stride * part.size}
    found = {dim: sorted(at) for dim, at in tried.items()}
    fits = all(high % low == 0 for at in found.values() for low, high in pairwise(at))
    return found if fits else None


def _pieces(parts: Iterable[Span], cuts: _Cuts) -> list[Span] | None:
    """The parts cut as the dimensions are; None where a part begins or ends between cuts."""
    found = []
    for part in parts:
        at = cuts[part.dim]
        low, high = part.stride, part.stride * part.size
        if low not in at or high not in at:
            return None
        inside = [cut for cut in at if low <= cut <= high]
        found += [Span(part.dim, above // below, below) for below, above in pairwise(inside)]
    return found


def _merged(pieces: Iterable[Span]) -> list[Span]:
    """Neighbouring parts of a dimension as one, outermost first."""
    found: list[Span] = []
    for piece in sorted(pieces, key=_outermost_first, reverse=True):
        last = found[-1] if found else None
        if last and last.dim == piece.dim and last.stride * last.size == piece.stride:
            found[-1] = replace(last, size=last.size * piece.size)
        else:
            found.append(piece)
    return found[::-1]


def _outermost_first(part: Span) -> tuple[bool, int, int]:
    return part.dim == DIE, part.dim, -part.stride


def _split_axis(
    name: str | None, parts: Sequence[Span], lengths: Mapping[int, int]
) -> Iterator[tuple[str, Parts]]:
    """An axis on the torus, and `dcn_` before it what of it runs across slices."""
    across = tuple(part for part in parts if part.dim == SLICES)
    inside = tuple(part for part in parts if part.dim != SLICES)
    plain = None if name is None else name.removeprefix(DCN_PREFIX)
    if across:
        written = (replace(part, dim=0).written(lengths[SLICES]) for part in across)
        slices = ",".join("slices" + text.removeprefix("x") for text in written)
        yield DCN_PREFIX + (plain or slices), across
    if inside or not across:
        texts = ",".join(part.written(lengths[part.dim]) for part in inside)
        yield plain or texts, inside


def _listed(
    groups: Groups, parts: Parts | None, torus: _Torus, atoms: _Atoms, listed: dict[str, Listed]
) -> tuple[str, ...]:
    """The name under which groups that no axes make, or pairs, are listed; none for no transfer."""
    along = tuple(name for name, own in atoms.named if _differ(groups.ids, own, torus))
    if parts is not None:
        spans = tuple(part for part in _merged(parts) if part.dim != SLICES)
        across = prod(part.size for part in parts if part.dim == SLICES)
        found = Listed(along, spans=spans, slices=across)
    elif along:
        ids = groups.ids
        ids = ids[ids[:, 0] != ids[:, 1]] if groups.pairs else ids
        found = Listed.of(torus.whole[ids], groups.pairs, along)
    else:
        return ()
    return (_name(found, listed, groups.size),)


def _differ(ids: Ids, parts: Parts, torus: _Torus) -> bool:
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
