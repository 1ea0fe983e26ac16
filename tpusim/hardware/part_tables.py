"""Tables of parts of a machine, as users write them: slow parts and broken ones.

A table has lists of parts by kind, such as `{"links": [{"between": [[0, 0, 0], [1, 0, 0]]}]}`.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

from tpusim.base.errors import HardwareError, nearest
from tpusim.base.value_checks import is_list
from tpusim.hardware.chip_fields import Dims
from tpusim.hardware.topology import Topology

SHOWN_PARTS = 4
"""Parts that are printed with a slice; of more, the number."""

_PLACE = ("at", "between", "dim", "slice")
"""Fields that say which part of a machine is meant."""

Reader: TypeAlias = Callable[[str, Any], Any]
"""Reads a value of a part from where it is written and what is there."""


class MachineParts:
    """Parts of a machine: a dataclass with a tuple of parts for each list of its table.

    NAME: of the key that the table is under, such as `slow`.
    KINDS: the class of the parts of each list, with an `EXAMPLE` of one as it is written.
    """

    __slots__ = ()
    NAME: ClassVar[str]
    KINDS: ClassVar[Mapping[str, Any]]

    @classmethod
    def advice(cls) -> str:
        """Return what to write for the table, with its first list as an example."""
        key, kind = next(iter(cls.KINDS.items()))
        return f"a table of lists, such as {key} = [{kind.EXAMPLE}]"

    @classmethod
    def read(
        cls,
        given: Any,
        places: "PlaceReader",
        readers: Mapping[str, Reader],
        check: Callable[[str, Any], None],
    ) -> Self:
        """Return the parts that a user wrote.

        given: a table of lists; None for no parts.
        readers: of the values of a part by their names, but for slices and the ends of links.
        check: raises HardwareError for a part, by where it is written.

        Raise HardwareError for what is no such table.
        """
        given = given.written if isinstance(given, cls) else {} if given is None else given
        if not isinstance(given, Mapping):
            raise HardwareError(f"{cls.NAME} is {given!r}; write {cls.advice()}")
        for key in given:
            if key not in cls.KINDS:
                raise HardwareError(f"{cls.NAME} has no {key!r}; {nearest(str(key), cls.KINDS)}")
        ends = partial(places.ends, cls.KINDS["links"].EXAMPLE)
        every: dict[str, Reader] = {"slice": places.slice_number, "between": ends, **readers}
        return cls(**{key: cls._each_once(key, given[key], every, check) for key in given})

    @classmethod
    def _each_once(
        cls,
        key: str,
        rows: Any,
        readers: Mapping[str, Reader],
        check: Callable[[str, Any], None],
    ) -> tuple[Any, ...]:
        """Return the parts of a list; raise HardwareError for one that is listed twice."""
        kind = cls.KINDS[key]
        if isinstance(rows, Mapping) or not is_list(rows):
            raise HardwareError(
                f"{cls.NAME}.{key} is {rows!r}; write a list, such as [{kind.EXAMPLE}]"
            )
        found: dict[object, Any] = {}
        for number, row in enumerate(rows):
            where = f"{cls.NAME}.{key}[{number}]"
            part = _part(kind, where, row, readers)
            check(where, part)
            if _place(part) in found:
                raise HardwareError(
                    f"{where} is {part}, which the list has already; write each once"
                )
            found[_place(part)] = part
        return tuple(found.values())

    @property
    def every(self) -> tuple[Any, ...]:
        """All parts, in the order in which they are printed."""
        raise NotImplementedError

    @property
    def written(self) -> dict[str, list[dict[str, Any]]]:
        """The parts as plain data, as a user writes them; keys without parts are left out."""
        kinds: Any = type(self)
        found = {kind.name: getattr(self, kind.name) for kind in fields(kinds)}
        return {key: [_row(part) for part in parts] for key, parts in found.items() if parts}

    def __bool__(self) -> bool:
        return bool(self.every)

    def __str__(self) -> str:
        shown = [str(part) for part in self.every[:SHOWN_PARTS]]
        more = len(self.every) - len(shown)
        return "; ".join([*shown, *([f"{more} more"] if more else [])])


def _part(kind: Any, where: str, row: Any, readers: Mapping[str, Reader]) -> Any:
    if isinstance(row, kind):
        row = _row(row)
    if not isinstance(row, Mapping):
        raise HardwareError(f"{where} is {row!r}; write {kind.EXAMPLE}")
    known = {each.name: each.default is MISSING for each in fields(kind)}
    for name in row:
        if name not in known:
            raise HardwareError(f"{where} has no {name!r}; {nearest(str(name), known)}")
    for name, needed in known.items():
        if needed and name not in row:
            raise HardwareError(f"{where} has no {name!r}; write {kind.EXAMPLE}")
    return kind(**{name: readers[name](f"{where}.{name}", row[name]) for name in row})


def _row(part: Any) -> dict[str, Any]:
    """Return a part as a user writes it, without shares that are those of healthy parts."""
    row = {
        each.name: getattr(part, each.name)
        for each in fields(part)
        if each.default != 1.0 or getattr(part, each.name) != 1.0
    }
    if "at" in row:
        row["at"] = list(row["at"])
    if "between" in row:
        row["between"] = [list(end) for end in row["between"]]
    return row


def _place(part: Any) -> object:
    """Return what no two parts of a list share; a link has two ends in any order."""
    found = {name: getattr(part, name) for name in _PLACE if hasattr(part, name)}
    ends = frozenset(found.pop("between", ()))
    return ends, *found.values()


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

    def ends(self, example: str, where: str, value: Any) -> tuple[Dims, Dims]:
        """Return the two chips that a link joins; example: of a link, as written."""
        if not is_list(value) or len(value) != 2:
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
    return is_list(value) and all(type(at) is int for at in value)


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
