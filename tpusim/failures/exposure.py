"""How many units of each kind a machine has, and so how often it fails."""

from collections.abc import Mapping
from math import ceil

from tpusim.failures.causes import DAY_S, Cause
from tpusim.failures.static_places import host_sides
from tpusim.hardware import Slice, Topology
from tpusim.hardware.broken_parts import is_made_of_cubes
from tpusim.hardware.slice_rules import CUBE

CUBE_CHIPS = CUBE**3

CUBE_CABLES = 6 * CUBE * CUBE
"""Optical links of a cube: 16 on each of six faces (Zu et al., NSDI 2024: 6,144 of 64 cubes)."""

SWITCHES = 3 * CUBE * CUBE
"""Optical circuit switches that join cubes: one for each dimension and place on a face, 48
(arXiv:2304.01433)."""


def made_of_cubes(pod: Slice) -> bool:
    """Return whether slices are whole cubes, which optical switches join."""
    return bool(pod.slice_rules.max_cubes) and is_made_of_cubes(pod.topology)


def units_of(pod: Slice) -> Mapping[str, int]:
    """Return the units of a machine by the name that causes give them.

    Cables are the optical links of slices that are made of cubes, and the links between hosts of
    others.
    """
    slices, torus = pod.num_slices, pod.topology
    cubed = made_of_cubes(pod)
    hosts = ceil(torus.chips / pod.chip.host_chips)
    cubes = torus.chips // CUBE_CHIPS
    cables = CUBE_CABLES * cubes if cubed else _links(torus) - hosts * _within(pod)
    return {
        "machine": hosts * slices,
        "chip": pod.chips,
        "cable": max(0, cables) * slices,
        "switch": SWITCHES * slices if cubed else 0,
        "slice": slices,
        "job": 1,
    }


def unit_chips(pod: Slice) -> int:
    """Return the chips of what is replaced when one of them fails: a cube, or else a slice."""
    return CUBE_CHIPS if made_of_cubes(pod) else pod.topology.chips


def _within(pod: Slice) -> int:
    """Return the ICI links between the chips of a host: 4 of 2x2, 10 of 2x4."""
    short, long = host_sides(min(pod.chip.host_chips, pod.topology.chips))
    return 2 * short * long - short - long


def _links(torus: Topology) -> int:
    """Return the links of a torus, each pair of neighbours once."""
    return sum(
        torus.chips // length * (length if wraps else length - 1)
        for length, wraps in zip(torus.dims, torus.wrap, strict=True)
    )


def failures_per_second(cause: Cause, units: Mapping[str, int]) -> float:
    """Return how often a machine fails by a cause."""
    return cause.per_day * units[cause.unit] / DAY_S


def mean_time_to_failure(causes: Mapping[str, Cause], units: Mapping[str, int]) -> float | None:
    """Return the mean seconds between failures of a machine; None if it never fails."""
    rate = sum(failures_per_second(cause, units) for cause in causes.values())
    return 1 / rate if rate else None
