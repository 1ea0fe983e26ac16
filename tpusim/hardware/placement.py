"""Where the axes of a mesh lie on the torus.

Dimensions are numbered as in the topology; `DIE` is one more, innermost dimension of size 2 on a
chip with two devices. A part of a dimension is a span: `size` chips, `stride` apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tpusim.errors import PlanError, nearest
from tpusim.hardware.slices import Slice
from tpusim.hardware.topology import DIMENSION_NAMES

DIE = -1
DCN_PREFIX = "dcn_"


@dataclass(frozen=True, slots=True)
class Span:
    """`size` places of dimension `dim`, `stride` apart; all of it when size is its length.

    A contiguous part (stride 1) is a line. A strided part shares its links with its neighbours.
    """

    dim: int
    size: int
    stride: int = 1

    def __str__(self) -> str:
        return "die" if self.dim == DIE else DIMENSION_NAMES[self.dim]


@dataclass(frozen=True, slots=True)
class Placement:
    """Each axis of the mesh, with its size and the spans that it lies on, outermost first.

    Axes of size 1, and `dcn_` axes, which run across slices, have no spans.
    """

    axes: tuple[tuple[str, tuple[Span, ...]], ...]

    def spans(self, axis: str) -> tuple[Span, ...]:
        """The spans of an axis; `PlanError` if the mesh has no such axis."""
        for name, spans in self.axes:
            if name == axis:
                return spans
        names = [name for name, _ in self.axes]
        raise PlanError(f"the mesh has no axis {axis!r}; {nearest(axis, names)}")

    def __str__(self) -> str:
        spans = [span for _, spans in self.axes for span in spans]
        dims = [span.dim for span in spans]
        texts = {span: _part(span) if dims.count(span.dim) > 1 else str(span) for span in spans}
        return " · ".join(
            f"{axis}={prod(span.size for span in laid)} on {','.join(texts[span] for span in laid)}"
            for axis, laid in self.axes
            if laid
        )


def _part(span: Span) -> str:
    """A part of a dimension, written as a slice of it: `y[:4]` is a line, `y[::4]` is strided."""
    return f"{span}[:{span.size}]" if span.stride == 1 else f"{span}[::{span.stride}]"


def dimensions(pod: Slice) -> dict[int, int]:
    """The dimensions longer than 1 that axes can lie on, with their lengths; the die last."""
    lengths = {dim: size for dim, size in enumerate(pod.topology.dims) if size > 1}
    return lengths | ({DIE: pod.chip.devices} if pod.chip.devices > 1 else {})


def placement_from(
    pod: Slice, mesh: Mapping[str, int], given: Mapping[str, Sequence[str]]
) -> Placement:
    """The placement that a user wrote: `{"fsdp": ["y", "z"], "tensor": ["x"]}`.

    Raises `PlanError` for names that do not exist, dimensions given twice or not at all, and sizes
    that do not multiply to the axis'.
    """
    check_mesh(pod, mesh)
    lengths = {str(Span(dim, size)): (dim, size) for dim, size in dimensions(pod).items()}
    for axis in given:
        if axis not in mesh:
            raise PlanError(f"placement: the mesh has no axis {axis!r}; {nearest(axis, mesh)}")
    _check_names(given, lengths)
    placed = {axis: _given(axis, size, given, lengths) for axis, size in mesh.items()}
    return Placement(tuple(placed.items()))


def _given(
    axis: str,
    size: int,
    given: Mapping[str, Sequence[str]],
    lengths: Mapping[str, tuple[int, int]],
) -> tuple[Span, ...]:
    names = given.get(axis, ())
    spans = tuple(Span(*lengths[name]) for name in names)
    wanted = 1 if axis.startswith(DCN_PREFIX) else size
    if prod(span.size for span in spans) != wanted:
        sizes = ", ".join(f"{name}={lengths[name][1]}" for name in lengths)
        raise PlanError(
            f"placement: axis {axis!r} takes {wanted} places on the torus but is laid on "
            f"{list(names)}; write dimensions whose sizes multiply to {wanted} (here {sizes})"
        )
    return spans


def _check_names(given: Mapping[str, Sequence[str]], lengths: Mapping[str, object]) -> None:
    seen: dict[str, str] = {}
    for axis, names in given.items():
        for name in names:
            if name not in lengths:
                raise PlanError(
                    f"placement: axis {axis!r} is laid on {name!r}, which the slice does not have; "
                    f"{nearest(name, lengths)}"
                )
            if name in seen:
                raise PlanError(
                    f"placement: dimension {name!r} is given to {seen[name]!r} and to {axis!r}; "
                    "write it once"
                )
            seen[name] = axis


def check_mesh(pod: Slice, mesh: Mapping[str, int]) -> None:
    """Raise `PlanError` unless the mesh has the devices of the slice, and its slices."""
    for axis, size in mesh.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise PlanError(f"mesh axis {axis!r} is {size!r}; write a whole number from 1 up")
    across = {axis: size for axis, size in mesh.items() if axis.startswith(DCN_PREFIX)}
    inside = {axis: size for axis, size in mesh.items() if axis not in across}
    _check_product(
        inside, pod.devices // pod.num_slices, f"devices of {pod.chip.name}:{pod.topology}"
    )
    if not across and pod.num_slices > 1:
        raise PlanError(
            f"the slice is {pod.num_slices} slices, but no axis of the mesh runs across them; "
            f"write one that does, such as dcn_data = {pod.num_slices}"
        )
    _check_product(across, pod.num_slices, "slices (axes that start with dcn_ run across them)")


def _check_product(axes: Mapping[str, int], wanted: int, what: str) -> None:
    if prod(axes.values()) != wanted:
        written = " x ".join(f"{axis}={size}" for axis, size in axes.items()) or "nothing"
        raise PlanError(
            f"the mesh has {written} = {prod(axes.values())}, but there are {wanted} {what}; "
            f"write axes that multiply to {wanted}"
        )
