"""The placement of a mesh's axes on the dimensions of the torus.

Dimensions are numbered as in the topology; `DIE` is one more, innermost dimension of size 2 on a
chip with two devices.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError, TpusimError, nearest
from tpusim.base.units import format_mesh
from tpusim.hardware.slices import Slice
from tpusim.hardware.spans import DIE, AxisParts, Span, check_tiling, read_span


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """Groups of devices, or pairs of a source and a target.

    along: mesh axes on which members of a group differ.
    pairs: the groups are (source, target) pairs.
    shape, data: shape and bytes of `positions`, as 4-byte numbers.
    spans: parts of the torus that the groups are after all, though not of the mesh; `positions` is
        then empty.
    slices: slices over which groups of `spans` reach.
    """

    along: tuple[str, ...]
    pairs: bool = False
    shape: tuple[int, ...] = (0, 0, 0)
    data: bytes = b""
    spans: tuple[Span, ...] = ()
    slices: int = 1

    @classmethod
    def of(
        cls, positions: NDArray[np.intp], pairs: bool = False, along: Sequence[str] = ()
    ) -> "ListedGroups":
        """Return the groups or pairs of these positions."""
        return cls(tuple(along), pairs, positions.shape, positions.astype(np.int32).tobytes())

    @property
    def ends(self) -> tuple[frozenset[int], frozenset[int]]:
        """Of pairs, the slices that send to others, and those that receive from others."""
        slices = self.positions[..., 0]
        sources, targets = slices[slices[:, 0] != slices[:, 1]].T.tolist()
        return frozenset(sources), frozenset(targets)

    @property
    def positions(self) -> NDArray[np.intp]:
        """Positions of the devices, [group, member, (slice, coordinates on the torus, core)]."""
        return np.frombuffer(self.data, np.int32).reshape(self.shape).astype(np.intp)


DCN_PREFIX = "dcn_"


@dataclass(frozen=True, slots=True)
class Placement:
    """The spans of the torus that each axis of the mesh is on.

    axes: (axis, its spans, outermost first); axes of size 1, and `dcn_` axes, which run across
        slices, have no spans.
    listed: groups of a compiled program that no axes make, by the name that stands for them among
        the axes of a collective.
    """

    axes: tuple[tuple[str, tuple[Span, ...]], ...]
    listed: tuple[tuple[str, ListedGroups], ...] = ()

    def listed_as(self, axes: Sequence[str]) -> ListedGroups | None:
        """Return the groups that a collective's axes stand for, if it is a single such name."""
        return dict(self.listed).get(axes[0]) if len(axes) == 1 and self.listed else None

    def spans(self, axis: str) -> tuple[Span, ...]:
        """Return the spans of an axis; raise PlanError if the mesh has no such axis."""
        for name, spans in self.axes:
            if name == axis:
                return spans
        names = [name for name, _ in self.axes]
        raise PlanError(f"the mesh has no axis {axis!r}; {nearest(axis, names)}")

    def spans_of(self, axes: Sequence[str]) -> tuple[Hashable, ...]:
        """Return the spans, or the listed groups, of some axes, to compare placements by."""
        known = {**dict(self.axes), **dict(self.listed)}
        return tuple([known.get(axis) for axis in axes])

    @property
    def written(self) -> dict[str, list[str]]:
        """The placement as a plan writes it, axis -> parts; `placement_from` reads it back."""
        lengths: dict[int, int] = defaultdict(lambda: 1)
        for span in (span for _, spans in self.axes for span in spans):
            lengths[span.dim] *= span.size
        return {
            axis: [span.written(lengths[span.dim]) for span in spans]
            for axis, spans in self.axes
            if spans
        }

    def __str__(self) -> str:
        return " · ".join(
            f"{axis}={prod(span.size for span in self.spans(axis))} on {','.join(parts)}"
            for axis, parts in self.written.items()
        )


def dimensions(pod: Slice) -> dict[int, int]:
    """Return the lengths of the dimensions longer than 1 by number, the die last."""
    lengths = {dim: size for dim, size in enumerate(pod.topology.dims) if size > 1}
    return lengths | ({DIE: pod.chip.devices} if pod.chip.devices > 1 else {})


def placement_from(
    pod: Slice, mesh: Mapping[str, int], given: Mapping[str, Sequence[str]]
) -> Placement:
    """Return the placement that a user wrote.

    pod: the slice.
    mesh: size of each axis.
    given: parts of each axis, outermost first, as `{"fsdp": ["y[:4]", "z"], "tensor": ["x",
        "y[::4]"]}`. A dimension is given whole (`y`) or in parts that together tile it (see
        `spans`); a single part needs no list.

    Raise PlanError for names that do not exist, for parts that do not tile their dimension, and
    for sizes that do not multiply to the axis'.
    """
    check_mesh(pod, mesh)
    lengths = dimensions(pod)
    _check_axes(mesh, given)
    parts = {
        axis: [(text, read_span(text, axis, lengths)) for text in _part_list(axis, given)]
        for axis in mesh
    }
    check_tiling(parts, lengths)
    for axis, size in mesh.items():
        if not axis.startswith(DCN_PREFIX):
            _check_size(axis, size, parts, lengths)
    return Placement(tuple((axis, tuple(span for _, span in parts[axis])) for axis in mesh))


def _check_axes(mesh: Mapping[str, int], given: Any) -> None:
    if not isinstance(given, Mapping):
        raise PlanError(
            f"placement is {given!r}; write parts for axes, such as {{'tensor': ['x']}}"
        )
    for axis, parts in given.items():
        if axis not in mesh:
            raise PlanError(f"placement: the mesh has no axis {axis!r}; {nearest(str(axis), mesh)}")
        if axis.startswith(DCN_PREFIX) and parts:
            raise PlanError(
                f"placement: axis {axis!r} is on {parts!r}, but {DCN_PREFIX} axes run across "
                "slices and take no dimension of the torus; leave it out of the placement"
            )


def _part_list(axis: str, given: Mapping[str, Any]) -> Sequence[str]:
    """Return the parts of an axis; a single text is a list of one."""
    parts = given.get(axis, ())
    if not isinstance(parts, Sequence):
        raise PlanError(
            f"placement: axis {axis!r} is on {parts!r}, which is not a list of parts; write one, "
            "such as ['x', 'y[:4]'], or leave it out"
        )
    return [parts] if isinstance(parts, str) else parts


def _check_size(axis: str, size: int, parts: AxisParts, lengths: Mapping[int, int]) -> None:
    if prod(span.size for _, span in parts[axis]) == size:
        return
    sizes = ", ".join(f"{Span(dim, length)}={length}" for dim, length in lengths.items())
    raise PlanError(
        f"placement: axis {axis!r} takes {_counted(size, 'position')} on the torus but is on "
        f"{[text for text, _ in parts[axis]]}; "
        + (
            f"write dimensions whose sizes multiply to {size} (here {sizes}), or parts of them"
            if size > 1
            else "leave it out of the placement"
        )
    )


def check_mesh(pod: Slice, mesh: Mapping[str, int], error: type[TpusimError] = PlanError) -> None:
    """Raise `error` unless the mesh has as many devices, and slices, as `pod`."""
    if sentence := _mismatch(pod, mesh):
        raise error(sentence)


def _mismatch(pod: Slice, mesh: Mapping[str, int]) -> str:
    """Return the fault of a mesh as a sentence; "" if it fits the slice."""
    if not isinstance(mesh, Mapping) or not all(isinstance(axis, str) for axis in mesh):
        return (
            f"mesh is {mesh!r}; write the sizes of axes by name, such as {{'fsdp': {pod.devices}}}"
        )
    for axis, size in mesh.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            return f"mesh axis {axis!r} is {size!r}; write a whole number from 1 up"
    across = {axis: size for axis, size in mesh.items() if axis.startswith(DCN_PREFIX)}
    if not across and pod.num_slices > 1:
        return (
            f"the slice is {pod.num_slices} slices, but no axis of the mesh runs across them; "
            f"write one that does, such as dcn_data = {pod.num_slices}"
        )
    inside = {axis: size for axis, size in mesh.items() if axis not in across}
    one = f" of {pod.chip.name}:{pod.topology}"
    dcn = f" (axes that start with {DCN_PREFIX} run across slices)"
    return _miscount(across, pod.num_slices, "slice", dcn) or _miscount(
        inside, pod.devices // pod.num_slices, "device", one
    )


def _miscount(axes: Mapping[str, int], wanted: int, what: str, which: str) -> str:
    if prod(axes.values()) == wanted:
        return ""
    written = format_mesh(axes) or "nothing"
    return (
        f"the mesh has {written} = {prod(axes.values())}, but there "
        f"{'is' if wanted == 1 else 'are'} {_counted(wanted, what)}{which}; "
        f"write axes that multiply to {wanted}"
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
