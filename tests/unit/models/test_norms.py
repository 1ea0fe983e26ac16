"""Norms after attention and MLP, and of queries and keys: what they add, and what they do not."""

from collections import Counter
from collections.abc import Mapping
from math import prod

import pytest
from plans import comms, flat, partitioned_of, plan_of, program_of, small

from tpusim.base import Phase
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.partition import Purpose
from tpusim.plan import Plan
from tpusim.program import Compute, VectorWork
from tpusim.simulation import simulate

POD = Slice("v5e", "4x4")
PLAN = plan_of({"fsdp": 8, "tensor": 2})
LAYERS, SEQ, EMBED, MLP, HEADS, HEAD_DIM = 3, 16, 64, 256, 8, 32
TOKENS = PLAN.global_batch // 8 * SEQ
POST, QK = {"post_norms": True}, {"qk_norm": True}


@pytest.mark.parametrize(
    ("norms", "added"),
    [(POST, 2 * EMBED), (QK, 2 * HEAD_DIM), ({**POST, "parallel": True}, 2 * EMBED - EMBED)],
)
def test_each_norm_has_a_scale_a_layer(norms: Mapping[str, bool], added: int) -> None:
    """A parallel block has one norm before its halves instead of two."""
    assert small(**norms).parameter_count == small().parameter_count + LAYERS * added


def test_queries_and_keys_are_normed_before_they_are_turned() -> None:
    graph = small(**QK, kv_heads=2).graph(batch=1, seq_len=SEQ)
    names = [op.name for op in graph.ops[1].body]  # type: ignore[union-attr]
    for name in "qk":
        projected, normed, turned = (
            names.index(f"layer/{op}") for op in (f"w{name}", f"{name}_norm", f"{name}_rotary")
        )
        assert projected < normed < turned
    scales = {p.tensor.short: p.tensor.dims for p in graph.parameters if "_norm" in p.tensor.name}
    assert scales["q_norm_scale"] == scales["k_norm_scale"] == ("head_dim",)


def moved(model: Transformer, remat: str) -> Counter[tuple[str, Phase]]:
    """How often each tensor is moved in each phase; a scale's gradient, and weights, apart."""
    found: Counter[tuple[str, Phase]] = Counter()
    for comm, times in comms(partitioned_of(model, PLAN.replace(remat=remat))):
        if comm.purpose not in (Purpose.GRADIENT, Purpose.WEIGHT):
            found[comm.tensor, comm.phase] += times
    return found


@pytest.mark.parametrize("norms", [POST, QK, POST | QK])
@pytest.mark.parametrize("remat", ["full", "minimal", "none"])
def test_no_activation_moves_for_a_norm(norms: Mapping[str, bool], remat: str) -> None:
    """Heads are sharded and not `head_dim`; embed is whole on each chip.

    Only where the last projection is computed again, its result is added up again.
    """
    again = remat == "full" and "post_norms" in norms
    more = Counter({("layer/mlp_out", Phase.RECOMPUTE): LAYERS}) if again else Counter()
    assert moved(small(**norms), remat) == moved(small(), remat) + more


def test_the_gradient_of_a_scale_of_heads_is_summed_over_all_heads() -> None:
    named = [
        comm for comm, _ in comms(partitioned_of(small(**QK), PLAN)) if "q_norm_sc" in comm.name
    ]
    assert {axis for comm in named for axis in comm.axes} == {"fsdp", "tensor"}


def forward_bytes(model: Transformer, plan: Plan) -> float:
    pod = Slice("v5e", {8: "2x4", 16: "4x4"}[prod(plan.mesh.values())])
    program = program_of(model, plan, pod)
    return sum(
        times * (op.work.read_bytes + op.work.write_bytes)
        for op, times in flat(program.body)
        if isinstance(op, Compute) and isinstance(op.work, VectorWork) and op.phase is Phase.FORWARD
    )


def test_a_norm_of_heads_costs_its_bytes() -> None:
    """Read and written once, in bf16; its scale is cast once and read."""
    one = 2 * 2 * TOKENS * (HEADS // 2) * HEAD_DIM + (4 + 2 + 2) * HEAD_DIM
    assert forward_bytes(small(**QK), PLAN) - forward_bytes(small(), PLAN) == LAYERS * 2 * one


@pytest.mark.parametrize(
    ("mesh", "style", "passes"),
    [({"fsdp": 8, "tensor": 2}, "plain", 0), ({"fsdp": 8}, "maxtext", 3)],
)
def test_a_norm_after_a_matmul_and_the_sum_after_it_are_one_pass(
    mesh: dict[str, int], style: str, passes: int
) -> None:
    """Two terms read, one written, and the scale cast and read.

    The sum has left the matmul's epilogue for it; where the matmul's result is a partial sum, it
    was not in there before either, and the norm costs no more than its scale. A ring has none.
    """
    plan = plan_of(mesh, style=style)
    one = passes * 2 * TOKENS * EMBED + (4 + 2 + 2) * EMBED
    more = forward_bytes(small(**POST), plan) - forward_bytes(small(), plan)
    assert more == LAYERS * 2 * one


def test_a_residual_gradient_is_added_where_the_norm_is_differentiated() -> None:
    """Three operands read, one result written: the gradient of the sum before a norm."""
    program = program_of(small(), plan_of({"fsdp": 8}), Slice("v5e", "2x4"))
    found = {op.name: op.work for op, _ in flat(program.body) if isinstance(op, Compute)}
    assert not [name for name in found if "layer" in name and name.endswith("/dsum")]
    for name in ("attn_norm", "mlp_norm"):
        work = found[f"bwd/layer/{name}/d"]
        assert isinstance(work, VectorWork)
        assert work.read_bytes == 3 * 2 * TOKENS * EMBED + 2 * EMBED
        assert work.write_bytes == 2 * TOKENS * EMBED + 2 * EMBED


def test_the_last_projection_is_computed_again_for_the_norm_after_it() -> None:
    """Without that norm nobody reads it again, so full remat leaves it out."""
    plain, normed = (simulate(small(**norms), PLAN, POD).flops for norms in ({}, POST))
    assert normed.model == plain.model
    assert normed.recompute - plain.recompute == 2 * PLAN.global_batch * SEQ * EMBED * MLP * LAYERS


@pytest.mark.parametrize("remat", ["minimal", "dots"])
def test_a_saved_partial_result_is_added_up_once(remat: str) -> None:
    assert moved(small(), remat)["layer/out", Phase.FORWARD] == LAYERS
