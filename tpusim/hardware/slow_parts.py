"""Parts of a machine that are slower than they should be: chips, links, whole slices.

Each says how much of its speed is left, as a share from above 0 to 1. A slow chip is slow in its
matrix and vector units (`compute`), in its HBM (`hbm`), or in both; a slow link has less bandwidth
in both directions; all chips of a slow slice are alike. Launches, latencies, DCN and PCIe stay what
they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import HardwareError, nearest
from tpusim.hardware.chip_fields import Dims
from tpusim.hardware.topology import Topology

SHOWN_PARTS = 4
"""Slow parts that are printed with a slice; of more, the number."""


@dataclass(frozen=True, slots=True)
class SlowChip:
    """A chip with a share of its speed.

    at: its coordinates on the torus.
    compute: of its matrix and vector units.
    hbm: of the bandwidth of its HBM.
    slice: number of its slice, from 0.
    """

    at: Dims
    compute: float = 1.0
    hbm: float = 1.0
    slice: int = 0

    def __str__(self) -> str:
        return f"chip {_chip(self.at, self.slice)} {speed_words(self.compute, self.hbm)}"


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link between two neighbours with a share of its bandwidth, in both directions.

    between: coordinates of both chips.
    slice: number of their slice, from 0.
    """

    between: tuple[Dims, Dims]
    bandwidth: float
    slice: int = 0

    def __str__(self) -> str:
        one, other = self.between
        ends = f"{_chip(one, self.slice)} to {_chip(other, 0)}"
        return f"link {ends} bandwidth x{self.bandwidth:g}"


@dataclass(frozen=True, slots=True)
class SlowSlice:
    """A slice, by number from 0, all of whose chips have a share of their speed."""

    slice: int
    compute: float = 1.0
    hbm: float = 1.0

    def __str__(self) -> str:
        return f"slice {self.slice} {speed_words(self.compute, self.hbm)}"


@dataclass(frozen=True, slots=True)
class SlowParts:
    """The slow parts of a machine; a slow chip of a slow slice has the product of both shares."""

    chips: tuple[SlowChip, ...] = ()
    links: tuple[SlowLink, ...] = ()
    slices: tuple[SlowSlice, ...] = ()

    @classmethod
    def of(cls, given: Any, topology: Topology, num_slices: int) -> "SlowParts":
        """Return the slow parts that a user wrote for slices of this topology.

        given: a table of lists, as in `{"chips": [{"at": [0, 0, 0], "compute": 0.5}]}`; None for a
            machine without slow parts.

        Raise HardwareError for what is no such table, and for parts that the machine does not have.
        """
        if isinstance(given, SlowParts):
            given = given.written
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise HardwareError(f"slow is {given!r}; write {SLOW_ADVICE}")
        for key in given:
            if key not in _KINDS:
                raise HardwareError(f"slow has no {key!r}; {nearest(str(key), _KINDS)}")
        reader = _PartReader(topology, num_slices)
        parts = {key: _each_once(key, _rows(key, rows), reader) for key, rows in given.items()}
        return cls(**parts)

    @property
    def every(self) -> tuple[SlowChip | SlowLink | SlowSlice, ...]:
        """All slow parts: slices, chips, links."""
        return (*self.slices, *self.chips, *self.links)

    @property
    def written(self) -> dict[str, list[dict[str, Any]]]:
        """The parts as plain data, as a user writes them; keys without parts are left out."""
        found = {
            "chips": [_row(each) for each in self.chips],
            "links": [_row(each) for each in self.links],
            "slices": [_row(each) for each in self.slices],
        }
        return {key: rows for key, rows in found.items() if rows}

    def speeds(self, at: Dims, number: int) -> tuple[float, float]:
        """Return the shares of compute and HBM of the chip at `at` of slice `number`."""
        compute = hbm = 1.0
        for part in self.slices:
            if part.slice == number:
                compute, hbm = compute * part.compute, hbm * part.hbm
        for each in self.chips:
            if (each.at, each.slice) == (at, number):
                compute, hbm = compute * each.compute, hbm * each.hbm
        return compute, hbm

    def __bool__(self) -> bool:
        return bool(self.every)

    def __str__(self) -> str:
        shown = [str(part) for part in self.every[:SHOWN_PARTS]]
        more = len(self.every) - len(shown)
        return "; ".join([*shown, *([f"{more} more"] if more else [])])


_KINDS: Mapping[str, type[SlowChip | SlowLink | SlowSlice]] = {
    "chips": SlowChip,
    "links": SlowLink,
    "slices": SlowSlice,
}
_EXAMPLES = {
    "chips": "{ at = [0, 0, 0], compute = 0.8, hbm = 0.9 }",
    "links": "{ between = [[0, 0, 0], [1, 0, 0]], bandwidth = 0.5 }",
    "slices": "{ slice = 1, compute = 0.9 }",
}
_NEEDED = {"chips": ("at",), "links": ("between", "bandwidth"), "slices": ("slice",)}
_SHARES = ("compute", "hbm", "bandwidth")

SLOW_ADVICE = f"a table of lists, such as chips = [{_EXAMPLES['chips']}]"
"""What to write for the slow parts of a slice."""


@dataclass(frozen=True, slots=True)
class _PartReader:
    """Reads what a user wrote about parts of slices of one topology."""

    topology: Topology
    num_slices: int

    def part(self, key: str, where: str, row: Any) -> Any:
        """Return a slow chip, link or slice."""
        if not isinstance(row, Mapping):
            raise HardwareError(f"{where} is {row!r}; write {_EXAMPLES[key]}")
        fields = _KINDS[key].__dataclass_fields__
        for name in row:
            if name not in fields:
                raise HardwareError(f"{where} has no {name!r}; {nearest(str(name), fields)}")
        for name in _NEEDED[key]:
            if name not in row:
                raise HardwareError(f"{where} has no {name!r}; write {_EXAMPLES[key]}")
        values = {name: self._value(f"{where}.{name}", name, row[name]) for name in row}
        if all(values.get(name, 1.0) == 1.0 for name in _SHARES):
            slowed = " or ".join(name for name in _SHARES if name in fields)
            raise HardwareError(
                f"{where} is as fast as any other; write the share that is left of its {slowed}, "
                f"as in {_EXAMPLES[key]}"
            )
        return _KINDS[key](**values)

    def _value(self, where: str, name: str, value: Any) -> Any:
        if name in _SHARES:
            return _share(where, value)
        if name == "slice":
            return self._slice(where, value)
        return self._chip(where, value) if name == "at" else self._ends(where, value)

    def _slice(self, where: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise HardwareError(f"{where} is {value!r}; write the number of a slice, from 0")
        if not 0 <= value < self.num_slices:
            raise HardwareError(
                f"{where} is {value}, and the machine has {_slices(self.num_slices)}; write "
                + ("0, or leave it out" if self.num_slices == 1 else f"0 to {self.num_slices - 1}")
            )
        return value

    def _chip(self, where: str, value: Any) -> Dims:
        dims = self.topology.dims
        example = [length - 1 for length in dims]
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        if not listed or any(isinstance(at, bool) or not isinstance(at, int) for at in value):
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

    def _ends(self, where: str, value: Any) -> tuple[Dims, Dims]:
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        if not listed or len(value) != 2:
            raise HardwareError(
                f"{where} is {value!r}; write two neighbours, as in {_EXAMPLES['links']}"
            )
        one, other = (self._chip(f"{where}[{at}]", each) for at, each in enumerate(value))
        if not link_ends(one, other, self.topology):
            beside = {end for dim, _, end in _neighbours(one, self.topology) if end != one}
            raise HardwareError(
                f"{where} is {list(one)} and {list(other)}, which no link joins; write a neighbour "
                f"of {list(one)}, such as {list(min(beside)) if beside else 'none (it has none)'}"
            )
        return one, other


def link_ends(one: Dims, other: Dims, topology: Topology) -> tuple[tuple[int, int, Dims], ...]:
    """Return the directed links between two chips, as dimension, direction and the chip it leaves.

    The direction is 0 for + and 1 for -. Two chips of a ring of two are joined by two links each
    way; a slow link between them is all of these.
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


def _rows(key: str, rows: Any) -> Sequence[Any]:
    if isinstance(rows, Mapping | str) or not isinstance(rows, Sequence):
        raise HardwareError(f"slow.{key} is {rows!r}; write a list, such as [{_EXAMPLES[key]}]")
    return rows


def _each_once(key: str, rows: Sequence[Any], reader: _PartReader) -> tuple[Any, ...]:
    """Return the parts of a list; raise HardwareError for one that is listed twice."""
    found: dict[object, Any] = {}
    for number, row in enumerate(rows):
        row = _row(row) if isinstance(row, _KINDS[key]) else row
        part = reader.part(key, f"slow.{key}[{number}]", row)
        name = _identity(part)
        if name in found:
            raise HardwareError(
                f"slow.{key}[{number}] is {part}, which the list has already; write each once"
            )
        found[name] = part
    return tuple(found.values())


def _identity(part: SlowChip | SlowLink | SlowSlice) -> object:
    match part:
        case SlowChip():
            return part.at, part.slice
        case SlowLink():
            return frozenset(part.between), part.slice
    return part.slice


def _row(part: SlowChip | SlowLink | SlowSlice) -> dict[str, Any]:
    """Return a part as a user writes it, without shares of 1."""
    row = {name: getattr(part, name) for name in type(part).__dataclass_fields__}
    if "at" in row:
        row["at"] = list(row["at"])
    if "between" in row:
        row["between"] = [list(end) for end in row["between"]]
    return {name: value for name, value in row.items() if not (name in _SHARES and value == 1.0)}


def _share(where: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 < value <= 1):
        raise HardwareError(
            f"{where} is {value!r}; write the share that is left, from above 0 to 1 (0.8 has "
            "lost a fifth)"
        )
    return float(value)


def _chip(at: Dims, slice_: int) -> str:
    return ",".join(map(str, at)) + (f" of slice {slice_}" if slice_ else "")


def speed_words(compute: float, hbm: float) -> str:
    """Return what is left of a chip's speed, in words; empty for all of it."""
    shares = {"compute": compute, "HBM": hbm}
    return " ".join(f"{name} x{share:g}" for name, share in shares.items() if share != 1)


def _slices(count: int) -> str:
    return f"{count} slice{'s' * (count > 1)}"
