"""Lowerings of collectives by chip generation, as `collectives_by_generation.toml` has them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from tpusim.base.shipped_table import shipped_table
from tpusim.hardware import Chip, Slice
from tpusim.lowering.collective_lowering import (
    IDEAL,
    LAYER_AT_ONCE,
    OBSERVED,
    Lowering,
    TableLine,
)
from tpusim.lowering.device_groups import DeviceGroup, Places
from tpusim.plan import Compiler
from tpusim.program import Mode


def _read_table() -> dict[str, tuple[TableLine, ...]]:
    table = shipped_table("lowering", "collectives_by_generation.toml")
    lowerings = {row["name"]: _lowering(row) for row in table["lowerings"]}
    return {
        generation: tuple(_line(line, lowerings) for line in lines)
        for generation, lines in table["sections"].items()
    }


def _line(row: Mapping[str, Any], lowerings: Mapping[str, Lowering]) -> TableLine:
    carries = row.get("carries", False)
    keys = {key: value for key, value in row.items() if key != "carries"}
    return TableLine(**keys | {"lowering": replace(lowerings[row["lowering"]], carries=carries)})


def _lowering(row: Mapping[str, Any]) -> Lowering:
    """Return a lowering with its keys as the table has them."""
    modes = {key: Mode(row[key]) for key in ("gather", "reduce", "twice") if key in row}
    overlap = {"overlap": _OVERLAPS[row["overlap"]]} if "overlap" in row else {}
    return Lowering(**{**row, "seen_on": tuple(row["seen_on"]), **modes, **overlap})


_OVERLAPS = {"layer at once": LAYER_AT_ONCE}

_EVERY = _read_table()
UNSEEN = _EVERY.pop("unseen")
"""Lines for generations without an inspected compiled program."""

TABLE: Mapping[str, tuple[TableLine, ...]] = _EVERY
"""The lines of each generation."""


def line_for(generation: str, compiler: Compiler, group: DeviceGroup) -> TableLine:
    """Return the line of the table for the collectives over one group.

    generation: of the chip, such as `v5p`.
    compiler: the plan's choices; without observed passes, observed lines do not count either, and
        without collective matmuls those that have rings.
    group: the devices.
    """
    section = TABLE.get(generation, UNSEEN)
    observed_too = OBSERVED not in compiler.without_passes
    return next(
        line
        for line in section
        if line.holds(compiler.style, group)
        and (observed_too or not line.observed)
        and (compiler.collective_matmul or line.lowering.gather is not Mode.RING)
    )


def lowering_for(generation: str, compiler: Compiler, group: DeviceGroup) -> Lowering:
    """Return the lowering of the collectives over one group; for the arguments see `line_for`."""
    if compiler.lowering == "ideal":
        return IDEAL
    return line_for(generation, compiler, group).lowering


CircularPart: TypeAlias = Literal["", "loop", "outside"]
"""What a body is of a circular pipeline: an iteration of its loop, or outside of it; else empty."""


def possible_lowerings(
    pod: Slice,
    compiler: Compiler,
    devices: int,
    places: Places,
    tiled: tuple[bool, ...],
    circular: bool = False,
) -> tuple[Lowering, ...]:
    """Return the distinct lowerings of which a group has one whose place is not known.

    devices: of the group.
    places: in which it may lie.
    tiled: whether the group is one of weights that are sharded over all axes; both if unknown.
    circular: its collectives may be in the loop of a circular pipeline.
    """
    found = [
        lowering_for(
            pod.chip.generation,
            compiler,
            DeviceGroup(devices, dims, whole, bool, 0.0, 1, pod.num_slices, with_rings),
        )
        for dims, whole in places
        for with_rings in tiled
    ]
    if circular and compiler.lowering != "ideal":
        either = (False, compiler.style == "plain")
        found += [in_circular_pipeline(low, keeps) for low in found for keeps in either]
    return tuple(dict.fromkeys(found))


def permutes_wait(chip: Chip, compiler: Compiler, chips: int) -> bool:
    """Return True if the core waits for every permute, those of collective matmuls too.

    chip: of the slice; its file says how large slices with asynchronous permutes are.
    compiler: the plan's choices.
    chips: of a slice.

    Of compiled plans (libtpu 0.0.42.1), no permute is asynchronous in 13 on v5e 4x8 to 16x16 and in
    5 on v2 and v3, and none is synchronous in 29 on v5e 2x4 and 4x4 and in 152 on v4, v5p, v6e and
    7x. Three of the 13 have MaxText's flags; yet published runs of MaxText on v5e 16x16 with rings
    over `tensor`, of an older compiler, take two thirds of the time that such permutes would, so
    the style `maxtext` keeps asynchronous ones.
    """
    if compiler.lowering == "ideal" or compiler.style != "plain":
        return False
    largest = chip.compiler_rules.asynchronous_permutes
    return largest is not None and chips > largest


def in_circular_pipeline(low: Lowering, keeps_rings: bool) -> Lowering:
    """Return the lowering of the same collectives in a circular pipeline.

    keeps_rings: it is that of the loop of a plain plan, in which groups whose weights move in rings
        or beside matmuls do so too (36 programs of 2 to 8 stages of 4 to 64 devices on v3 to v6e).

    Elsewhere, gathers and reductions are synchronous. In either case, synchronous reductions that
    scatter the last dimension (of wo and the MLP's second matrix) are fused; those of other weights
    are all-reduces, of which the addition to the accumulator takes its part. With MaxText's flags,
    gathers of the MLP's weights are asynchronous, each beside the matmuls before its own, and those
    of attention synchronous (4 stages x fsdp 4 on v6e 4x4; 2 stages x fsdp 4 on two slices of v6e
    2x2; libtpu 0.0.42.1).
    """
    if keeps_rings and (low.carries or Mode.RING in (low.gather, low.reduce)):
        return replace(low, major_algorithm="all-reduce")
    if low.reduce is Mode.ASYNC:
        return low
    gather = low.twice if low.gather is Mode.RING else low.gather
    return replace(
        low,
        gather=gather,
        reduce=Mode.SYNC,
        major_algorithm="all-reduce",
        only_mlp=True,
        carries=False,
        overlap=replace(low.overlap, needs_carrier=gather is not Mode.ASYNC),
    )
