"""What the lowerings of collectives that may hold for a group have in common."""

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from tpusim.base.divisors import divisors
from tpusim.hardware import Slice
from tpusim.lowering.collective_lowering import LAYER_AT_ONCE, Lowering
from tpusim.lowering.collectives_by_generation import in_circular_pipeline, lowering_for
from tpusim.lowering.device_groups import DeviceGroup
from tpusim.network import Algorithm
from tpusim.plan import Compiler
from tpusim.program import Mode

Places: TypeAlias = tuple[tuple[int, bool], ...]
"""How a group may lie: the dimensions that it spans, and whether it covers its slice."""


@dataclass(frozen=True, slots=True)
class GroupHabits:
    """What lowerings that may hold for a group have in common.

    gathers_wait, reductions_wait: True if the core waits for a gather of weights, or a reduction of
        gradients, unless a matmul takes it in.
    outer_gathers_wait: the same of gathers beside a loop over layers.
    activations_wait: the same of collectives of activations.
    weight_rings, gradient_rings: True if a matmul may take in a gather of weights, or a reduction
        of gradients.
    gather_algorithms, reduce_algorithms: that may carry them out alone.
    gathers_in_turn, outer_in_turn: True if gathers of weights are asynchronous, alone, and each
        starts when the one before is done; the same beside a loop over layers.
    at_once: True if all gathers of weights of a body start with it, and gradients are reduced
        beside the core (`LAYER_AT_ONCE`).
    shares_links: True if gathers that start together move at the same time. Those that add up a
        padded buffer afterwards do not: the addition holds up the stream.
    across_wait, across_in_turn, outer_across_wait, across_reductions_wait: as those above, of
        collectives across slices alone.
    """

    gathers_wait: bool
    reductions_wait: bool
    outer_gathers_wait: bool
    activations_wait: bool
    weight_rings: bool
    gradient_rings: bool
    gather_algorithms: tuple[str, ...]
    reduce_algorithms: tuple[str, ...]
    gathers_in_turn: bool
    outer_in_turn: bool
    at_once: bool
    shares_links: bool
    across_wait: bool
    across_in_turn: bool
    outer_across_wait: bool
    across_reductions_wait: bool


@cache
def habits_of(
    pod: Slice, compiler: Compiler, tiled: bool, devices: int, circular: bool, places: Places
) -> GroupHabits:
    """Return what the lowerings that may hold for a group agree on, in any of the places.

    tiled: the group may be one of weights that are sharded over all axes.
    circular: the collective is in the loop of a circular pipeline.
    places: where it may lie.
    """
    found = _lowerings(pod, compiler, tiled, devices, places)
    if circular and compiler.lowering != "ideal":
        found += [in_circular_pipeline(low) for low in found]
    gathers = all(Mode.ASYNC not in (low.gather, low.twice) for low in found)
    reduced = {low.reduce_algorithm for low in found}
    reduced |= {low.major_algorithm for low in found if low.major_algorithm}
    rings = [low for low in found if low.reduce is Mode.RING]
    reduced |= {str(Algorithm.ALL_REDUCE)} if rings else set()
    joined = [
        low
        for slices in divisors(pod.num_slices)
        for low in _lowerings(pod, compiler, tiled, devices * slices, places)
    ]
    in_turn = all(map(_gathers_in_turn, found))
    alone = ((0, pod.topology.chips == 1),)
    across = _lowerings(pod, compiler, tiled, devices, alone)
    crosses = all(low.gather is not Mode.ASYNC for low in across)
    return GroupHabits(
        gathers_wait=gathers,
        reductions_wait=all(low.reduce is not Mode.ASYNC for low in found),
        outer_gathers_wait=gathers or not any(low.overlap.outside_layers for low in found),
        activations_wait=not any(low.offloaded for low in found),
        weight_rings=any(low.gather is Mode.RING for low in joined),
        gradient_rings=any(low.reduce is Mode.RING for low in joined),
        gather_algorithms=tuple(sorted({low.gather_algorithm for low in found})),
        reduce_algorithms=tuple(sorted(reduced)),
        gathers_in_turn=in_turn,
        outer_in_turn=in_turn and all(low.overlap.outside_layers for low in found),
        at_once=all(low.overlap == LAYER_AT_ONCE and low.offloaded for low in found),
        shares_links=all(not low.gather_algorithm for low in found),
        across_wait=crosses,
        across_in_turn=all(map(_gathers_in_turn, across)),
        outer_across_wait=crosses or not any(low.overlap.outside_layers for low in across),
        across_reductions_wait=all(low.reduce is not Mode.ASYNC for low in across),
    )


def _gathers_in_turn(low: Lowering) -> bool:
    alone = low.gather is Mode.ASYNC and not low.only_mlp
    return alone and low.overlap.prefetch_depth == 1


def _lowerings(
    pod: Slice, compiler: Compiler, tiled: bool, devices: int, places: Places
) -> list[Lowering]:
    """Return the distinct lowerings for groups of so many devices.

    places: of the group in a slice.
    """
    found = [
        lowering_for(
            pod.chip.generation,
            compiler,
            DeviceGroup(devices, dims, whole, bool, 0.0, 1, pod.num_slices, with_rings),
        )
        for dims, whole in sorted(places)
        for with_rings in {False, tiled}
    ]
    return list({low.name: low for low in found}.values())
