"""Lowerings of collectives by chip generation: observations of compiled programs.

One section a generation. Within a section, lines are tried from the top: plain JAX before MaxText,
and in each style from small groups to large ones and from a whole slice to a part of it. Every
lowering cites the program that shows it, and the generations and styles in which it was seen. A
section may borrow a lowering that was seen in others only; results then bear a note.

Programs: libtpu 0.0.42.1 with jax 0.10.2; MaxText of 2025 with libtpu 0.0.11.1. They show a
compiler's habits, not hardware, and a new compiler may change them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tpusim.hardware import Chip, Slice
from tpusim.lowering.collective_lowering import (
    IDEAL,
    LAYER_AT_ONCE,
    OBSERVED,
    Lowering,
    TableLine,
)
from tpusim.lowering.device_groups import DeviceGroup, Places
from tpusim.lowering.observed import lines as observed
from tpusim.plan import Compiler
from tpusim.program import Mode

RINGS = Lowering(
    name="rings",
    shown_by="plain language model, 16-way on v6e 4x4, v4 and v5p 2x2x4: weight gathers and "
    "gradient reductions are rings in the matmuls",
    seen_on=("v4 plain", "v5p plain", "v6e plain"),
    gather=Mode.RING,
    reduce=Mode.RING,
)

RINGS_AND_GATHERS = Lowering(
    name="rings, and gathers of what is used twice",
    shown_by="language models compiled with MaxText's flags (libtpu 0.0.42.1): 1.2B, 16-way on v5p "
    "2x2x4, and 8B on v6e 2x4 and 4x4; plain 7B model and layers of experts on one slice of v5e "
    "4x4: what is used twice in the backward pass is gathered beside matmuls",
    seen_on=("v5p maxtext", "v6e maxtext", "v5e plain"),
    gather=Mode.RING,
    reduce=Mode.RING,
    twice=Mode.ASYNC,
)

RINGS_AND_SPARSECORE_GATHERS = Lowering(
    name="rings, and SparseCore gathers of what is used twice",
    shown_by="plain 8B-like model on 7x 2x2x2, 16-way, and layers of experts there, fsdp 4 x "
    "expert 4: rings over 16 and over 4, and what is used twice in the backward pass is gathered "
    "on the SparseCore",
    seen_on=("7x plain",),
    gather=Mode.RING,
    reduce=Mode.RING,
    twice=Mode.ASYNC,
    overlap=LAYER_AT_ONCE,
    keys_algorithm="",
    offloaded=True,
)

SPARSECORE = Lowering(
    name="SparseCore",
    shown_by="7x 2x2x1: all-gather, reduce-scatter and all-reduce are calls on the SparseCore "
    "(call-start, call-done)",
    seen_on=("7x maxtext",),
    gather=Mode.ASYNC,
    reduce=Mode.ASYNC,
    overlap=LAYER_AT_ONCE,
    keys_algorithm="",
    offloaded=True,
)

ROUTER_GATHERS = Lowering(
    name="router gathers, synchronous all-reduces",
    shown_by="MaxText 32B and 16B on v5e 16x16: gathers beside matmuls, prefetch depth one, "
    "gradients by synchronous all-reduce; plain 32B and 7B models there: gathers by the network "
    "router, but where the sharded dimension is not the leading one",
    seen_on=("v5e maxtext",),
    gather=Mode.ASYNC,
    gather_algorithm="nd",
    reduce=Mode.SYNC,
    reduce_algorithm="all-reduce",
)

GATHERS_AND_ALL_REDUCES = Lowering(
    name="asynchronous gathers, synchronous all-reduces",
    shown_by="MaxText 7B on v6e 16x16, 32B on v5p 4x4x4: as on v5e; 175B with MaxText's flags on "
    "v6e 16x16: gathers as one ring (libtpu 0.0.42.1 and 0.0.11.1)",
    seen_on=("v5p maxtext", "v6e maxtext"),
    gather=Mode.ASYNC,
    reduce=Mode.SYNC,
    reduce_algorithm="all-reduce",
)

GATHERS_AND_SCATTERS = Lowering(
    name="asynchronous gathers, fused reduce-scatters",
    shown_by="the same MaxText programs for the gathers; a group on part of the torus gets the "
    "fused reduce-scatter; plain layers of 8 experts (embed 4096, mlp 14336) on v5e 4x4, fsdp 4 x "
    "expert 4: gathers over the 4 beside matmuls, also across the synchronous all-to-alls",
    seen_on=("v5p maxtext", "v6e maxtext", "v5e plain"),
    gather=Mode.ASYNC,
    reduce=Mode.SYNC,
)

SYNCHRONOUS = Lowering(
    name="synchronous gathers, fused reduce-scatters",
    shown_by="480-billion-parameter encoder, v4 8x16x16, 256 on a plane x 8; layers of experts, 4 "
    "on v6e 4x4 and 16 on v5p 4x4x4. The encoder gathers wq and wk twice in its backward pass, wv, "
    "wo and the MLP's once",
    seen_on=("v4 plain", "v5p plain", "v6e plain"),
    gather=Mode.SYNC,
    reduce=Mode.SYNC,
    regather_after=20,
)

SYNCHRONOUS_ALL_REDUCES = Lowering(
    name="synchronous gathers, all-reduces",
    shown_by="plain scanned language models on v6e 16x16 (8B, 175B), and plain models replicated "
    "over two slices of v4 2x2x4, v6e 4x4 and 8x8: gathers over a whole slice as one ring, "
    "gradients by all-reduce, of which each device takes its part",
    seen_on=("v4 plain", "v6e plain"),
    gather=Mode.SYNC,
    reduce=Mode.SYNC,
    reduce_algorithm="all-reduce",
)

_RINGS_OF_TILED_WEIGHTS: Mapping[str, Any] = {"tiled": True, "min_size": 4, "max_size": 32}
"""Groups over which weights move in rings, beside their matmuls. Of compiled plans for v4 to 7x
(libtpu 0.0.42.1), the layers' gradients are rings in 131 of the 138 with such groups, and in none
of the others: 17 over two devices, 70 over 64 and more, 104 whose weights are replicated."""

_MAXTEXT = (
    TableLine(GATHERS_AND_ALL_REDUCES, "maxtext", whole=True),
    TableLine(GATHERS_AND_SCATTERS, "maxtext"),
)

_PADDED_WITH_FLAGS = replace(observed.PADDED_GATHERS, style="maxtext", observed=False)
"""Gathers over a whole slice of v4 wait, with MaxText's flags too: 2 of 2 compiled plans (libtpu
0.0.42.1), and MaxText's runs of 22B on v4 4x4x4, which would be 8 % too fast with gathers beside
matmuls and are 2 % so. Two of two compiled plans for v5p are alike; yet eight of nine published
runs there, which have further flags, are nearer to the asynchronous gathers of `_MAXTEXT`."""

TABLE: Mapping[str, tuple[TableLine, ...]] = {
    "v4": (
        TableLine(RINGS, "plain", **_RINGS_OF_TILED_WEIGHTS),
        observed.PADDED_GATHERS,
        TableLine(SYNCHRONOUS_ALL_REDUCES, "plain", whole=True),
        TableLine(SYNCHRONOUS, "plain"),
        _PADDED_WITH_FLAGS,
        *_MAXTEXT,
    ),
    "v5e": (
        observed.UNROLLED_RINGS,
        TableLine(RINGS_AND_GATHERS, "plain", **_RINGS_OF_TILED_WEIGHTS),
        observed.PLAIN_ROUTER_GATHERS,
        TableLine(GATHERS_AND_SCATTERS, "plain"),
        TableLine(ROUTER_GATHERS, "maxtext", whole=True, min_size=32),
        *_MAXTEXT,
    ),
    "v5p": (
        TableLine(RINGS, "plain", **_RINGS_OF_TILED_WEIGHTS),
        observed.PADDED_GATHERS,
        TableLine(SYNCHRONOUS_ALL_REDUCES, "plain", whole=True),
        TableLine(SYNCHRONOUS, "plain"),
        TableLine(RINGS_AND_GATHERS, "maxtext", whole=True, max_size=16),
        *_MAXTEXT,
    ),
    "v6e": (
        TableLine(RINGS, "plain", **_RINGS_OF_TILED_WEIGHTS),
        TableLine(SYNCHRONOUS_ALL_REDUCES, "plain", whole=True),
        observed.LARGE_GROUPS_OF_EXPERTS,
        TableLine(SYNCHRONOUS, "plain"),
        TableLine(RINGS_AND_GATHERS, "maxtext", whole=True, max_size=16),
        *_MAXTEXT,
    ),
    "7x": (
        TableLine(RINGS_AND_SPARSECORE_GATHERS, "plain", **_RINGS_OF_TILED_WEIGHTS),
        observed.PADDED_SPARSECORE_GATHERS,
        TableLine(SPARSECORE),
    ),
}
"""The lowering of each generation; the last lines of a section hold for every group."""

UNSEEN = (TableLine(SYNCHRONOUS, "plain"), *_MAXTEXT)
"""Lines for generations without an inspected compiled program: v2, v3 and new chips."""


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
        found += [in_circular_pipeline(low) for low in found]
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


def in_circular_pipeline(low: Lowering) -> Lowering:
    """Return the lowering of the same collectives inside the loop of a circular pipeline.

    There are no collective matmuls: whole slices of v6e 2x2 as stages, which have them without a
    pipeline, gather and reduce synchronously. Reductions that scatter the last dimension (of wo and
    the MLP's second matrix) are fused; those of other weights are all-reduces, of which the
    addition to the accumulator takes its part. With MaxText's flags, gathers of the MLP's weights
    are asynchronous, each beside the matmuls before its own, and those of attention synchronous (4
    stages x fsdp 4 on v6e 4x4, with these flags and without; 2 stages x fsdp 4 on two slices of v6e
    2x2).
    """
    if low.reduce is Mode.ASYNC:
        return low
    gather = low.twice if low.gather is Mode.RING else low.gather
    return replace(
        low,
        gather=gather,
        reduce=Mode.SYNC,
        major_algorithm="all-reduce",
        only_mlp=True,
        overlap=replace(low.overlap, needs_carrier=gather is not Mode.ASYNC),
    )
