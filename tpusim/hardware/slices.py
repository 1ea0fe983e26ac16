"""A slice: chips of one kind joined by ICI, or several such slices joined by DCN."""

import re
import sys
from dataclasses import dataclass

from tpusim.errors import HardwareError, nearest
from tpusim.hardware.catalogue import load_chip
from tpusim.hardware.chip import Chip
from tpusim.hardware.legality import default_shape
from tpusim.hardware.rules import GENERATIONS, Dims
from tpusim.hardware.topology import Topology


@dataclass(frozen=True, slots=True, init=False)
class Slice:
    """What a program runs on: a chip, the torus of one slice, and the number of slices.

    dcn_oversubscription: how many times over the network cards of a slice's hosts could fill its
        uplink to the data centre network; at least 1.

    >>> pod = Slice("v4", "8x16x16")
    >>> print(pod, pod.chips, pod.name)
    v4:8x16x16 2048 v4-4096
    """

    chip: Chip
    topology: Topology
    num_slices: int
    dcn_oversubscription: float

    def __init__(
        self,
        chip: Chip | str,
        shape: str | Dims,
        num_slices: int = 1,
        twisted: bool = False,
        dcn_oversubscription: float = 1.0,
    ) -> None:
        chip = load_chip(chip) if isinstance(chip, str) else chip
        if isinstance(num_slices, bool) or not isinstance(num_slices, int) or num_slices < 1:
            raise HardwareError(f"num_slices is {num_slices!r}; write a whole number from 1 up")
        _check_ratio(dcn_oversubscription)
        object.__setattr__(self, "chip", chip)
        object.__setattr__(self, "topology", Topology.of(chip.generation, shape, twisted))
        object.__setattr__(self, "num_slices", num_slices)
        object.__setattr__(self, "dcn_oversubscription", float(dcn_oversubscription))

    @classmethod
    def from_name(
        cls,
        name: str,
        num_slices: int = 1,
        twisted: bool = False,
        dcn_oversubscription: float = 1.0,
    ) -> "Slice":
        """The slice that a name stands for, in its default, most cube-like shape.

        v2 to v5p and 7x count TensorCores (`v4-4096` is 2048 chips), v5e and v6e chips; `v5e` is
        also spelled `v5litepod`, and a shape may stand for the count (`tpu7x-4x4x4`).

        Raises `HardwareError` for a name that no slice has.
        """
        found = re.fullmatch(r"(\w+)-(?:([0-9]{1,7})|([0-9]+x[0-9x]*))", name)
        if not found:
            raise HardwareError(
                f"{name!r} is not the name of a slice; write for example 'v4-4096' or 'v4:8x16x16'"
            )
        generation = _generation(found[1], name)
        shape: str | Dims = found[3] or default_shape(
            generation, _chips(generation, int(found[2]), name)
        )
        return cls(generation, shape, num_slices, twisted, dcn_oversubscription)

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.topology.chips * self.num_slices

    @property
    def devices(self) -> int:
        """JAX devices of all slices."""
        return self.chips * self.chip.devices

    @property
    def name(self) -> str:
        """The name of one slice, as Cloud writes it: `v4-4096`, `v5e-256`, `tpu7x-128`."""
        return slice_name(self.chip.generation, self.topology.chips)

    def __str__(self) -> str:
        many = f" x {self.num_slices} slices" if self.num_slices > 1 else ""
        ratio = self.dcn_oversubscription
        dcn = f", DCN oversubscribed {ratio:g}:1" if ratio > 1 else ""
        return f"{self.chip.name}:{self.topology}{many}{dcn}"


def slice_name(generation: str, chips: int) -> str:
    """The name of a slice of `chips` chips.

    >>> slice_name("v4", 2048)
    'v4-4096'
    """
    rules = GENERATIONS[generation]
    return f"{rules.prefixes[0]}-{chips * rules.cores}"


def parse_slice(text: str) -> Slice:
    """The slice that `v4:8x16x16`, `v4:4x4x8_twisted` or a name (`v4-4096`) means.

    Several are `v5e:16x16 x 2`, or as they print: `v5e:16x16 x 2 slices`. Raises `HardwareError` if
    there is none.
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
    if not (number and 1 <= ratio <= sys.float_info.max):
        raise HardwareError(
            f"dcn_oversubscription is {ratio!r}; write a finite number from 1 up (at 1 the uplink "
            "takes all that the hosts can send)"
        )


def _generation(prefix: str, name: str) -> str:
    prefixes = {word: key for key, rules in GENERATIONS.items() for word in rules.prefixes}
    if prefix not in prefixes:
        raise HardwareError(
            f"{name!r} is not the name of a slice: no generation is called {prefix!r}; "
            f"{nearest(prefix, prefixes)}"
        )
    return prefixes[prefix]


def _chips(generation: str, count: int, name: str) -> int:
    cores = GENERATIONS[generation].cores
    if count % cores:
        raise HardwareError(
            f"{name!r} is not the name of a slice: the number counts TensorCores, {cores} a chip; "
            f"write an even number, as in {slice_name(generation, max(4, count // cores))!r}"
        )
    return count // cores
