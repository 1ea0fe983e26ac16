"""The lowering's table against the programs that it cites.

Compiled programs: libtpu 0.0.42.1 with jax 0.10.2; `maxtext` ones: MaxText of 2025 with jax 0.5.3
and libtpu 0.0.11.1, and those of up to 16 ways with MaxText's flags and the first two.
"""

from dataclasses import replace

import pytest
from lowered import IDEAL, TABLE, Lowering, lowering_for, permutes_wait, possible_lowerings
from plans import MIB, tiles_weights

from tpusim.hardware import Slice, load_chip, placements
from tpusim.lowering import group_of
from tpusim.lowering.collective_choice import CollectiveChoice
from tpusim.lowering.device_groups import DeviceGroup, places_of
from tpusim.lowering.passes.fuse_collectives import fusion_pays, weight_ring_pays
from tpusim.models import Transformer
from tpusim.partition import Purpose
from tpusim.plan import Compiler, Plan
from tpusim.program import Collective, CollectiveKind, Mode, walk_ops
from tpusim.simulation import simulate

SYNC, ASYNC, RING = Mode.SYNC, Mode.ASYNC, Mode.RING
FUSED, WHOLE, PLAIN = "", "all-reduce", ""

PROGRAMS = [
    # chip, topology, mesh, style; how weights are gathered and gradients reduced over fsdp
    ("v4", "8x16x16", {"fsdp": 256, "tensor": 8}, "plain", (SYNC, PLAIN), (SYNC, FUSED)),
    ("v5e", "16x16", {"fsdp": 256}, "maxtext", (ASYNC, "nd"), (SYNC, WHOLE)),
    ("v6e", "16x16", {"fsdp": 256}, "maxtext", (ASYNC, PLAIN), (SYNC, WHOLE)),
    ("v5p", "4x4x4", {"fsdp": 64}, "maxtext", (ASYNC, PLAIN), (SYNC, WHOLE)),
    ("v5p", "8x8x16", {"fsdp": 64, "tensor": 16}, "maxtext", (ASYNC, PLAIN), (SYNC, FUSED)),
    ("v5e", "16x16", {"fsdp": 256}, "plain", (ASYNC, "nd"), (SYNC, WHOLE)),
    ("v6e", "4x4", {"fsdp": 16}, "plain", (RING, PLAIN), (RING, FUSED)),
    ("v4", "2x2x4", {"fsdp": 16}, "plain", (RING, PLAIN), (RING, FUSED)),
    ("v5p", "2x2x4", {"fsdp": 16}, "plain", (RING, PLAIN), (RING, FUSED)),
    ("v5p", "2x2x4", {"fsdp": 16}, "maxtext", (RING, PLAIN), (RING, FUSED)),
    ("v6e", "2x4", {"fsdp": 8}, "maxtext", (RING, PLAIN), (RING, FUSED)),
    ("v5e", "4x4", {"fsdp": 16}, "plain", (RING, PLAIN), (RING, FUSED)),
    ("v5e", "2x2", {"fsdp": 4}, "plain", (RING, PLAIN), (RING, FUSED)),
    ("v4", "4x4x4", {"fsdp": 64}, "plain", (SYNC, WHOLE), (SYNC, WHOLE)),
    ("v5p", "4x4x4", {"fsdp": 64}, "plain", (SYNC, WHOLE), (SYNC, WHOLE)),
    ("v5p", "8x8x8", {"fsdp": 512}, "plain", (SYNC, WHOLE), (SYNC, WHOLE)),
    ("v6e", "16x16", {"fsdp": 256}, "plain", (SYNC, PLAIN), (SYNC, WHOLE)),
    ("v4", "2x2x4", {"fsdp": 16, "dcn_data": 2}, "plain", (SYNC, PLAIN), (SYNC, WHOLE)),
    ("v6e", "4x4", {"fsdp": 16, "dcn_data": 2}, "plain", (SYNC, PLAIN), (SYNC, WHOLE)),
    ("v6e", "8x8", {"fsdp": 64, "dcn_data": 2}, "plain", (SYNC, PLAIN), (SYNC, WHOLE)),
    ("v5e", "4x4", {"fsdp": 16, "dcn_data": 2}, "plain", (ASYNC, "nd"), (SYNC, WHOLE)),
    ("v3", "8x8", {"fsdp": 16, "tensor": 8}, "plain", (SYNC, PLAIN), (SYNC, FUSED)),
    ("v2", "8x8", {"fsdp": 16, "tensor": 8}, "plain", (SYNC, PLAIN), (SYNC, FUSED)),
    ("7x", "4x8x8", {"fsdp": 512}, "plain", (ASYNC, WHOLE), (ASYNC, WHOLE)),
    ("7x", "2x2x1", {"fsdp": 8}, "maxtext", (ASYNC, "nd"), (ASYNC, FUSED)),
    ("7x", "2x2x2", {"fsdp": 16}, "plain", (RING, PLAIN), (RING, FUSED)),
    ("7x", "2x2x2", {"fsdp": 4, "expert": 4}, "plain", (RING, PLAIN), (RING, FUSED)),
]

OF_EXPERTS = [
    # the same of the weights of experts, which no matmul takes in
    ("v5e", "4x4", {"fsdp": 4, "expert": 4}, "plain", (ASYNC, PLAIN), (SYNC, FUSED)),
    ("v6e", "4x4", {"fsdp": 4, "expert": 4}, "plain", (SYNC, PLAIN), (SYNC, FUSED)),
    ("v6e", "4x4", {"fsdp": 4, "expert": 4}, "maxtext", (ASYNC, PLAIN), (SYNC, FUSED)),
    ("v6e", "16x16", {"fsdp": 32, "expert": 8}, "plain", (SYNC, PLAIN), (SYNC, WHOLE)),
    ("v5p", "4x4x4", {"fsdp": 16, "expert": 4}, "plain", (SYNC, PLAIN), (SYNC, FUSED)),
]

ALL = [(row, False) for row in PROGRAMS] + [(row, True) for row in OF_EXPERTS]


def selected(
    chip: str, topology: str, mesh: dict[str, int], style: str, of_experts: bool = False
) -> Lowering:
    pod = Slice(chip, topology, mesh.get("dcn_data", 1))
    tiled = tiles_weights(Plan(mesh=mesh, seq_len=512, global_batch=4096, style=style))
    group = group_of(("fsdp",), pod, placements(pod, mesh)[0], tiled and not of_experts)
    return lowering_for(pod.chip.generation, Compiler(style=style), group)


@pytest.mark.parametrize(
    ("chip", "topology", "mesh", "style", "gather", "reduce", "of_experts"),
    [(*row, of_experts) for row, of_experts in ALL],
)
def test_a_program_gets_the_lowering_that_was_seen_in_it(
    chip: str, topology: str, mesh: dict[str, int], style: str,
    gather: tuple[Mode, str], reduce: tuple[Mode, str], of_experts: bool,
) -> None:  # fmt: skip
    low = selected(chip, topology, mesh, style, of_experts)
    assert (low.gather, low.gather_algorithm) == gather
    assert (low.reduce, low.reduce_algorithm) == reduce


@pytest.mark.parametrize(("chip", "topology"), [("v4", "4x4x8"), ("7x", "4x4x4"), ("v5e", "8x16")])
@pytest.mark.parametrize("style", ["plain", "maxtext"])
def test_every_placement_has_one_of_the_lowerings_that_are_possible(
    chip: str, topology: str, style: str
) -> None:
    """And where a group has one place in a slice, no other lowering is possible."""
    pod = Slice(chip, topology)
    compiler = Compiler(style=style)
    for size in (2**at for at in range(1, 9) if pod.devices % 2**at == 0):
        mesh = {"fsdp": size, "data": pod.devices // size}
        for tiled in (False, True):
            places = places_of(pod, size)
            possible = possible_lowerings(pod, compiler, size, places, (tiled,))
            for placement in placements(pod, mesh):
                group = group_of(("fsdp",), pod, placement, tiled)
                assert lowering_for(chip, compiler, group) in possible
            assert len(possible) == 1 or len(places) > 1


REDUCE = CollectiveChoice(
    CollectiveKind.REDUCE_SCATTER, Purpose.GRADIENT, across=False, beside_loop=False, looped=True,
    in_ring=False, grouped=False, made=True, leading=False, of_mlp=False, sums_keys=False,
    in_order=False, asked=False, for_backward=False,
)  # fmt: skip


WIDE = Transformer(
    layers=2, embed=8192, mlp=32768, heads=64, vocab=32000, gated=False, activation="gelu"
)


@pytest.mark.parametrize(
    ("chip", "topology", "side", "along", "rings"),
    [
        ("v2", "8x8", 8, "y", False), ("v3", "8x8", 8, "y", False), ("v3", "16x16", 16, "y", False),
        ("v4", "4x4x8", 8, "z", True),
    ],
)  # fmt: skip
def test_v2_and_v3_have_no_collective_matmuls_of_activations(
    chip: str, topology: str, side: int, along: str, rings: bool
) -> None:
    """Of activations over a whole dimension of the torus, a program of each (libtpu 0.0.42.1)."""
    pod = Slice(chip, topology)
    others = pod.devices // side
    plan = Plan(
        mesh={"fsdp": others, "tensor": side}, seq_len=1024, global_batch=2 * others,
        rules={"act_embed": "tensor"},
    )  # fmt: skip
    placement = next(p for p in placements(pod, plan.mesh) if f"tensor={side} on {along}" in str(p))
    body = simulate(WIDE, plan, pod, placement=placement).programs[0].body
    kinds = {op.kind for op, _ in walk_ops(body) if isinstance(op, Collective)}
    assert (CollectiveKind.PERMUTE in kinds) == rings


def test_a_choice_says_how_a_collective_runs_in_any_lowering() -> None:
    """Gradients whose matmul is a ring over other axes are all-reduced, across slices beside."""
    (rings, gathers) = (
        lowering_for("v4", Compiler(), DeviceGroup(size, 1, False, bool, 0.0, tiled=tiled))
        for size, tiled in ((16, True), (16, False))
    )
    assert (rings.reduce, gathers.reduce) == (RING, SYNC)
    assert {REDUCE.way(low) for low in (rings, gathers)} == {(SYNC, FUSED)}
    assert REDUCE._replace(in_ring=True).way(gathers) == (SYNC, WHOLE)
    assert REDUCE._replace(grouped=True).way(rings) == (SYNC, WHOLE)
    assert REDUCE._replace(across=True).way(gathers) == (ASYNC, PLAIN)
    assert REDUCE._replace(across=True, looped=False).waits(gathers)
    gather = REDUCE._replace(kind=CollectiveKind.ALL_GATHER, purpose=Purpose.WEIGHT)
    assert gather.way(IDEAL) == (ASYNC, "nd")
    assert not gather._replace(beside_loop=True).waits(IDEAL)


def test_each_line_of_the_table_is_one_that_a_program_shows() -> None:
    shown = [selected(*program[:4], of_experts).shown_by for program, of_experts in ALL]
    assert set(shown) == {line.lowering.shown_by for lines in TABLE.values() for line in lines}
    assert all(shown)


def test_a_line_names_every_generation_and_style_of_its_programs() -> None:
    """So a result notes no line that a program shows, and each one that is borrowed."""
    seen: dict[str, set[str]] = {}
    for (chip, topology, mesh, style, *_), of_experts in ALL:
        low = selected(chip, topology, mesh, style, of_experts)
        seen.setdefault(low.name, set()).add(f"{Slice(chip, topology).chip.generation} {style}")
    lowerings = {line.lowering.name: line.lowering for lines in TABLE.values() for line in lines}
    assert {name: set(low.seen_on) for name, low in lowerings.items()} == seen


@pytest.mark.parametrize(
    ("mesh", "rules", "tiled"),
    [
        ({"fsdp": 16}, {}, True),
        ({"fsdp": 4, "tensor": 4}, {}, True),
        ({"fsdp": 4, "expert": 4}, {}, True),
        ({"fsdp": 4, "context": 4}, {}, True),
        ({"fsdp": 4, "context": 4}, {"embed": "fsdp"}, False),
        ({"fsdp": 4, "data": 4}, {}, False),
        ({"fsdp": 16, "dcn_fsdp": 2}, {}, True),
        ({"fsdp": 16, "dcn_data": 2}, {}, False),
        ({"fsdp": 4, "stage": 4}, {}, True),
    ],
)
def test_weights_are_tiled_where_every_axis_but_the_stages_shards_them(
    mesh: dict[str, int], rules: dict[str, str], tiled: bool
) -> None:
    """The default rules of latent dimensions, which few models have, do not count."""
    assert tiles_weights(Plan(mesh=mesh, seq_len=512, global_batch=64, rules=rules)) == tiled


@pytest.mark.parametrize(("size", "rings"), [(2, False), (4, True), (32, True), (64, False)])
@pytest.mark.parametrize("generation", ["v4", "v5p", "v6e"])
def test_tiled_weights_move_in_rings_of_4_to_32(generation: str, size: int, rings: bool) -> None:
    """Over a part of a slice, too, and not where weights are not tiled."""
    group = DeviceGroup(size, 2, False, lambda: True, 1e11, tiled=True)
    assert (lowering_for(generation, Compiler(), group).gather is RING) == rings
    other = replace(group, tiled=False)
    assert lowering_for(generation, Compiler(), other).gather is SYNC


def test_ideal_waits_for_nothing() -> None:
    group = group_of(("fsdp",), pod := Slice("v4", "4x4x4"), placements(pod, {"fsdp": 64})[0])
    low = lowering_for("v4", Compiler(lowering="ideal"), group)
    assert low is IDEAL
    assert (low.gather, low.reduce, low.overlap.needs_carrier) == (ASYNC, ASYNC, False)


D, TOKENS = 8192, 64 * 512 // 2

EINSUMS = [
    # chip, devices of the axis, one whole dimension, F, MiB of activations, a ring
    ("v4", 8, True, 32768, 256, True),
    ("v4", 8, True, 32768, 16, True),
    ("v4", 8, True, 8192, 256, True),
    ("v4", 8, True, 2048, 256, False),
    ("v4", 8, True, 512, 256, False),
    ("v4", 16, True, 32768, 256, True),
    ("v5e", 16, True, 32768, 256, True),
    ("v6e", 16, True, 32768, 256, True),
    ("v5p", 8, True, 32768, 256, True),
    ("7x", 8, True, 32768, 256, True),
    ("v5e", 4, True, 32768, 256, True),
    ("v6e", 4, True, 32768, 256, True),
    ("v6e", 4, True, 8192, 256, False),
    ("v6e", 4, True, 2048, 256, False),
    ("v6e", 4, True, 512, 256, False),
    ("v4", 4, False, 32768, 256, False),
    ("v4", 2, True, 32768, 256, False),
]


@pytest.mark.parametrize(("name", "size", "ring", "width", "mib", "wanted"), EINSUMS)
def test_an_einsum_becomes_a_ring_where_the_compiler_made_one(
    name: str, size: int, ring: bool, width: int, mib: int, wanted: bool
) -> None:
    """One einsum of [tokens, 8192] by [8192, F / n], or its reverse, 16 to 256 MiB gathered."""
    chip = load_chip(name)
    group = DeviceGroup(size, 1 if ring else 2, False, lambda: ring, 2 * chip.ici_bandwidth)
    tokens = mib * MIB // (2 * D)
    assert mib < 256 or tokens == TOKENS
    flops = 2 * tokens * D * width / size
    weight = 2 * D * width / size
    peak = chip.device.flops["bf16"]
    assert fusion_pays(group, mib * MIB, flops / peak, weight) == wanted


def test_wide_mlp_weights_and_flat_axes_make_no_ring() -> None:
    chip = load_chip("v4")
    group = DeviceGroup(8, 1, False, lambda: True, 2 * chip.ici_bandwidth)
    enough = (256 * MIB, 1e15 / chip.device.flops["bf16"])
    assert fusion_pays(group, *enough, 128 * MIB)
    assert not fusion_pays(group, *enough, 512 * MIB)
    assert not fusion_pays(replace(group, closes=lambda: False), *enough, 128 * MIB)
    assert not fusion_pays(replace(group, size=2), *enough, 128 * MIB)


@pytest.mark.parametrize(
    ("chip", "topology", "mesh", "axis", "expected"),
    [
        ("v4", "8x16x16", {"fsdp": 256, "tensor": 8}, "tensor", (8, 1, False, True)),
        ("v4", "8x16x16", {"fsdp": 256, "tensor": 8}, "fsdp", (256, 2, False, True)),
        ("v5e", "16x16", {"fsdp": 256}, "fsdp", (256, 2, True, True)),
        ("v5e", "4x4", {"data": 4, "tensor": 4}, "tensor", (4, 1, False, True)),
        ("v5p", "4x4x4", {"fsdp": 64}, "fsdp", (64, 3, True, True)),
        ("7x", "2x2x1", {"fsdp": 8}, "fsdp", (8, 2, True, False)),
        ("v5p", "8x8x8", {"fsdp": 32, "tensor": 16}, "tensor", (16, 2, False, True)),
        ("v5e", "4x4", {"data": 2, "tensor": 8}, "tensor", (8, 2, False, True)),
        ("v5e", "4x4", {"data": 8, "tensor": 2}, "tensor", (2, 1, False, False)),
    ],
)
def test_a_group_is_described_by_where_it_lies(
    chip: str, topology: str, mesh: dict[str, int], axis: str,
    expected: tuple[int, int, bool, bool],
) -> None:  # fmt: skip
    pod = Slice(chip, topology)
    plan = Plan(mesh=mesh, seq_len=512, global_batch=4096, rules={"act_embed": "tensor"}
                if "tensor" in mesh else {})  # fmt: skip
    model = Transformer(layers=2, embed=1024, mlp=4096, heads=16, vocab=1024)
    placed = simulate(model, plan, pod, among=placements(pod, mesh)).placement
    group = group_of((axis,), pod, placed)
    assert (group.size, group.dimensions, group.whole, group.ring) == expected


@pytest.mark.parametrize(("devices", "planes", "compute_s", "wanted"), [
    (4, 1, 0.51, True), (4, 1, 0.5, False), (8, 1, 0.26, True), (8, 1, 0.25, False),
    (2, 1, 9.0, False), (4, 2, 9.0, False), (8, 3, 9.0, True),
])  # fmt: skip
def test_a_weight_moves_in_a_ring_where_its_matmul_hides_more_than_two_chunks(
    devices: int, planes: int, compute_s: float, wanted: bool
) -> None:
    """A ring of 1 s; a gather over whole planes of a torus of three dimensions takes a part."""
    group = DeviceGroup(devices, planes, False, lambda: True, 1e11, gathers_by=planes, tiled=True)
    assert weight_ring_pays(group, 1e11, compute_s) == wanted


@pytest.mark.parametrize(("chip", "style", "chips", "wanted"), [
    ("v5e", "plain", 16, False), ("v5e", "plain", 32, True), ("v5e", "maxtext", 256, False),
    ("v2", "plain", 16, True), ("v6e", "plain", 256, False),
])  # fmt: skip
def test_the_core_waits_for_permutes_on_large_slices_of_v5e(
    chip: str, style: str, chips: int, wanted: bool
) -> None:
    assert permutes_wait(load_chip(chip), Compiler(style=style), chips) == wanted


@pytest.mark.parametrize(
    ("chip", "topology", "mesh", "gather", "reduce"),
    [
        # 8B-like layers on v6e 4x4 with the flag (libtpu 0.0.42.1): 16 gathers, 7 all-reduces
        ("v6e", "4x4", {"fsdp": 16}, SYNC, (SYNC, WHOLE)),
        ("v5p", "8x8x8", {"fsdp": 512}, SYNC, (SYNC, WHOLE)),
    ],
)
def test_without_collective_matmuls_no_group_has_rings(
    chip: str, topology: str, mesh: dict[str, int], gather: Mode, reduce: tuple[Mode, str]
) -> None:
    pod = Slice(chip, topology)
    plan = Plan(mesh=mesh, seq_len=4096, global_batch=512, collective_matmul=False)
    group = group_of(("fsdp",), pod, placements(pod, mesh)[0], tiles_weights(plan))
    found = lowering_for(chip, plan.compiler, group)
    assert (found.gather, found.reduce, found.reduce_algorithm) == (gather, *reduce)


def test_a_plan_without_collective_matmuls_permutes_nothing() -> None:
    model = Transformer(layers=2, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=32000)
    plan = Plan(mesh={"fsdp": 4, "tensor": 4}, seq_len=4096, global_batch=64)
    permutes = [
        "collective-permute" in str(simulate(model, one, Slice("v6e", "4x4")).program)
        for one in (plan, plan.replace(collective_matmul=False))
    ]
    assert permutes == [True, False]


def test_matmuls_carry_gathers_for_the_backward_pass_in_plain_programs_on_v5e() -> None:
    gather = REDUCE._replace(kind=CollectiveKind.ALL_GATHER, purpose=Purpose.ACTIVATION)
    group = DeviceGroup(16, 1, False, bool, 0.0)
    for chip, style, carries in (
        ("v5e", "plain", True),
        ("v5e", "maxtext", False),
        ("v6e", "plain", False),
    ):
        low = lowering_for(chip, Compiler(style=style), group)
        assert low.carries is carries
        assert gather.waits(low)
        assert gather._replace(for_backward=True).waits(low) is not carries
