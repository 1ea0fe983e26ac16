"""Layers that are written one after the other: what waits for the last, and what each one holds."""

from math import prod
from typing import Any

import pytest
from extent import thorough
from plans import loop, plan_of, small

from tpusim.hardware import Slice
from tpusim.plan import Plan
from tpusim.program import Loop
from tpusim.results import PlanResult
from tpusim.simulation import simulate

V6E = Slice("v6e", "4x4")
RING = {"fsdp": 16}
LATE = "layers/d/gradients"
TOKENS = 2 * 1024
EMBED, HIDDEN, HEADS = TOKENS * 1024 * 2, TOKENS * 4096 * 2, TOKENS * 8 * 128 * 2
"""Bytes of two sequences: of the residual stream, of the MLP's hidden layer, and of the heads."""


def result(
    mesh: dict[str, int] = RING, pod: Slice = V6E, layers: int = 3, **keys: Any
) -> PlanResult:
    plan = plan_of(mesh, **({"scan_layers": False, "seq_len": 1024} | keys))
    return simulate(small(layers=layers, embed=1024, mlp=4096, head_dim=128), plan, pod)


def loops(made: PlanResult) -> set[str]:
    return {op.name for op in made.program.body if isinstance(op, Loop)}


def rings(made: PlanResult, name: str) -> list[str]:
    found = [op.name for op in loop(made.program.body, name).body if isinstance(op, Loop)]
    return [name.split("/")[2] for name in found if name.endswith("/dw/ring")]


def held(made: PlanResult) -> dict[str, tuple[int, int]]:
    """Tensors at the peak, each with how many of them there are and their bytes."""
    (memory,) = made.timeline.memory
    return {tensor.tensor: (tensor.count, tensor.bytes) for tensor in memory.held}


@pytest.mark.parametrize("chip", ["v4:2x2x4", "v5p:2x2x4", "v6e:4x4", "7x:2x2x2"])
def test_rings_for_gradients_run_after_the_last_layer(chip: str) -> None:
    generation, topology = chip.split(":")
    made = result(pod=Slice(generation, topology))
    assert rings(made, LATE) == ["wo_mlp", "wi_1", "wi_0", "wo", "wv", "wk", "wq"]
    assert not rings(made, "layers/d")
    assert loop(made.program.body, LATE).trips == loop(made.program.body, "layers/d").trips == 3


@pytest.mark.parametrize(
    "keys",
    [
        {"scan_layers": True},
        {"mesh": {"fsdp": 4, "tensor": 4}},
        {"pod": Slice("v5e", "4x4")},
        {"without_passes": ["rings-after-layers"]},
        {"lowering": "ideal"},
        {"collective_matmul": False},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_elsewhere_no_ring_waits(keys: dict[str, Any]) -> None:
    """In a scan, with rings that are no loops, beside gathers of the next layer, and on request."""
    assert LATE not in loops(result(**keys))


def test_operands_of_rings_are_held_for_each_layer() -> None:
    """Three of the hidden layer, four of the residual stream and four of the heads."""
    few, many = (result(layers=layers).memory_bytes["activations"] for layers in (4, 8))
    assert many - few == 4 * (3 * HIDDEN + 4 * EMBED + 4 * HEADS)


def test_what_a_layer_saves_is_freed_as_its_backward_pass_ends() -> None:
    """At the end of the backward pass that of the first layer alone is left."""
    assert held(result(layers=6))["layer/layer_in"] == (1, EMBED)
    assert held(result(layers=6, scan_layers=True))["layer/layer_in x6"] == (1, 6 * EMBED)


def test_gradients_that_are_all_reduced_stay_whole_for_the_optimizer() -> None:
    made = result(layers=6, collective_matmul=False)
    whole = 1024 * 4096 * 2
    count, nbytes = held(made)["bwd/d(layer/wo_mlp)"]
    assert nbytes == count * whole
    assert count >= 5
    scanned = held(result(layers=6, collective_matmul=False, scan_layers=True))
    assert scanned["bwd/d(layer/wo_mlp)@fsdp x6"] == (1, 6 * whole // 16)


@pytest.mark.parametrize("remat", ["full", "minimal", "dots", "none"])
@pytest.mark.parametrize("grad_dtype", ["bf16", "f32"])
@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", thorough("lamb"), thorough("muon")])
def test_all_that_layers_leave_is_freed(
    remat: str, grad_dtype: str, microbatches: int, optimizer: str
) -> None:
    made = result(
        remat=remat, grad_dtype=grad_dtype, microbatches=microbatches, optimizer=optimizer
    )
    (memory,) = made.timeline.memory
    assert sum(c.bytes * prod(each.repeats for each in c.repeats) for c in memory.changes) == 0


@pytest.mark.parametrize("keys", [{"data": 4, "fsdp": 4}, {"fsdp": 16}], ids=str)
def test_synchronous_gathers_of_all_layers_come_before_the_first(keys: dict[str, int]) -> None:
    made = result(keys, layers=6, collective_matmul=False)
    gathers = loop(made.program.body, "layers/gathers")
    assert len(gathers.body) == 7
    assert gathers.trips == 6
    names = [op.name for op in made.program.body]
    assert names.index("all-gather/head@fsdp") < names.index("layers")


@pytest.mark.parametrize(
    "keys",
    [
        {"scan_layers": True, "collective_matmul": False},
        {"remat": "none", "collective_matmul": False},
        {"collective_matmul": True},
        {"collective_matmul": False, "without_passes": ["gathers-before-layers"]},
        {"collective_matmul": False, "lowering": "ideal"},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_elsewhere_gathers_stay_with_their_layer(keys: dict[str, Any]) -> None:
    """In a scan, without a checkpoint, in rings, and on request."""
    assert "layers/gathers" not in loops(result(**keys))


def test_rings_beside_gathers_have_their_results_before_the_first_layer() -> None:
    """On v5e, not where the SparseCore gathers: the last projection's, and of each gradient two.

    A ring for a gradient adds up a part for each direction; the optimizer has the first.
    """
    for chip, layers in (("v5e:4x4", 3), ("7x:2x2x2", 0)):
        body = result(pod=Slice(*chip.split(":"))).program.body
        first = next(op for op in body if op.name.startswith("layers/d"))
        taken = [alloc.tensor for alloc in first.allocs if "bwd/d(layer/" in alloc.tensor]
        assert taken.count("bwd/d(layer/mlp_hidden)") == layers
        for weight in ("wq", "wk", "wv", "wo", "wi_0", "wi_1", "wo_mlp"):
            for which in ("", " (other way)"):
                assert taken.count(f"bwd/d(layer/{weight})@fsdp{which}") == layers
        assert len(taken) == 15 * layers


@pytest.mark.parametrize("chip", ["v6e", "v5p"])
def test_cast_weights_are_freed_with_the_backward_pass_of_their_layer(chip: str) -> None:
    """Shards that are read once are on the chip until then, where programs keep buffers there."""
    pod = Slice(chip, "4x4" if chip == "v6e" else "2x2x4")
    made = result({"data": 16}, pod, layers=6)
    layer = 2 * (4 * 1024 * 8 * 128 + 3 * 1024 * 4096)
    freed = [name for name in loop(made.program.body, "layers/d").body[-1].frees if "cast" in name]  # type: ignore[union-attr]
    assert len(freed) == 9
    allocs = [alloc for op in made.program.body for alloc in getattr(op, "allocs", ())]
    alone = {alloc.tensor: alloc.bytes for alloc in allocs}
    assert sum(alone[name] for name in freed) == layer + 2 * 2 * 1024
    names = {"embedding/cast", "head/cast", "final_norm_scale/cast"}
    there = names.intersection(alone)
    assert sum(alone[name] for name in (*there, "cast_weights")) == sum(
        2 * 1024 * (1 if name.startswith("final") else 512) for name in there
    )
    assert ("embedding/cast" in there) == (chip == "v5p")


@pytest.mark.parametrize(
    "keys", [{"microbatches": 2}, {"scan_layers": True}, {"dtypes": {"param": "bf16"}}], ids=str
)
def test_elsewhere_cast_weights_are_freed_together(keys: dict[str, Any]) -> None:
    """By the next microbatch they are read again; a scan has one array; and what is not cast."""
    body = loop(result({"data": 16}, **keys).program.body, "layers/d").body
    assert not [name for op in body for name in getattr(op, "frees", ()) if name.endswith("/cast")]


def test_operands_of_rings_are_held_twice_where_the_sparsecore_reduces() -> None:
    """In the layout of the ring too, but for those of the hidden layer."""
    few, many = (
        result(pod=Slice("7x", "2x2x2"), layers=layers).memory_bytes["activations"]
        for layers in (4, 8)
    )
    assert many - few == 4 * (3 * HIDDEN + 2 * (4 * EMBED + 4 * HEADS))


@pytest.mark.parametrize(
    ("keys", "waits"),
    [
        ({}, False),
        ({"style": "maxtext"}, False),
        ({"mesh": {"fsdp": 8, "context": 2}}, False),
        ({"save": ["q"]}, True),
        ({"remat": "minimal"}, True),
        ({"remat": "none"}, True),
    ],
    ids=lambda given: str(given),
)
def test_the_heads_ring_waits_where_layers_save_more_than_their_inputs(
    keys: dict[str, Any], waits: bool
) -> None:
    names = [op.name for op in result(**keys).program.body]
    assert (names.index("logits/dw/ring") > names.index("layers/d")) is waits


def test_norms_that_rings_alone_read_are_made_in_their_layout() -> None:
    """With saved results of matmuls, nothing else reads the norms again."""
    for remat, norms, others in (("full", 2, 6), ("minimal", 0, 5)):
        made = result(pod=Slice("7x", "2x2x2"), remat=remat)
        names = [op.name for op in loop(made.program.body, "layers/d").body]
        turned = [name for name in names if name.endswith(" turned")]
        assert len([name for name in turned if "norm" in name]) == norms
        assert len(turned) == norms + others


@pytest.mark.parametrize("pod", [Slice("7x", "2x2x2"), Slice("v5p", "2x2x4")], ids=str)
def test_stages_with_the_same_layers_free_the_same_gradients(pod: Slice) -> None:
    """Also those that are all-reduced, of which the optimizer takes a part."""
    model = small(
        layers=4, experts=4, experts_per_token=1, embed=1024, mlp=4096, head_dim=128, vocab=32000
    )
    plan = Plan(
        mesh={"stage": 2, "context": 2, "fsdp": 4}, seq_len=16, global_batch=32, microbatches=2,
        schedule="gpipe", scan_layers=False,
    )  # fmt: skip
    assert simulate(model, plan, pod).hbm_peak_bytes > 0
