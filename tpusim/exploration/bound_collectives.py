"""Least seconds of collectives, on arrays of plans: whatever placement and algorithm are chosen.

A device of a group receives the parts of the others over the ICI links that lead to members. How
many of them a member has depends on how the group lies on the torus; here it lies as well as it can
(`most_links`). What the lowering makes of a collective (synchronous, beside the core, a ring in a
matmul) is what all lines of its table that may hold agree on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.costs.links import ici_rate
from tpusim.hardware import Slice, Topology
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.collectives_by_generation import lowering_for
from tpusim.lowering.device_groups import DeviceGroup
from tpusim.plan import Compiler
from tpusim.program import CollectiveKind, Mode, Number

Groups: TypeAlias = NDArray[np.int64]

RING_LINKS = 2
"""Links of a device in one bidirectional ring."""

PASSES: Mapping[CollectiveKind, float] = {
    CollectiveKind.ALL_GATHER: 1.0,
    CollectiveKind.REDUCE_SCATTER: 1.0,
    CollectiveKind.ALL_REDUCE: 2.0,
}
"""How often each byte of the tensor passes into a device, the device's own part left out.

An all-reduce is a reduce-scatter and an all-gather at least (Chan et al., "Collective
communication: theory, practice, and experience", table 1). Exchanges and permutes are left out:
their least time depends on the placement.
"""


@dataclass(frozen=True, slots=True)
class GroupHabits:
    """What lowerings that may hold for a group have in common.

    gathers_wait, reductions_wait: True if the core waits for a gather of weights, or a reduction of
        gradients, unless a matmul takes it in.
    outer_gathers_wait: the same of gathers beside a loop over layers.
    activations_wait: the same of collectives of activations.
    all_reduces: True if reductions of gradients are all-reduces unless a matmul takes them in.
    """

    gathers_wait: bool
    reductions_wait: bool
    outer_gathers_wait: bool
    activations_wait: bool
    all_reduces: bool


@cache
def most_links(topology: Topology, members: int) -> int:
    """Return the ICI links that each member of a group of so many chips has, at most.

    A whole dimension that wraps is a ring, of two links a chip. In a part of a dimension the last
    chip has one, and a strided part shares its links with its neighbours, so each counts as one.
    On a twisted torus, whose rings take turns between dimensions, every dimension counts two.
    """
    if members == 1:
        return 2 * len(topology.dims)
    if topology.twisted:
        return 2 * min(len(topology.dims), _prime_factors(members))
    return max(
        (
            sum(
                (2 if size == length and wraps else 1) if size > 1 else 0
                for size, length, wraps in zip(sizes, topology.dims, topology.wrap, strict=True)
            )
            for sizes in product(*(_parts(length) for length in topology.dims))
            if prod(sizes) == members
        ),
        default=2 * len(topology.dims),
    )


def _parts(length: int) -> list[int]:
    return [size for size in range(1, length + 1) if length % size == 0]


def _prime_factors(number: int) -> int:
    count, factor = 0, 2
    while number > 1:
        while number % factor == 0:
            number //= factor
            count += 1
        factor += 1
    return count


@cache
def seconds_per_byte(pod: Slice, devices: int, kind: CollectiveKind, links: int = 0) -> float:
    """Return the least seconds for each byte of the tensor on one device, latencies left out.

    devices: of the group.
    links: that are used at most; 0 for as many as there can be.

    Where a chip is two devices, a group with both takes each byte to the chip once, half by each;
    a group with one of them shares the chip's links with the group of the other.
    """
    if devices <= 1 or kind not in PASSES:
        return 0.0
    per_chip = pod.chip.devices
    rate = ici_rate(pod.chip) * max(pod.chip.ici_shares, default=1.0)
    ways = []
    for beside in {1, per_chip}:
        chips, left = divmod(devices, beside)
        if left:
            continue
        used = most_links(pod.topology, chips)
        used = min(used, links) if links else used
        ways.append((1 - 1 / chips) / beside / (used * rate))
    return PASSES[kind] * min(ways)


def each_group(
    function: Callable[[Slice, int], float], groups: Groups, pods: Groups, many: Sequence[Slice]
) -> Number:
    """Return `function(slice, devices)` for each plan; worked out once for each distinct pair.

    groups: devices of each plan's group.
    pods: index of each plan's slice among `many`.
    """
    pairs, inverse = np.unique(groups * len(many) + pods, return_inverse=True)
    values = [function(many[int(pair) % len(many)], int(pair) // len(many)) for pair in pairs]
    found: Number = np.array(values)[inverse.reshape(-1)]
    return found


@cache
def habits_of(pod: Slice, compiler: Compiler, tiled: bool, devices: int) -> GroupHabits:
    """Return what the lowerings that may hold for a group agree on, wherever it lies."""
    found = _lowerings(pod, compiler, tiled, devices)
    gathers = all(Mode.ASYNC not in (low.gather, low.twice) for low in found)
    return GroupHabits(
        gathers_wait=gathers,
        reductions_wait=all(low.reduce is not Mode.ASYNC for low in found),
        outer_gathers_wait=gathers or not any(low.overlap.outside_layers for low in found),
        activations_wait=not any(low.offloaded for low in found),
        all_reduces=all(
            low.reduce_algorithm == "all-reduce" and low.major_algorithm in ("", "all-reduce")
            for low in found
        ),
    )


def _lowerings(pod: Slice, compiler: Compiler, tiled: bool, devices: int) -> list[Lowering]:
    """Return the lowerings for groups over any number of torus dimensions."""
    whole = devices == pod.devices // pod.num_slices
    return [
        lowering_for(
            pod.chip.generation,
            compiler,
            DeviceGroup(size, dims, whole, False, 0.0, 1, pod.num_slices, with_rings),
        )
        for dims in range(4)
        for size in {devices, -(-devices // pod.chip.devices)}
        for with_rings in {False, tiled}
    ]
