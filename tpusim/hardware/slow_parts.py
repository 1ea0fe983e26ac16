"""Parts of a machine that are slower than they should be: chips, links, whole slices.

Each says how much of its speed is left, as a share from above 0 to 1. A slow chip is slow in its
matrix and vector units (`compute`), in its HBM (`hbm`), or in both; a slow link has less bandwidth
in both directions; all chips of a slow slice are alike. Launches, latencies, DCN and PCIe stay what
they are.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from tpusim.base.errors import HardwareError
from tpusim.base.value_checks import is_number
from tpusim.hardware.chip_fields import Dims
from tpusim.hardware.part_tables import MachineParts, PlaceReader, Reader, chip_words
from tpusim.hardware.topology import Topology


@dataclass(frozen=True, slots=True)
class SlowChip:
    """A chip with a share of its speed.

    at: its coordinates on the torus.
    compute: of its matrix and vector units.
    hbm: of the bandwidth of its HBM.
    slice: number of its slice, from 0.
    """

    EXAMPLE: ClassVar = "{ at = [0, 0, 0], compute = 0.8, hbm = 0.9 }"

    at: Dims
    compute: float = 1.0
    hbm: float = 1.0
    slice: int = 0

    def __str__(self) -> str:
        return f"chip {chip_words(self.at, self.slice)} {speed_words(self.compute, self.hbm)}"


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link between two neighbours with a share of its bandwidth, in both directions.

    between: coordinates of both chips.
    slice: number of their slice, from 0.
    """

    EXAMPLE: ClassVar = "{ between = [[0, 0, 0], [1, 0, 0]], bandwidth = 0.5 }"

    between: tuple[Dims, Dims]
    bandwidth: float
    slice: int = 0

    def __str__(self) -> str:
        one, other = self.between
        ends = f"{chip_words(one, self.slice)} to {chip_words(other, 0)}"
        return f"link {ends} bandwidth x{self.bandwidth:g}"


@dataclass(frozen=True, slots=True)
class SlowSlice:
    """A slice, by number from 0, all of whose chips have a share of their speed."""

    EXAMPLE: ClassVar = "{ slice = 1, compute = 0.9 }"

    slice: int
    compute: float = 1.0
    hbm: float = 1.0

    def __str__(self) -> str:
        return f"slice {self.slice} {speed_words(self.compute, self.hbm)}"


@dataclass(frozen=True, slots=True)
class SlowParts(MachineParts):
    """The slow parts of a machine; a slow chip of a slow slice has the product of both shares."""

    NAME: ClassVar = "slow"
    KINDS: ClassVar = {"chips": SlowChip, "links": SlowLink, "slices": SlowSlice}

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
        places = PlaceReader(topology, num_slices)
        readers: dict[str, Reader] = {**dict.fromkeys(_SHARES, _share), "at": places.chip}
        return cls.read(given, places, readers, _check_slower)

    @property
    def every(self) -> tuple[SlowChip | SlowLink | SlowSlice, ...]:
        """All slow parts: slices, chips, links."""
        return (*self.slices, *self.chips, *self.links)

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


_SHARES = ("compute", "hbm", "bandwidth")


SLOW_ADVICE = SlowParts.advice()
"""What to write for the slow parts of a slice."""


def _check_slower(where: str, part: SlowChip | SlowLink | SlowSlice) -> None:
    """Raise HardwareError for a part that has all of its speed."""
    shares = [name for name in _SHARES if hasattr(part, name)]
    if all(getattr(part, name) == 1.0 for name in shares):
        raise HardwareError(
            f"{where} is as fast as any other; write the share that is left of its "
            f"{' or '.join(shares)}, as in {part.EXAMPLE}"
        )


def _share(where: str, value: Any) -> float:
    if not (is_number(value) and 0 < value <= 1):
        raise HardwareError(
            f"{where} is {value!r}; write the share that is left, from above 0 to 1 (0.8 has "
            "lost a fifth)"
        )
    return float(value)


def speed_words(compute: float, hbm: float) -> str:
    """Return what is left of a chip's speed, in words; empty for all of it."""
    shares = {"compute": compute, "HBM": hbm}
    return " ".join(f"{name} x{share:g}" for name, share in shares.items() if share != 1)
