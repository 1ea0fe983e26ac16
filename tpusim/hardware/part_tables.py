"""Tables of parts of a machine, as users write them: slow parts and broken ones.

A table has lists of parts by kind, such as `{"links": [{"between": [[0, 0, 0], [1, 0, 0]]}]}`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tpusim.base.errors import HardwareError, nearest
from tpusim.hardware.chip_fields import Dims
from tpusim.hardware.topology import Topology

SHOWN_PARTS = 4
"""Parts that are printed with a slice; of more, the number."""

ReadValue: TypeAlias = Callable[[str, str, str, Any], Any]
"""Reads a value of a part from the part's kind, where it is written, its name and what is there."""


@dataclass(frozen=True, slots=True)
class PartTable:
    """The form of a table of parts.

    name: of the key that the table is under, such as `slow`.
    kinds: the class of the parts of each list.
    examples: a part of each list, as written.
    needed: names that each part of a list has.
    identity: what no two parts of a list share.
    """

    name: str
    kinds: Mapping[str, Any]
    examples: Mapping[str, str]
    needed: Mapping[str, tuple[str, ...]]
    identity: Callable[[Any], object]

    def read(
        self, given: Any, advice: str, value: ReadValue, check: Callable[[str, str, Any], None]
    ) -> dict[str, tuple[Any, ...]]:
        """Return the parts of each list.

        advice: what to write for the table.
        check: raises HardwareError for a part, by its kind and where it is written.

        Raise HardwareError for what is no such table.
        """
        if not isinstance(given, Mapping):
            raise HardwareError(f"{self.name} is {given!r}; write {advice}")
        for key in given:
            if key not in self.kinds:
                raise HardwareError(f"{self.name} has no {key!r}; {nearest(str(key), self.kinds)}")
        return {key: self._each_once(key, rows, value, check) for key, rows in given.items()}

    def _each_once(
        self, key: str, rows: Any, value: ReadValue, check: Callable[[str, str, Any], None]
    ) -> tuple[Any, ...]:
        """Return the parts of a list; raise HardwareError for one that is listed twice."""
        if isinstance(rows, Mapping | str) or not isinstance(rows, Sequence):
            raise HardwareError(
                f"{self.name}.{key} is {rows!r}; write a list, such as [{self.examples[key]}]"
            )
        found: dict[object, Any] = {}
        for number, row in enumerate(rows):
            where = f"{self.name}.{key}[{number}]"
            part = self._part(key, where, row, value)
            check(key, where, part)
            if self.identity(part) in found:
                raise HardwareError(
                    f"{where} is {part}, which the list has already; write each once"
                )
            found[self.identity(part)] = part
        return tuple(found.values())

    def _part(self, key: str, where: str, row: Any, value: ReadValue) -> Any:
        if isinstance(row, self.kinds[key]):
            row = part_row(row)
        if not isinstance(row, Mapping):
            raise HardwareError(f"{where} is {row!r}; write {self.examples[key]}")
        fields = self.kinds[key].__dataclass_fields__
        for name in row:
            if name not in fields:
                raise HardwareError(f"{where} has no {name!r}; {nearest(str(name), fields)}")
        for name in self.needed[key]:
            if name not in row:
                raise HardwareError(f"{where} has no {name!r}; write {self.examples[key]}")
        read = {name: value(key, f"{where}.{name}", name, row[name]) for name in row}
        return self.kinds[key](**read)


def part_row(part: Any) -> dict[str, Any]:
    """Return a part as a user writes it."""
    row = {name: getattr(part, name) for name in type(part).__dataclass_fields__}
    if "at" in row:
        row["at"] = list(row["at"])
    if "between" in row:
        row["between"] = [list(end) for end in row["between"]]
    return row


def shown_parts(parts: Sequence[Any]) -> str:
    """Return parts in words, the first few and the number of the others."""
    shown = [str(part) for part in parts[:SHOWN_PARTS]]
    more = len(parts) - len(shown)
    return "; ".join([*shown, *([f"{more} more"] if more else [])])


@dataclass(frozen=True, slots=True)
class PlaceReader:
    """Reads chips, links and slices of a machine whose slices have one topology."""

    topology: Topology
    num_slices: int

    def slice_number(self, where: str, value: Any) -> int:
        """Return the number of a slice."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise HardwareError(f"{where} is {value!r}; write the number of a slice, from 0")
        if not 0 <= value < self.num_slices:
            raise HardwareError(
                f"{where} is {value}, and the machine has {_slices(self.num_slices)}; write "
                + ("0, or leave it out" if self.num_slices == 1 else f"0 to {self.num_slices - 1}")
            )
        return value

    def chip(self, where: str, value: Any) -> Dims:
        """Return the coordinates of a chip."""
        dims = self.topology.dims
        example = [length - 1 for length in dims]
        if not is_whole_numbers(value):
            raise HardwareError(
                f"{where} is {value!r}; write the coordinates of a chip, such as {example}"
            )
        if len(value) != len(dims) or any(
            not 0 <= at < length for at, length in zip(value, dims, strict=True)
        ):
            raise HardwareError(
                f"{where} is {list(value)}, which is no chip of {self.topology}; write "
                f"{len(dims)} coordinates from {[0] * len(dims)} to {example}"
            )
        return tuple(value)

    def ends(self, where: str, value: Any, example: str) -> tuple[Dims, Dims]:
        """Return the two chips that a link joins."""
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        if not listed or len(value) != 2:
            raise HardwareError(f"{where} is {value!r}; write two neighbours, as in {example}")
        one, other = (self.chip(f"{where}[{at}]", each) for at, each in enumerate(value))
        if not link_ends(one, other, self.topology):
            beside = {end for dim, _, end in _neighbours(one, self.topology) if end != one}
            raise HardwareError(
                f"{where} is {list(one)} and {list(other)}, which no link joins; write a neighbour "
                f"of {list(one)}, such as {list(min(beside)) if beside else 'none (it has none)'}"
            )
        return one, other


def is_whole_numbers(value: Any) -> bool:
    """Return True for a list of whole numbers."""
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed and not any(isinstance(at, bool) or not isinstance(at, int) for at in value)


def link_ends(one: Dims, other: Dims, topology: Topology) -> tuple[tuple[int, int, Dims], ...]:
    """Return the directed links between two chips, as dimension, direction and the chip it leaves.

    The direction is 0 for + and 1 for -. Two chips of a ring of two are joined by two links each
    way; a slow or broken link between them is all of these.
    """
    found = [(dim, side, one) for dim, side, end in _neighbours(one, topology) if end == other]
    found += [(dim, side, other) for dim, side, end in _neighbours(other, topology) if end == one]
    return tuple(found) if one != other else ()


def _neighbours(at: Dims, topology: Topology) -> list[tuple[int, int, Dims]]:
    ends = [
        (dim, side, topology.neighbour(at, dim, step))
        for dim in range(len(topology.dims))
        for side, step in enumerate((1, -1))
    ]
    return [(dim, side, end) for dim, side, end in ends if end is not None]


def chip_words(at: Dims, number: int) -> str:
    """Return a chip in words, with its slice unless that is the first."""
    return ",".join(map(str, at)) + (f" of slice {number}" if number else "")


def _slices(count: int) -> str:
    return f"{count} slice{'s' * (count > 1)}"
