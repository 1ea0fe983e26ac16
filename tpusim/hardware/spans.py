"""Parts of the torus' dimensions, and how they are written: `y`, `y[:4]`, `y[::4]`, `y[:8:2]`.

`y[:4]` is 4 neighbours (a line), `y[::4]` every fourth place of the whole dimension, and `y[:8:2]`
4 places that are 2 apart. A place along a dimension is a number of mixed radix, and each part is
one of its digits: the stride of a part is the product of the sizes below it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tpusim.errors import PlanError, nearest
from tpusim.hardware.topology import DIMENSION_NAMES

DIE = -1
Laid = Mapping[str, Sequence[tuple[str, "Span"]]]
"""Axis -> its parts, each as the user wrote it and as a span."""

_PART = re.compile(r"(\w+)(?:\[:([0-9]{0,6})(?::([0-9]{1,6}))?\])?", re.ASCII)
_FORMS = "y, y[:4] (4 neighbours), y[::4] (every fourth place) or y[:8:2] (4 places, 2 apart)"


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

    def written(self, length: int) -> str:
        """The span as a part of its dimension, which is `length` long.

        >>> [Span(1, 4, stride).written(16) for stride in (1, 2, 4)]
        ['y[:4]', 'y[:8:2]', 'y[::4]']
        """
        end = self.size * self.stride
        if self.size == length:
            return str(self)
        if self.stride == 1:
            return f"{self}[:{end}]"
        return f"{self}[::{self.stride}]" if end == length else f"{self}[:{end}:{self.stride}]"


def read_span(text: str, axis: str, lengths: Mapping[int, int]) -> Span:
    """The span that a user wrote for an axis; `PlanError` if it is none.

    lengths: of the dimensions that there are, by number.
    """
    found = _PART.fullmatch(text) if isinstance(text, str) else None
    said = f"placement: axis {axis!r} is laid on {text!r}"
    if not found:
        raise PlanError(f"{said}, which is no dimension nor a part of one; write {_FORMS}")
    names = {str(Span(dim, length)): dim for dim, length in lengths.items()}
    name, last, step = found.groups()
    if name not in names:
        raise PlanError(f"{said}, which the slice does not have; {nearest(name, names)}")
    length = lengths[names[name]]
    end, stride = int(last or length), int(step or 1)
    if fault := _fault(name, length, end, stride):
        raise PlanError(f"{said}, {fault}")
    return Span(names[name], end // stride, stride)


def _fault(name: str, length: int, end: int, stride: int) -> str:
    """Why a dimension has no such part, and what to write; nothing where it has."""
    if not stride:
        return f"whose stride is 0; write one from 1 up, as in {name}[::2], every second place"
    if end > length:
        return f"but {name} has {length} places, not {end}; write {name} for all of them"
    places = -(-end // stride)
    if places < 2:
        return (
            f"which is {places or 'none'} of the {length} places of {name}, and a part has 2 or "
            f"more; write {name} for all of them, or leave it out"
        )
    if end % stride:
        return (
            f"but {end} places are no multiple of the stride {stride}; write an end that is one, "
            "as in y[:8:2], 4 places that are 2 apart"
        )
    return ""


def check_tiling(laid: Laid, lengths: Mapping[int, int]) -> None:
    """Raise `PlanError` unless the parts of each dimension that is used tile it exactly."""
    for dim, length in lengths.items():
        parts = [(span, text, axis) for axis, given in laid.items() for text, span in given
                 if span.dim == dim]  # fmt: skip
        parts.sort(key=lambda part: part[0].stride)
        spans = [span for span, _, _ in parts]
        if parts and not _tile(spans, length):
            texts = [(text, axis) for _, text, axis in parts]
            raise PlanError(_untiled(texts, list(_fitting(spans, length)), Span(dim, length)))


def _tile(parts: Sequence[Span], length: int) -> bool:
    """Whether parts, by rising stride, are the digits of all places of a dimension."""
    stride = 1
    for span in parts:
        if span.stride != stride:
            return False
        stride *= span.size
    return stride == length


def _fitting(parts: Sequence[Span], length: int) -> Iterator[str]:
    """Parts that tile the dimension, of the same sizes where they can be."""
    stride = 1
    for span in parts:
        if length % (stride * span.size) == 0:
            yield Span(span.dim, span.size, stride).written(length)
            stride *= span.size
    if stride < length:
        yield Span(parts[0].dim, length // stride, stride).written(length)


def _untiled(parts: Sequence[tuple[str, str]], fitting: Sequence[str], whole: Span) -> str:
    given = " and ".join(f"{part!r} to {axis!r}" for part, axis in parts)
    wanted = " and ".join(fitting) if len(fitting) > 1 else f"{fitting[0]} alone"
    return (
        f"placement: the parts of {whole} do not tile its {whole.size} places: {given}; each "
        "stride must be the product of the sizes below it, and all sizes must multiply to "
        f"{whole.size}: write {wanted}"
    )
