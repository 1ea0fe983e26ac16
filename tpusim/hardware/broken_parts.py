"""Broken parts of slices that keep running: optical links, and switches that carry many of them.

Whole cubes of 4x4x4 chips are joined by optical links, 16 on each of their six faces; inside a cube
links are electrical. The 48 optical circuit switches of a v4 pod carry one link of the 16 on both
faces of every cube along one dimension each, so without a switch one line in 16 along its
dimension has no link between cubes, nor round the torus (Zu et al., "Resiliency at Scale: Managing
Google's TPUv4 Machine Learning Supercomputer", NSDI 2024, sections 2 and 5). Routing tables lead
around them (`network.wild_first`). A broken electrical link, and any broken link of a slice that is
not made of whole cubes, ends the slice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, TypeAlias

from tpusim.base.errors import HardwareError
from tpusim.hardware.catalogue import catalogue_rules
from tpusim.hardware.chip_fields import Dims
from tpusim.hardware.part_tables import (
    MachineParts,
    PlaceReader,
    Reader,
    chip_words,
    is_whole_numbers,
    link_ends,
)
from tpusim.hardware.slice_rules import CUBE, SliceRules
from tpusim.hardware.topology import DIMENSION_NAMES, Topology

DirectedLink: TypeAlias = tuple[int, int, Dims]
"""A link in one direction: its dimension, 0 for + or 1 for -, and the chip that it leaves."""


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """An optical link between two neighbours that carries nothing, in both directions.

    between: coordinates of both chips.
    slice: number of their slice, from 0.
    """

    EXAMPLE: ClassVar = "{ between = [[3, 0, 0], [0, 0, 0]] }"

    between: tuple[Dims, Dims]
    slice: int = 0

    def __str__(self) -> str:
        one, other = self.between
        return f"link {chip_words(one, self.slice)} to {chip_words(other, 0)}"

    def links(self, topology: Topology) -> Iterator[DirectedLink]:
        """Yield the links that are out."""
        yield from link_ends(*self.between, topology)


@dataclass(frozen=True, slots=True)
class BrokenSwitch:
    """An optical circuit switch that carries nothing.

    dim: dimension along which its links lead.
    at: position on the 4x4 face of a cube, along the other two dimensions in order.
    slice: number of the slice whose links it carries, from 0.
    """

    EXAMPLE: ClassVar = "{ dim = 0, at = [1, 2] }"

    dim: int
    at: tuple[int, int]
    slice: int = 0

    def __str__(self) -> str:
        of = f" of slice {self.slice}" if self.slice else ""
        return f"switch {DIMENSION_NAMES[self.dim]} at {self.at[0]},{self.at[1]}{of}"

    def links(self, topology: Topology) -> Iterator[DirectedLink]:
        """Yield the links that are out: those between cubes on its lines, in both directions."""
        starts = list(self.at)
        starts.insert(self.dim, 0)
        lengths = enumerate(topology.dims)
        planes = [range(0 if dim == self.dim else starts[dim], n, CUBE) for dim, n in lengths]
        for first in product(*planes):
            before = topology.neighbour(first, self.dim, -1)
            assert before is not None
            yield from ((self.dim, 1, first), (self.dim, 0, before))


@dataclass(frozen=True, slots=True)
class BrokenParts(MachineParts):
    """The broken parts of a machine that keeps running."""

    NAME: ClassVar = "broken"
    KINDS: ClassVar = {"switches": BrokenSwitch, "links": BrokenLink}

    links: tuple[BrokenLink, ...] = ()
    switches: tuple[BrokenSwitch, ...] = ()

    @classmethod
    def of(
        cls, given: Any, topology: Topology, num_slices: int, rules: SliceRules
    ) -> "BrokenParts":
        """Return the broken parts that a user wrote for slices of this topology.

        given: a table of lists, as in `{"switches": [{"dim": 0, "at": [1, 2]}]}`; None for a
            machine without broken parts.

        Raise HardwareError for what is no such table, for parts that the machine does not have or
        that end its slice, and for a link without a way round it.
        """
        lists = given.written if isinstance(given, BrokenParts) else given
        if isinstance(lists, Mapping) and any(lists.values()):
            _check_reroutes(topology, rules)
        readers: dict[str, Reader] = {"dim": _dimension, "at": _face_position}
        places = PlaceReader(topology, num_slices)
        found = cls.read(given, places, readers, partial(_check_optical, topology))
        for part in found.every:
            _check_detours(part, found.directed(part.slice, topology), topology)
        return found

    @property
    def every(self) -> tuple[BrokenLink | BrokenSwitch, ...]:
        """All broken parts: switches, links."""
        return (*self.switches, *self.links)

    @property
    def slices(self) -> tuple[int, ...]:
        """The numbers of the slices with broken parts, in order."""
        return tuple(sorted({part.slice for part in self.every}))

    def directed(self, number: int, topology: Topology) -> frozenset[DirectedLink]:
        """Return the links of a slice that carry nothing."""
        mine = (part for part in self.every if part.slice == number)
        return frozenset(link for part in mine for link in part.links(topology))


BROKEN_ADVICE = BrokenParts.advice()
"""What to write for the broken parts of a slice."""


def _check_optical(topology: Topology, where: str, part: BrokenLink | BrokenSwitch) -> None:
    """Raise HardwareError for a link whose failure ends its slice."""
    if isinstance(part, BrokenLink) and not all(map(is_optical, part.links(topology))):
        raise HardwareError(
            f"{where} is {part}, an electrical link inside a cube, which ends its slice; write a "
            f"link between two cubes or round the torus, whose ends are at {CUBE - 1} and 0 modulo "
            f"{CUBE} along its dimension"
        )


def _check_reroutes(topology: Topology, rules: SliceRules) -> None:
    """Raise HardwareError for a slice that ends with its first broken link."""
    if not (rules.reroutes and is_made_of_cubes(topology)):
        able = [name for name, known in catalogue_rules().items() if known.reroutes]
        raise HardwareError(
            f"broken has parts, but {rules.generation}:{topology} ends with its first broken link: "
            f"only slices of whole {CUBE}x{CUBE}x{CUBE} cubes of {', '.join(able)} route around "
            "optical links; leave it out, or take such a slice"
        )


def is_made_of_cubes(topology: Topology) -> bool:
    """Return True for a slice of whole cubes of 4x4x4 chips."""
    return len(topology.dims) == 3 and all(length % CUBE == 0 for length in topology.dims)


def is_optical(link: DirectedLink) -> bool:
    """Return True for a link between two cubes, or round the torus, of a slice of whole cubes."""
    dim, side, at = link
    return at[dim] % CUBE == (0 if side else CUBE - 1)


def _dimension(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 3:
        raise HardwareError(f"{where} is {value!r}; write a dimension: 0, 1 or 2")
    return value


def _face_position(where: str, value: Any) -> tuple[int, int]:
    if not (is_whole_numbers(value) and len(value) == 2 and all(0 <= at < CUBE for at in value)):
        raise HardwareError(
            f"{where} is {value!r}; write a position on the {CUBE}x{CUBE} face of a cube, from "
            f"[0, 0] to [{CUBE - 1}, {CUBE - 1}]"
        )
    return value[0], value[1]


def _check_detours(
    part: BrokenLink | BrokenSwitch, out: frozenset[DirectedLink], topology: Topology
) -> None:
    """Raise HardwareError if no three links lead around one that is out."""
    for link in part.links(topology):
        if not any(out.isdisjoint(way) for way in _ways_round(link, topology)):
            raise HardwareError(
                f"broken has {part}, whose links have no way round them of three links among "
                f"{len(out) // 2} that are out; leave out some of the broken parts"
            )


def _ways_round(link: DirectedLink, topology: Topology) -> Iterator[tuple[DirectedLink, ...]]:
    """Yield the detours of three links: aside, along and back."""
    dim, side, at = link
    for aside, turn in product((d for d in range(len(topology.dims)) if d != dim), (0, 1)):
        beside = topology.neighbour(at, aside, -1 if turn else 1)
        after = beside and topology.neighbour(beside, dim, -1 if side else 1)
        if beside and after:
            yield (aside, turn, at), (dim, side, beside), (aside, 1 - turn, after)
