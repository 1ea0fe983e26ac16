"""No FLOP is lost or made by partitioning.

What all devices execute (from the shapes of the program's work, loops counted) is what the model
needs, plus what is computed again, plus what several devices do alike or mask, plus padding.
"""

from dataclasses import fields
from fractions import Fraction
from math import prod

import pytest
from accounts import total_flops
from extent import examples
from hypothesis import given
from hypothesis import strategies as st
from lowered import work_of
from plans import any_program_of, calcs, flat, graph_of, partitioned_of, plan_of, sizes_of, small

from tpusim.graph import POLICIES, Remat, training_step
from tpusim.hardware import Slice
from tpusim.models import Architecture, EncoderDecoder, Gnmt, JointTransformer, Transformer
from tpusim.plan import Plan
from tpusim.program import AttentionWork, Compute, Flops, MatmulWork, Program, Work

PODS = {8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4"}


def local_flops(work: Work) -> Fraction:
    """Matrix FLOPs of one device, from shapes alone."""
    match work:
        case MatmulWork():
            return 2 * prod(Fraction(n) for n in (work.batch, work.m, work.k, work.n))
        case AttentionWork():
            shape = (work.batch, work.heads, work.q_len, work.kv_len)
            widths = Fraction(work.head_dim) + Fraction(work.value_width)
            whole = 2 * (2 if work.backward else 1) * widths * prod(map(Fraction, shape))
            return whole / 2 if work.causal else whole
    return Fraction(0)


def executed(program: Program) -> Fraction:
    """Matrix FLOPs of all devices in a step."""
    local = sum(n * local_flops(op.work) for op, n in flat(program.body) if isinstance(op, Compute))
    return local * program.devices


def pod_for(mesh: dict[str, int]) -> Slice:
    return Slice("v4", PODS[prod(mesh.values())])


@st.composite
def meshes(draw: st.DrawFn) -> dict[str, int]:
    """A mesh of data x fsdp x tensor that fills a slice of v4."""
    devices = draw(st.sampled_from([8, 16, 32, 64]))
    tensor = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= devices]))
    left = devices // tensor
    data = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= left]))
    return {"data": data, "fsdp": left // data, "tensor": tensor}


latent = st.builds(
    small,
    kind=st.sampled_from(["decoder", "encoder"]),
    kv_rank=st.sampled_from([24, 23]),
    q_rank=st.sampled_from([0, 48]),
    rope_dim=st.just(16),
    v_head_dim=st.sampled_from([0, 20]),
    parallel=st.booleans(),
    attention=st.sampled_from(["dot", "flash"]),
)
dense = st.builds(
    small,
    kind=st.sampled_from(["decoder", "encoder"]),
    heads=st.sampled_from([8, 16]),
    kv_heads=st.sampled_from([1, 2, 8]),
    vocab=st.sampled_from([512, 509, 522]),
    mlp=st.sampled_from([256, 250]),
    gated=st.booleans(),
    parallel=st.booleans(),
    tied_embeddings=st.booleans(),
    rotary=st.booleans(),
    attention=st.sampled_from(["dot", "flash"]),
)
models = st.one_of(dense, latent)
plans = st.builds(
    plan_of,
    meshes(),
    remat=st.sampled_from(POLICIES),
    global_batch=st.sampled_from([64, 128]),
    rules=st.sampled_from([{}, {"act_embed": "tensor"}, {"act_seq": "tensor"}]),
    lowering=st.sampled_from(["xla", "ideal"]),
    style=st.sampled_from(["plain", "maxtext"]),
    vocab_tiles=st.sampled_from([1, 2]),
    optimizer=st.sampled_from(["adam", "muon"]),
)


@examples(120)
@given(models, plans)
def test_flops_are_conserved(model: Transformer, plan: Plan) -> None:
    program = any_program_of(model, plan, pod_for(dict(plan.mesh)))
    counted = total_flops(program.body)
    assert executed(program) == sum(Fraction(getattr(counted, f.name)) for f in fields(Flops))
    assert counted.model == graph_of(model, plan).model_flops()
    assert all(getattr(counted, f.name) >= 0 for f in fields(Flops))


TEXTS = (
    EncoderDecoder(layers=2, decoder_layers=3, embed=64, mlp=256, heads=8, vocab=509),
    EncoderDecoder(
        layers=2, embed=64, mlp=256, heads=8, vocab=512, target_vocab=256, target_len=32
    ),
    JointTransformer(
        double_layers=2, single_layers=3, heads=4, head_dim=16, latent=16, text=32, attention="dot"
    ),
    JointTransformer(double_layers=2, heads=5, head_dim=16, latent=14, text=15, text_ends=True),
    Gnmt(units=64, vocab=512),
    Gnmt(units=64, vocab=509, target_len=16, weights_after=False),
)


@examples(40)
@given(st.sampled_from(TEXTS), meshes(), st.sampled_from(POLICIES))
def test_flops_of_two_sequences_are_conserved(
    model: Architecture, mesh: dict[str, int], remat: str
) -> None:
    plan = Plan(mesh=mesh, global_batch=64, seq_len=64, remat=remat)
    program = any_program_of(model, plan, pod_for(mesh))
    counted = total_flops(program.body)
    assert executed(program) == sum(Fraction(getattr(counted, f.name)) for f in fields(Flops))
    forward = model.graph(batch=64, seq_len=64)
    assert counted.model == training_step(forward, Remat(remat)).model_flops()
    assert all(getattr(counted, f.name) >= 0 for f in fields(Flops))


@examples(60)
@given(meshes())
def test_newton_schulz_multiplies_shards_of_the_columns_and_squares_on_all_devices(
    mesh: dict[str, int],
) -> None:
    """Five times for a matrix of [m, n], m the smaller: 2 m m n twice per copy of the weights, and
    2 m m m on each device.
    """
    plan = plan_of(mesh, optimizer="muon", global_batch=64)
    counted = total_flops(any_program_of(small(heads=8), plan, pod_for(mesh)).body)
    devices = prod(mesh.values())
    matrices = 4 * [(64, 8 * 32)] + 3 * [(64, 256)]
    once = sum(2 * (2 * m * m * n) * mesh["data"] + 2 * m**3 * devices for m, n in matrices)
    assert counted.optimizer == 5 * 3 * once


@examples(60)
@given(meshes(), st.sampled_from(POLICIES), st.booleans(), st.booleans())
def test_a_plan_that_divides_wastes_nothing(
    mesh: dict[str, int], remat: str, gated: bool, parallel: bool
) -> None:
    model = small(kind="encoder", gated=gated, parallel=parallel, attention="dot")
    for rules in ({}, {"act_embed": "tensor"}):
        plan = plan_of(mesh, remat=remat, rules=rules, global_batch=64)
        counted = total_flops(any_program_of(model, plan, pod_for(mesh)).body)
        assert (counted.redundant, counted.padding) == (0, 0)


@pytest.mark.parametrize("attention", ["dot", "flash"])
@pytest.mark.parametrize("remat", POLICIES)
def test_recomputation_is_what_the_graph_runs_again(attention: str, remat: str) -> None:
    """The same on 1 device and on 64: recomputation is a matter of the graph."""
    model = small(attention=attention)
    again = set()
    for mesh in ({"data": 2, "fsdp": 4, "tensor": 1}, {"data": 4, "fsdp": 4, "tensor": 4}):
        plan = plan_of(mesh, remat=remat)
        again.add(total_flops(any_program_of(model, plan, pod_for(mesh)).body).recompute)
    assert len(again) == 1
    assert (again == {0}) == (remat == "none" or (remat == "dots" and attention == "dot"))


def of(model: Transformer, plan: Plan) -> Flops:
    return total_flops(any_program_of(model, plan, pod_for(dict(plan.mesh))).body)


MESH = {"data": 1, "fsdp": 4, "tensor": 4}
TOKENS, EMBED, HEAD_DIM = 32 * 16, 64, 32


def test_a_replicated_head_is_redundant_and_nothing_else() -> None:
    """K and V of one head, on 4 devices alike: forward, again, dX and dW; 3 of 4 are too many."""
    counted = of(small(kv_heads=1), plan_of(MESH))
    assert counted.redundant == 3 * (2 * 4) * (2 * TOKENS * EMBED * HEAD_DIM) * 3
    assert counted.padding == 0


def test_a_ragged_dimension_is_padding_and_nothing_else() -> None:
    """A vocabulary of 509 over 4 is computed as 512, in the three products of the head."""
    counted = of(small(vocab=509), plan_of(MESH))
    assert counted.padding == 3 * 2 * TOKENS * EMBED * (512 - 509)
    assert counted.redundant == 0


def test_scores_that_are_masked_are_redundant_and_a_kernel_skips_them() -> None:
    """Half of 2 products forward and 4 backward, and the 2 that are done again, a layer."""
    products = 2 * 16 * 16 * (8 * HEAD_DIM) * 32
    dot = of(small(attention="dot"), plan_of(MESH))
    assert dot.redundant == 3 * (2 + 2 + 4) * products // 2
    assert dot.padding == 0
    flash = of(small(attention="flash"), plan_of(MESH))
    assert flash.redundant == 0
    assert (dot.model, dot.recompute) == (flash.model, flash.recompute)
    encoder = of(small(attention="dot", kind="encoder"), plan_of(MESH))
    assert encoder.redundant == 0
    assert encoder.model - dot.model == 3 * (2 + 4) * products // 2


def test_model_flops_are_six_a_weight_and_token_and_twelve_a_score() -> None:
    """6 N T without the lookup's table, and 12 l b s s h d for full attention (PaLM, app. B)."""
    model = small(kind="encoder", gated=False)
    weights = 3 * (4 * EMBED * 8 * HEAD_DIM + 2 * EMBED * 256) + 512 * EMBED
    scores = 12 * 3 * 32 * 16 * 16 * 8 * HEAD_DIM
    assert of(model, plan_of(MESH)).model == 6 * weights * TOKENS + scores


def test_the_work_of_every_matmul_is_its_share_of_the_einsum() -> None:
    """A device's share, by hand, of the one product that is sharded three ways."""
    model, plan = small(), plan_of({"data": 2, "fsdp": 4, "tensor": 8})
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    work = {c.name: work_of(c, sizes, partitioned.buffers) for c, _ in calcs(partitioned)}
    shape = work["layer/wi_0"]
    assert isinstance(shape, MatmulWork)
    assert (shape.batch, shape.m, shape.k, shape.n) == (1, 32 // 8 * 16, 64, 256 // 8)
    weight = work["bwd/layer/wi_0/dw"]
    assert isinstance(weight, MatmulWork)
    assert sorted((weight.m, weight.n)) == [256 // 8, 64]
    assert weight.k == 32 // 8 * 16
