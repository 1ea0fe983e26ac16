"""The links that a device's tasks share, and their capacities.

All slices run one program, so one link of DCN per direction stands for all of their NICs, as long
as all take the same part in everything that crosses: in a ring each sends and receives. A permute
of listed pairs leaves slices idle, such as the pipeline's step back from the last stage to the
first beside the others' steps on. Then slices share a link only if every permute of the program
uses them alike, and a permute draws on the links of its own senders and receivers alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tpusim.costs.tasks import HBM
from tpusim.hardware import DIMENSION_NAMES, Chip, ListedGroups

DCN = "dcn"
"""The stream of transfers across slices, and the start of the names of DCN's links."""

DCN_SEND, DCN_RECEIVE = "dcn+", "dcn-"
ICI = "ici"
"""The start of the names of ICI's links."""

TO_HOST, FROM_HOST = "pcie+", "pcie-"
DIE_LINKS = ("die+", "die-")


def capacities(
    chip: Chip, oversubscription: float = 1.0, dcn: Iterable[str] = (DCN_SEND, DCN_RECEIVE)
) -> dict[str, float]:
    """Return the bytes per second that one device has of each link class, one way.

    oversubscription: bandwidth of a slice's NICs, which the chips of a host share, over that of its
        uplink to the data centre network.
    dcn: names of the links of DCN (see `SliceNics`).

    If a chip is two devices (v2, v3, 7x), each has half of its ICI, DCN and PCIe links. NICs send
    and receive at once (IEEE 802.3, full duplex). PCIe lanes are pairs of wires, one each way, so
    transfers to the host do not slow those from it (PCI Express Base Specification, dual-simplex
    links).
    """
    shares = chip.ici_shares or (1.0,) * chip.ici_dimensions
    links = {
        f"{ICI}:{name}{side}": ici_rate(chip) * share
        for name, share in zip(DIMENSION_NAMES, shares, strict=False)
        for side in "+-"
    }
    if chip.devices > 1:
        links |= dict.fromkeys(DIE_LINKS, chip.die_to_die_bandwidth)
    links[HBM] = chip.hbm_bandwidth / chip.devices
    links |= dict.fromkeys(dcn, chip.dcn_bandwidth / chip.devices / oversubscription)
    links |= dict.fromkeys((TO_HOST, FROM_HOST), chip.pcie_bandwidth / chip.devices)
    return links


def ici_rate(chip: Chip) -> float:
    """Return the bytes per second that one device has of an ICI link, one way.

    Links of a dimension with a share of its own (`Chip.ici_shares`) have that share of it.
    """
    return chip.ici_bandwidth * chip.costs.ici_efficiency / chip.devices


SliceSets: TypeAlias = tuple[frozenset[int], ...]
"""Sets of slices, each of which one link stands for."""


@dataclass(frozen=True, slots=True)
class SliceNics:
    """The sets of slices that share a link, for what leaves them and for what arrives."""

    leaving: SliceSets
    arriving: SliceSets

    @classmethod
    def of(cls, listed: Iterable[ListedGroups], slices: int) -> "SliceNics":
        """Return the links for a program whose permutes are among the listed groups."""
        ends = [each.ends for each in listed if each.pairs]
        return cls(
            _used_alike([sources for sources, _ in ends], slices),
            _used_alike([targets for _, targets in ends], slices),
        )

    def links(self, listed: ListedGroups | None = None) -> tuple[str, ...]:
        """Return the names of the links that listed pairs draw on; all links for anything else."""
        sources, targets = listed.ends if listed is not None and listed.pairs else (None, None)
        return (
            *_link_names(DCN_SEND, self.leaving, sources),
            *_link_names(DCN_RECEIVE, self.arriving, targets),
        )


def _used_alike(used: Iterable[frozenset[int]], slices: int) -> SliceSets:
    """Split the slices into sets that are together in or out of each of the given ones."""
    found = [frozenset(range(slices))]
    for ends in used:
        found = [part for each in found for part in (each & ends, each - ends) if part]
    return tuple(sorted(found, key=min))


def _link_names(link: str, alike: SliceSets, ends: frozenset[int] | None) -> tuple[str, ...]:
    """Return the links of the sets that contain one of the slices `ends`, or of all sets."""
    whole = len(alike) == 1
    return tuple(
        link if whole else f"{DCN}:{_slice_numbers(each)}{link[-1]}"
        for each in alike
        if ends is None or each & ends
    )


def _slice_numbers(slices: frozenset[int]) -> str:
    """Format numbers of slices, such as `0..2,5`: a dash at the end is a direction."""
    runs: list[list[int]] = []
    for each in sorted(slices):
        if runs and runs[-1][-1] == each - 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)
