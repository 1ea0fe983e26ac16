"""The links that a device's tasks share, and how fast they are."""

from collections.abc import Iterable

from tpusim.costs.tasks import HBM
from tpusim.hardware import Chip
from tpusim.hardware.topology import DIMENSION_NAMES

DCN = "dcn"
"""The stream of what crosses slices, and what the names of its links begin with."""

LEAVING, ARRIVING = "dcn+", "dcn-"
TO_HOST, FROM_HOST = "pcie+", "pcie-"
DIE_LINKS = ("die+", "die-")


def capacities(
    chip: Chip, oversubscription: float = 1.0, dcn: Iterable[str] = (LEAVING, ARRIVING)
) -> dict[str, float]:
    """Bytes a second that one device has of each link class, one way.

    Where a chip is two devices (v2, v3, 7x), each has half of its ICI, DCN and PCIe links. The
    chips of a host share its network cards, and a slice's hosts its uplink to the data centre
    network, which is narrower than all cards by `oversubscription`. Cards send and receive at once
    (IEEE 802.3, full duplex); `dcn` names their links (see `cards`). PCIe lanes are pairs of wires,
    one each way, so what leaves for the host does not slow what comes (PCI Express Base
    Specification, dual-simplex links).
    """
    links = {f"ici:{name}{way}": ici_rate(chip) for name in DIMENSION_NAMES[: chip.ici_dimensions]
             for way in "+-"}  # fmt: skip
    if chip.devices > 1:
        links |= dict.fromkeys(DIE_LINKS, chip.die_to_die_bandwidth)
    links[HBM] = chip.hbm_bandwidth / chip.devices
    links |= dict.fromkeys(dcn, chip.dcn_bandwidth / chip.devices / oversubscription)
    links |= dict.fromkeys((TO_HOST, FROM_HOST), chip.pcie_bandwidth / chip.devices)
    return links


def ici_rate(chip: Chip) -> float:
    """Bytes a second that one device has of an ICI link, one way."""
    return chip.ici_bandwidth * chip.costs.ici_efficiency / chip.devices
