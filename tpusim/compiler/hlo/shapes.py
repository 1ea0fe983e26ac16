"""Shapes of HLO: dtype, dimensions, layout and memory space."""

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TypeAlias

ELEMENT_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
    "c64": 64, "c128": 128, "f4e2m1fn": 4, "f8e8m0fnu": 8, "f8e3m4": 8, "f8e4m3": 8,
    "f8e4m3b11fnuz": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8,
    "token": 0, "opaque": 0,
}  # fmt: skip
"""Bits per element of each dtype (XLA, `xla_data.proto`, PrimitiveType)."""

HBM_SPACE, HOST_SPACE = 0, 5
"""Memory spaces in a layout: no `S()` is HBM, `S(5)` the host, and all others are on the chip."""

_ARRAY = re.compile(r"(\w+)\[([^\]]*)\](?:\{([^{}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_TILES = re.compile(r"T((?:\([\d,]*\))+)")


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of an array.

    order: its dimensions, minor to major.
    tiles: of its layout, outermost first.
    """

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = HBM_SPACE

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.dims)

    @property
    def bytes(self) -> float:
        """Bytes of the elements, without the padding of tiles."""
        return self.elements * ELEMENT_BITS.get(self.dtype, 32) / 8

    @property
    def padded_elements(self) -> int:
        """Elements in memory: minor dimensions are rounded up to whole tiles of the first kind."""
        if not self.tiles or not self.dims:
            return self.elements
        sizes = [self.dims[dim] for dim in self.order] if self.order else list(self.dims[::-1])
        tile = self.tiles[0][::-1]
        for at, size in enumerate(tile[: len(sizes)]):
            sizes[at] = -(-sizes[at] // size) * size
        return prod(sizes)

    @property
    def padded_bytes(self) -> float:
        """Bytes in memory, with the padding of tiles."""
        return self.padded_elements * ELEMENT_BITS.get(self.dtype, 32) / 8

    @property
    def hbm_bytes(self) -> float:
        """Bytes in HBM; 0 if the array is on the chip or on the host."""
        return self.padded_bytes if self.space == HBM_SPACE else 0.0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


Shapes: TypeAlias = "Shape | tuple[Shapes, ...]"
"""An array, or a nested tuple of arrays."""


def flatten_shape(shape: Shapes) -> tuple[Shape, ...]:
    """Return the arrays of a shape, with tuples flattened."""
    if isinstance(shape, Shape):
        return (shape,)
    return tuple(array for part in shape for array in flatten_shape(part))


@lru_cache(maxsize=65536)
def parse_shape(text: str) -> Shapes:
    """Return the shape that HLO writes as `text`. Raise ValueError if it is malformed."""
    shape, end = read_shape(text, 0)
    if text[end:].strip():
        raise ValueError(f"{text!r} is not an HLO shape")
    return shape


def read_shape(text: str, at: int) -> tuple[Shapes, int]:
    """Return the shape that begins at a place of the text, and its end.

    Raise ValueError if none does.
    """
    at = _skip(text, at)
    if not text.startswith("(", at):
        return _array(text, at)
    parts: list[Shapes] = []
    at = _skip(text, at + 1)
    while not text.startswith(")", at):
        if at >= len(text):
            raise ValueError(f"{text!r} is not an HLO shape: a parenthesis is open")
        part, at = read_shape(text, at)
        parts.append(part)
        at = _skip(text, at)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
    return tuple(parts), at + 1


_BETWEEN = re.compile(r"(?:\s|/\*.*?\*/)*")


def _skip(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _array(text: str, at: int) -> tuple[Shape, int]:
    found = _ARRAY.match(text, at)
    if found is None:
        raise ValueError(f"{text!r} is not an HLO shape")
    dtype, dims, layout = found.groups()
    return _array_shape(dtype, dims, layout or ""), found.end()


@lru_cache(maxsize=65536)
def _array_shape(dtype: str, dims: str, layout: str) -> Shape:
    order, _, rest = layout.partition(":")
    space, tiles = _SPACE.search(rest), _TILES.search(rest)
    shape = Shape(
        dtype,
        tuple(int(dim.lstrip("<= ")) for dim in dims.split(",") if dim),
        integers(order),
        tuple(map(integers, tiles[1][1:-1].split(")("))) if tiles else (),
        int(space[1]) if space else HBM_SPACE,
    )
    if max(shape.order, default=-1) >= len(shape.dims) or any(0 in tile for tile in shape.tiles):
        raise ValueError(f"{layout!r} is no layout of {shape}")
    return shape


def integers(text: str) -> tuple[int, ...]:
    """Return the comma-separated integers of a text."""
    return tuple(int(part) for part in text.split(",") if part.strip())
