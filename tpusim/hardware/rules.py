"""Which slices a generation has: the rules as data, one line a generation.

Sources: Cloud TPU documentation (v4, v5e, v5p, v6e, tpu7x); XPK `system_characteristics.py`
@367c838 (the shapes); MaxText `accelerator_to_spec_map.py` @e591f30 and GKE's TPU device plugin
(wraparound); the Lingvo device meshes (v2 and v3 wrap only at the pod's length); arXiv:2304.01433
section 2 (cubes and twisted tori).
"""

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import prod

Dims = tuple[int, ...]

CUBE = 4
LONGEST = 256
_TRAYS: tuple[Dims, ...] = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_BLOCKS: tuple[Dims, ...] = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_V5E: tuple[Dims, ...] = ((1, 1), (2, 2), (2, 4), *_BLOCKS[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The legal slices of a generation.

    listed: shapes that are not made of cubes. max_cubes: the most 4x4x4 cubes in a slice (0: none).
    any_order: the dimensions may be written in any order. wrap_length: the length at which a
    dimension of a 2-D slice wraps (0: all three wrap when each is at least 4). prefixes: what its
    slice names start with, the printed one first. cores: how much a chip adds to the name's number.
    """

    dimensions: int
    listed: tuple[Dims, ...]
    prefixes: tuple[str, ...]
    cores: int
    max_cubes: int = 0
    any_order: bool = True
    wrap_length: int = 0
    twistable: bool = False


GENERATIONS: dict[str, Rules] = {
    "v2": Rules(dimensions=2, listed=_BLOCKS, prefixes=("v2",), cores=2, wrap_length=16),
    "v3": Rules(
        dimensions=2,
        listed=(*_BLOCKS, (16, 32), (32, 32)),
        prefixes=("v3",),
        cores=2,
        wrap_length=32,
    ),
    "v4": Rules(
        dimensions=3, listed=_TRAYS, prefixes=("v4",), cores=2, max_cubes=64, twistable=True
    ),
    "v5e": Rules(dimensions=2, listed=_V5E, prefixes=("v5e", "v5litepod"), cores=1, wrap_length=16),
    "v5p": Rules(
        dimensions=3,
        listed=_TRAYS,
        prefixes=("v5p",),
        cores=2,
        max_cubes=140,
        any_order=False,
        twistable=True,
    ),
    "v6e": Rules(dimensions=2, listed=_V5E, prefixes=("v6e",), cores=1, wrap_length=16),
    "7x": Rules(
        dimensions=3,
        listed=((1, 1, 1), *_TRAYS),
        prefixes=("tpu7x", "7x"),
        cores=2,
        max_cubes=144,
        any_order=False,
    ),
    "7": Rules(
        dimensions=3,
        listed=((1, 1, 1), *_TRAYS),
        prefixes=("tpu7",),
        cores=2,
        max_cubes=4,
        any_order=False,
    ),
}


@cache
def shapes(generation: str) -> tuple[Dims, ...]:
    """Every legal shape of a generation, each once and in its default order, by chips."""
    rules = GENERATIONS[generation]
    made = [*rules.listed, *_cube_shapes(rules.max_cubes)]
    return tuple(sorted(made, key=lambda dims: (prod(dims), dims)))


def _cube_shapes(cubes: int) -> list[Dims]:
    """4i x 4j x 4k with i <= j <= k, at most `cubes` cubes and 256 chips along a dimension."""
    longest = LONGEST // CUBE
    return [
        (CUBE * i, CUBE * j, CUBE * k)
        for i in range(1, cubes + 1)
        for j in range(i, cubes // i + 1)
        for k in range(j, min(longest, cubes // (i * j)) + 1)
    ]


def orders(generation: str, dims: Dims) -> tuple[Dims, ...]:
    """The ways in which a legal shape may be written."""
    if GENERATIONS[generation].any_order:
        return tuple(sorted(set(permutations(dims))))
    return (dims,)


def is_legal(generation: str, dims: Dims) -> bool:
    """Whether the generation has a slice of this shape, written in this order."""
    return any(dims in orders(generation, shape) for shape in _by_sorted(generation, dims))


def _by_sorted(generation: str, dims: Dims) -> list[Dims]:
    return [shape for shape in shapes(generation) if sorted(shape) == sorted(dims)]


def sentence(generation: str) -> str:
    """The rule in words, for a message."""
    rules = GENERATIONS[generation]
    listed = ", ".join("x".join(map(str, dims)) for dims in rules.listed)
    if not rules.max_cubes:
        return f"{generation} slices are {listed}"
    order = "in any order" if rules.any_order else "in non-decreasing order"
    return (
        f"{generation} slices are {listed}, or AxBxC of multiples of {CUBE} {order} "
        f"with at most {rules.max_cubes * CUBE**3} chips"
    )
