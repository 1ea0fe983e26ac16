"""A slice: chips of one kind joined by ICI, or several such slices joined by DCN."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import HardwareError, nearest
from tpusim.base.html_text import html_table
from tpusim.base.shown_value import shown
from tpusim.base.units import format_bytes
from tpusim.hardware.broken_parts import BrokenParts
from tpusim.hardware.calibration import Calibration, read_calibration
from tpusim.hardware.catalogue import catalogue_rules, chip_of, known_name, load_chip, rules_of
from tpusim.hardware.chip import Chip
from tpusim.hardware.chip_fields import Dims
from tpusim.hardware.legality import default_shape
from tpusim.hardware.slice_rules import CUBE, SliceRules
from tpusim.hardware.slow_parts import SlowParts
from tpusim.hardware.topology import Topology

SECONDS_AN_HOUR = 3600.0

_NAME = re.compile(r"(.*?\w)[-_ ](?:([0-9]{1,7})|([0-9]+x[0-9x]*))")
"""The name of a slice: its prefix, and its TensorCores or its shape."""

_MACHINE = re.compile(r"-[a-z]+-[0-9]+t$")
"""What Cloud writes after the chip in the name of a machine: `ct6e-standard-4t`."""

MOST_OVERSUBSCRIBED = 1000
"""Beyond it the rate of a chip's share of the uplink is too low for the engine's units."""


MOST_SLICES = 1_000_000
"""Slices joined by DCN, at most: what depends on the slices takes memory for each."""


@checked_call
@dataclass(frozen=True, slots=True, init=False)
class Slice:
    """The machine of a program: a chip, the torus of one slice, and the number of slices.

    chip: a chip, or its name in the catalogue; without `shape`, the name of a slice (`v6e-256`).
    shape: chips along each dimension of one slice, as (8, 16, 16) or `8x16x16`.
    num_slices: slices joined by DCN.
    twisted: the torus is twisted, as `4x4x8_twisted` is.
    dcn_oversubscription: bandwidth of the NICs of a slice's hosts over that of its uplink to the
        data centre network; at least 1.
    clock: Hz of the chips' cores, where it is not the chip's own (`Chip.at_clock`); else None.
    slow: chips, links and slices that are slower than the others, as a table of lists such as
        `{"chips": [{"at": [0, 0, 0], "compute": 0.5}]}`; see `SlowParts`.
    calibration: what `ts.calibrate` learnt of the chip, or the path of its file; the chip has it.
    broken: optical links and switches that carry nothing, as a table of lists such as
        `{"switches": [{"dim": 0, "at": [1, 2]}]}`; see `BrokenParts`.

    Raise HardwareError for an unknown chip, an illegal shape, a number out of range, slow or broken
    parts that the machine does not have, and broken parts that end the slice.

    >>> pod = Slice("v4", "8x16x16")
    >>> print(pod, pod.chips, pod.name)
    v4:8x16x16 2048 v4-4096
    """

    chip: Chip
    topology: Topology
    num_slices: int
    dcn_oversubscription: float
    clock: float | None
    slow: SlowParts
    broken: BrokenParts

    def __init__(
        self,
        chip: Chip | str,
        shape: str | Dims | None = None,
        num_slices: int = 1,
        twisted: bool = False,
        dcn_oversubscription: float = 1.0,
        clock: str | float | None = None,
        slow: Any = None,
        calibration: Calibration | str | Path | None = None,
        broken: Any = None,
    ) -> None:
        if shape is None:
            chip, shape = _named(chip)
        elif isinstance(chip, str) and (whole := _NAME.fullmatch(chip)) and whole[1] in _prefixes():
            raise HardwareError(
                f"the chip is {chip!r}, the name of a slice; write it without a shape, or the chip "
                f"{whole[1]!r}"
            )
        chip = load_chip(chip) if not isinstance(chip, Chip) else chip
        chip = chip if clock is None else chip.at_clock(clock)
        if calibration is not None:
            chip = chip.calibrated(_calibration(calibration))
        if isinstance(num_slices, bool) or not isinstance(num_slices, int) or num_slices < 1:
            raise HardwareError(f"num_slices is {num_slices!r}; write a whole number from 1 up")
        if num_slices > MOST_SLICES:
            raise HardwareError(
                f"num_slices is {num_slices:,}, and each is simulated; write at most "
                f"{MOST_SLICES:,}"
            )
        _check_ratio(dcn_oversubscription)
        object.__setattr__(self, "chip", chip)
        topology = Topology.of(_rules(chip), shape, twisted)
        object.__setattr__(self, "topology", topology)
        object.__setattr__(self, "num_slices", num_slices)
        object.__setattr__(self, "dcn_oversubscription", float(dcn_oversubscription))
        object.__setattr__(self, "clock", None if clock is None else chip.clock)
        object.__setattr__(self, "slow", SlowParts.of(slow, topology, num_slices))
        given = BrokenParts.of(broken, topology, num_slices, _rules(chip))
        object.__setattr__(self, "broken", given)

    @classmethod
    def from_name(
        cls,
        name: str,
        num_slices: int = 1,
        twisted: bool = False,
        dcn_oversubscription: float = 1.0,
        clock: str | float | None = None,
        slow: Any = None,
        calibration: Calibration | str | Path | None = None,
        broken: Any = None,
    ) -> "Slice":
        """Return the slice of a name, in its default, most cube-like shape.

        name: a prefix and the number of TensorCores, which v5e and v6e have one of a chip
            (`v4-4096` is 2048 chips, `v5e-256` is 256), or a shape (`tpu7x-4x4x4`, `v4:8x16x16`).
            A prefix may be any name of the chip: `v5litepod`, `trillium`, `TPU v4`.

        Raise HardwareError for a name that no slice has.
        """
        chip, shape = _named(name)
        extras = slow, calibration, broken
        return cls(chip, shape, num_slices, twisted, dcn_oversubscription, clock, *extras)

    def changed(
        self,
        *,
        chip: Chip | None = None,
        shape: str = "",
        num_slices: int = 0,
        slow: Any = None,
        broken: Any = None,
    ) -> "Slice":
        """Return the slice with other chips, shape, slices or parts; what is None is as it is."""
        return Slice(
            chip or self.chip,
            shape or str(self.topology),
            num_slices or self.num_slices,
            dcn_oversubscription=self.dcn_oversubscription,
            clock=self.clock,
            slow=self.slow if slow is None else slow,
            broken=self.broken if broken is None else broken,
        )

    @property
    def impaired(self) -> str:
        """The slow and the broken parts in words; empty for a healthy slice."""
        kinds = {"slow": self.slow, "broken": self.broken}
        return " and ".join(f"{kind} parts ({parts})" for kind, parts in kinds.items() if parts)

    @property
    def healthy(self) -> "Slice":
        """The slice without its slow and broken parts; itself if it has none."""
        return self.changed(slow={}, broken={}) if self.impaired else self

    @property
    def slice_rules(self) -> SliceRules:
        """The legal slices of the chip's generation."""
        return _rules(self.chip)

    @property
    def chips(self) -> int:
        """The number of chips of all slices."""
        return self.topology.chips * self.num_slices

    @property
    def devices(self) -> int:
        """The number of JAX devices of all slices."""
        return self.chips * self.chip.devices

    def usd_per_second(self, price: float | None = None) -> float | None:
        """Return the USD that all chips cost in a second; None if there is no price.

        price: USD an hour of a chip, in place of the list price on demand.
        """
        price = self.chip.price if price is None else price
        return None if price is None else self.chips * price / SECONDS_AN_HOUR

    @property
    def watts(self) -> float | None:
        """The mean watts in use of all chips; None if they are not published."""
        return None if self.chip.power is None else self.chips * self.chip.power

    @property
    def name(self) -> str:
        """The name of one slice, as Cloud writes it: `v4-4096`, `v5e-256`, `tpu7x-128`."""
        return slice_name(self.slice_rules, self.topology.chips)

    def _repr_html_(self) -> str:
        """Return chips, shape and the chip's peaks, for a notebook."""
        chip, device = self.chip, self.chip.device
        links = ", ".join(
            f"{name} {size} ({'ring' if wraps else 'line'})"
            for name, size, wraps in zip(
                self.topology.names, self.topology.dims, self.topology.wrap, strict=True
            )
        )
        rows = (
            ("chips", f"{self.chips:,} of TPU {chip.name}, {self.devices:,} JAX devices"),
            ("torus", links),
            ("bf16 peak", f"{self.chips * chip.full_peak / 1e15:,.4g} PFLOP/s"),
            ("HBM", f"{format_bytes(device.hbm_usable_bytes)} usable per device"),
        )
        return html_table(f"Slice: {self}", rows)

    @property
    def machine(self) -> str:
        """The slice in words, without the calibration of its chip."""
        many = f" x {self.num_slices} slices" if self.num_slices > 1 else ""
        ratio = self.dcn_oversubscription
        dcn = f", DCN oversubscribed {ratio:g}:1" if ratio > 1 else ""
        clock = "" if self.clock is None else f", cores at {self.clock / 1e9:g} GHz"
        slow = f", slow: {self.slow}" if self.slow else ""
        broken = f", broken: {self.broken}" if self.broken else ""
        return f"{self.chip.name}:{self.topology}{many}{dcn}{clock}{slow}{broken}"

    def __str__(self) -> str:
        found = self.chip.calibration
        by = f", calibrated by {found.name or found.learnt}" if found else ""
        return f"{self.machine}{by}"


def _calibration(given: object) -> Calibration:
    if isinstance(given, Calibration):
        return given
    if isinstance(given, str | Path):
        return read_calibration(given)
    raise HardwareError(
        f"calibration is {shown(given)}; write the path of a file of tpusim calibrate, or what "
        "ts.calibrate returned"
    )


def _rules(chip: Chip) -> SliceRules:
    """Return the rules of a chip, or of the generation that a what-if puts it in."""
    own = chip.slice_rules
    return own if own.generation == chip.generation else rules_of(chip.generation)


def slice_name(generation: str | SliceRules, chips: int) -> str:
    """Return the name of a slice of `chips` chips.

    >>> slice_name("v4", 2048)
    'v4-4096'
    """
    rules = rules_of(generation)
    return f"{rules.prefixes[0]}-{chips * rules.cores}"


def parse_slice(text: str) -> Slice:
    """Return the slice that a text means.

    text: `v4:8x16x16`, `v4:4x4x8_twisted` or a name (`v4-4096`); several slices are
        `v5e:16x16 x 2`, or as they print, `v5e:16x16 x 2 slices`.

    Raise HardwareError if it means none.
    """
    one, _, many = text.partition(" x ")
    found = re.fullmatch(r"([0-9]{1,6})(?: slices?)?", many)
    if many and not found:
        raise HardwareError(f"{text!r} is no slice; several are written 'v5e:16x16 x 2'")
    slices = int(found[1]) if found else 1
    chip, colon, shape = one.partition(":")
    return Slice(chip, shape, slices) if colon else Slice.from_name(one, slices)


def _check_ratio(ratio: float) -> None:
    number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    if not (number and 1 <= ratio <= MOST_OVERSUBSCRIBED):
        raise HardwareError(
            f"dcn_oversubscription is {shown(ratio)}; write a number from 1, where the uplink "
            f"takes all that the hosts can send, to {MOST_OVERSUBSCRIBED:,}"
        )


def _named(name: Any) -> tuple[Chip | str, str | Dims]:
    """Return the chip and the shape of the slice that a name means. Raise if it means none."""
    if not isinstance(name, str):
        of = f"the chip {name.name}" if isinstance(name, Chip) else shown(name)
        raise HardwareError(
            f"a slice of {of} has no shape; write its chips along each dimension too, such as '4x4'"
        )
    chip, colon, written = name.partition(":")
    if colon:
        return chip, written
    found = _NAME.fullmatch(name)
    if not found:
        raise HardwareError(f"{name!r} is not the name of a slice; {_size_missing(name)}")
    rules = _rules_of_prefix(found[1], name)
    shape = found[3] or default_shape(rules, _chips(rules, int(found[2]), name))
    return chip_of(rules), shape


def _prefixes() -> dict[str, SliceRules]:
    return {word: rules for rules in catalogue_rules().values() for word in rules.prefixes}


def _size_missing(name: str) -> str:
    """Return what to write in place of a name that is none of a slice, but may say the chip."""
    prefixes = _prefixes()
    rules = prefixes.get(known_name(_MACHINE.sub("", name.lower()), prefixes))
    if rules is None:
        return "write for example 'v4-4096' or 'v4:8x16x16'"
    example = slice_name(rules, CUBE**3)
    return f"it says the chip, {rules.generation}, but no size; write for example {example!r}"


def _rules_of_prefix(prefix: str, name: str) -> SliceRules:
    prefixes = _prefixes()
    meant = known_name(prefix, prefixes)
    if meant not in prefixes:
        raise HardwareError(
            f"{name!r} is not the name of a slice: no generation is called {prefix!r}; "
            f"{nearest(prefix, prefixes)}"
        )
    return prefixes[meant]


def _chips(rules: SliceRules, count: int, name: str) -> int:
    if count % rules.cores:
        raise HardwareError(
            f"{name!r} is not the name of a slice: the number counts TensorCores, {rules.cores} a "
            f"chip; write an even number, as in {slice_name(rules, max(4, count // rules.cores))!r}"
        )
    return count // rules.cores
