"""Parts of the torus' dimensions and their notation: `y`, `y[:4]`, `y[::4]`, `y[:8:2]`.

`y[:4]` is 4 neighbours (a line), `y[::4]` every fourth position of the whole dimension, and
`y[:8:2]` 4 positions that are 2 apart. A position along a dimension is a number of mixed radix, and
each part is one of its digits: the stride of a part is the product of the sizes below it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tpusim.base.errors import PlanError, nearest
from tpusim.hardware.topology import DIMENSION_NAMES

DIE = -1
"""The number of the dimension between the two devices of a chip."""

AxisParts = Mapping[str, Sequence[tuple[str, "Span"]]]
"""The parts of each axis, as the user wrote them and as spans."""

_PART = re.compile(r"(\w+)(?:\[:([0-9]{0,6})(?::([0-9]{1,6}))?\])?", re.ASCII)
_FORMS = "y, y[:4] (4 neighbours), y[::4] (every fourth position) or y[:8:2] (4 positions, 2 apart)"


class Span(NamedTuple):
    """A part of a dimension, or all of it. A strided part shares its links with its neighbours.

    dim: number of the dimension; `DIE` for the two devices of a chip.
    size: positions of the part.
    stride: distance between two positions; 1 makes a line of neighbours.
    """

    dim: int
    size: int
    stride: int = 1

    def __str__(self) -> str:
        return "die" if self.dim == DIE else DIMENSION_NAMES[self.dim]

    def written(self, length: int) -> str:
        """Return the notation of the span in its dimension, which is `length` long.

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
    """Return the span that a user wrote for an axis.

    text: notation of the span.
    axis: mesh axis, for the message.
    lengths: lengths of the slice's dimensions, by number.

    Raise PlanError if the text is no part of a dimension.
    """
    found = _PART.fullmatch(text) if isinstance(text, str) else None
    fault = f"placement: axis {axis!r} is on {text!r}"
    if not found:
        raise PlanError(f"{fault}, which is neither a dimension nor a part of one; write {_FORMS}")
    names = {str(Span(dim, length)): dim for dim, length in lengths.items()}
    name, last, step = found.groups()
    if name not in names:
        raise PlanError(f"{fault}, which the slice does not have; {nearest(name, names)}")
    length = lengths[names[name]]
    end, stride = int(last or length), int(step or 1)
    if reason := _invalid_part(name, length, end, stride):
        raise PlanError(f"{fault}, {reason}")
    return Span(names[name], end // stride, stride)


def _invalid_part(name: str, length: int, end: int, stride: int) -> str:
    """Return the reason why a dimension has no such part, and a remedy; "" if it has it."""
    if not stride:
        return f"whose stride is 0; write one from 1 up, as in {name}[::2], every second position"
    if end > length:
        return f"but {name} has {length} positions, not {end}; write {name} for all of them"
    positions = -(-end // stride)
    if positions < 2:
        return (
            f"which is {positions or 'none'} of the {length} positions of {name}, and a part has 2 "
            f"or more; write {name} for all of them, or leave it out"
        )
    if end % stride:
        return (
            f"but {end} positions are not a multiple of the stride {stride}; write an end that is "
            "one, as in y[:8:2], 4 positions that are 2 apart"
        )
    return ""


def check_tiling(given: AxisParts, lengths: Mapping[int, int]) -> None:
    """Raise PlanError unless the parts of each dimension that is used tile it exactly."""
    for dim, length in lengths.items():
        every = [(span, text, axis) for axis, parts in given.items() for text, span in parts]
        parts = [part for part in every if part[0].dim == dim]
        parts.sort(key=lambda part: part[0].stride)
        spans = [span for span, _, _ in parts]
        if parts and not _tile(spans, length):
            texts = [(text, axis) for _, text, axis in parts]
            raise PlanError(_untiled(texts, list(_fitting(spans, length)), Span(dim, length)))


def _tile(parts: Sequence[Span], length: int) -> bool:
    """Return True if parts, by rising stride, are the digits of a dimension's positions."""
    stride = 1
    for span in parts:
        if span.stride != stride:
            return False
        stride *= span.size
    return stride == length


def _fitting(parts: Sequence[Span], length: int) -> Iterator[str]:
    """Yield parts that tile the dimension, of the same sizes if possible."""
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
        f"placement: the parts of {whole} do not tile its {whole.size} positions: {given}; each "
        "stride must be the product of the sizes below it, and all sizes must multiply to "
        f"{whole.size}: write {wanted}"
    )
