"""Structure and sizes are apart: one structure serves every mesh of its kind, many at a time."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from extent import thorough
from lowered import buffer_bytes, flops_of, padding_bytes, work_of
from plans import calcs, comms, graph_of, partitioned_of, payload, plan_of, sizes_of, small

from tpusim.frames import updates_of
from tpusim.frames.optimizer import moment_elements
from tpusim.models import Transformer
from tpusim.partition import LocalShape, PartitionedGraph, Sizes
from tpusim.plan import Plan
from tpusim.program import Flops, Work

AXES = ("data", "fsdp", "tensor")
MESHES = np.random.default_rng(0).choice([2, 3, 4, 6, 8, 12, 16, 64], size=(1000, 3))

RAGGED = small(layers=5, embed=768, mlp=1000, heads=64, kv_heads=64, head_dim=96, vocab=30522)
DOT = RAGGED.replace(attention="dot", gated=False, parallel=True, tied_embeddings=True)
LATENT = RAGGED.replace(q_rank=500, kv_rank=100, rope_dim=32, v_head_dim=80)
BATCH = 64 * 64 * 9


def big_plan(mesh: dict[str, int], **changes: object) -> Plan:
    return plan_of(mesh, seq_len=512, global_batch=BATCH, **changes)


PLANS = {
    "one-dimensional": (RAGGED, {}),
    "two-dimensional": (RAGGED, {"rules": {"act_embed": "tensor"}}),
    "latent": (LATENT, {}),
    "sequence": (DOT, {"rules": {"act_seq": "tensor"}, "remat": "minimal"}),
    "dot": (DOT, {"remat": "none", "optimizer": "adafactor"}),
}


def numbers(value: Work | Flops) -> dict[str, object]:
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {k: v for k, v in found.items() if not isinstance(v, str | bool)}


def answers(partitioned: PartitionedGraph, plan: Plan, sizes: Sizes) -> dict[str, object]:
    """Everything that a structure knows, for one mesh or for many."""
    found: dict[str, object] = {}
    for calc, _ in calcs(partitioned):
        for kind, value in (
            ("work", work_of(calc, sizes, partitioned.buffers)),
            ("flops", flops_of(calc, sizes)),
        ):
            found |= {f"{calc.name} {kind} {k}": v for k, v in numbers(value).items()}
        split = dict(calc.split)
        found |= {f"{calc.name} {dim}": sizes.extent(dim, axes) for dim, axes in split.items()}
    for comm, _ in comms(partitioned):
        found[f"{comm.name} payload"] = payload(comm, sizes)
    for key, buffer in partitioned.buffers.items():
        found[f"{key} bytes"] = buffer_bytes(buffer, sizes)
        found[f"{key} padding"] = padding_bytes(buffer, sizes)
    for alloc in updates_of(plan, sizes).resident(partitioned.weights):
        found[f"{alloc.tensor} resident"] = alloc.bytes
    for weight in partitioned.weights:
        found[f"{weight.name} moments"] = moment_elements(plan.optimizer.name, weight, sizes)
    return found


def at_once(model: Transformer, plan: Plan, partitioned: PartitionedGraph) -> dict[str, object]:
    columns = {axis: MESHES[:, i].astype(np.float64) for i, axis in enumerate(AXES)}
    sizes = Sizes(graph_of(model, plan).sizes, columns, plan.dtypes.compute)
    return answers(partitioned, plan, sizes)


STRIDES = {"one-dimensional": 1, "two-dimensional": 7, "latent": 37, "sequence": 7, "dot": 7}
"""One plan is compared on all thousand meshes, the others on a sample."""
COARSE = 97
"""The stride by default."""


@pytest.mark.parametrize(
    ("name", "stride"),
    [*((name, COARSE) for name in PLANS), *(thorough(*each) for each in STRIDES.items())],
)
def test_a_thousand_meshes_at_once_are_a_thousand_one_by_one(name: str, stride: int) -> None:
    model, changes = PLANS[name]
    plan = big_plan({"data": 2, "fsdp": 2, "tensor": 2}, **changes)
    partitioned = partitioned_of(model, plan)
    graph_sizes = graph_of(model, plan).sizes
    columns = at_once(model, plan, partitioned)
    assert {v.dtype for v in columns.values() if isinstance(v, np.ndarray)} == {np.dtype(float)}
    many = {
        k: [v] * 1000 if isinstance(v, tuple) else np.broadcast_to(v, 1000)
        for k, v in columns.items()
    }
    for row in range(0, 1000, stride):
        axes = {axis: int(n) for axis, n in zip(AXES, MESHES[row], strict=True)}
        one = answers(partitioned, plan, Sizes(graph_sizes, axes, plan.dtypes.compute))
        assert one.keys() == many.keys()
        wrong = {k: (v, many[k][row]) for k, v in one.items() if not same(v, many[k][row])}
        assert wrong == {}


def same(one: object, many: Any) -> bool:
    """Equal as far as a float can hold an integer: beyond 2^53 the two differ in the last bit."""
    if isinstance(one, tuple):
        return one == many
    return abs(float(one) - many) <= 1e-12 * abs(many)


def test_counts_of_one_mesh_are_exact_integers() -> None:
    plan = big_plan({"data": 2, "fsdp": 4, "tensor": 8})
    partitioned, sizes = partitioned_of(RAGGED, plan), sizes_of(RAGGED, plan)
    for calc, _ in calcs(partitioned):
        counted = flops_of(calc, sizes)
        assert all(isinstance(value, int) for value in numbers(counted).values()), calc.name


SAME: list[tuple[dict[str, int], dict[str, int], bool]] = [
    ({"fsdp": 2, "tensor": 4}, {"fsdp": 64, "tensor": 8}, True),
    ({"fsdp": 2, "tensor": 4}, {"data": 1, "fsdp": 4, "tensor": 2}, True),
    ({"fsdp": 2, "tensor": 4}, {"fsdp": 8, "tensor": 1}, False),
    ({"data": 4, "tensor": 2}, {"fsdp": 4, "tensor": 2}, False),
]


@pytest.mark.parametrize(("one", "other", "alike"), SAME)
def test_meshes_of_one_structure_share_it(
    one: dict[str, int], other: dict[str, int], alike: bool
) -> None:
    first, second = (partitioned_of(RAGGED, big_plan(mesh)) for mesh in (one, other))
    assert (first.nodes is second.nodes) == alike
    assert (first.buffers is second.buffers) == alike


def test_an_axis_that_outgrows_a_dimension_is_another_structure() -> None:
    """8 heads: sharded over 4 and over 8, replicated over 16."""
    nodes = [partitioned_of(small(), big_plan({"fsdp": 2, "tensor": n})).nodes for n in (4, 8, 16)]
    assert nodes[0] is nodes[1]
    assert nodes[1] is not nodes[2]


def test_the_last_shard_is_padded() -> None:
    sizes = sizes_of(RAGGED, big_plan({"tensor": 8, "fsdp": 2}))
    assert sizes.extent("vocab", ("tensor",)) == 3816
    assert sizes.padded(("vocab",), {"vocab": ("tensor",)}) == 30528
    assert sizes.padded(("vocab",), {}) == 30522


@pytest.mark.parametrize("axis", AXES)
def test_a_larger_axis_never_leaves_more_on_a_device(axis: str) -> None:
    plan = big_plan({"data": 2, "fsdp": 2, "tensor": 2})
    partitioned, dims = partitioned_of(RAGGED, plan), graph_of(RAGGED, plan).sizes
    columns = {a: np.full(64, 2.0) for a in AXES} | {axis: np.arange(2.0, 66.0)}
    sizes = Sizes(dims, columns)
    for key, buffer in partitioned.buffers.items():
        sized = np.broadcast_to(buffer_bytes(buffer, sizes), 64)
        assert (np.diff(sized) <= 0).all(), key


def test_slots_of_the_busiest_device_for_one_mesh_and_for_many() -> None:
    dims = {"expert": 8, "batch": 16, "slot": 4}
    loads = (4.0, 1.0, 1.0, 1.0, 0.25, 0.25, 0.25, 0.25)
    busiest = {1: 1.0, 2: 1.75, 4: 2.5, 8: 4.0}
    local = LocalShape(("expert", "batch", "slot"), (("expert",), (), ()))
    own = LocalShape(("expert", "batch", "slot"), ((), ("expert",), ()))
    columns = {"expert": np.array([1.0, 2.0, 4.0, 8.0])}
    many = Sizes(dims, columns, loads=loads)
    for place, (devices, most) in enumerate(busiest.items()):
        one = Sizes(dims, {"expert": devices}, loads=loads)
        assert one.elements(local) == 8 * 16 * 4 / devices * most
        assert one.elements(own) == 8 * 16 * 4 / devices
        assert np.asarray(many.elements(local))[place] == one.elements(local)
