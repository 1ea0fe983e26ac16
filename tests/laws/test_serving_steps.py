"""Laws of the steps of a server: what they read, what they hold, and how they add up."""

import random
from dataclasses import fields, replace
from typing import Any

import pytest

import tpusim as ts
from tpusim.base.errors import PlanError
from tpusim.costs.cached_attention import CachedAttentionRates
from tpusim.graph import CachedAttention, Einsum, TensorRole, walk
from tpusim.pipeline.serving_step import StepShape, serving_graph
from tpusim.plan import ServingPlan
from tpusim.program import CachedAttentionWork, Compute, MatmulWork, VectorWork, walk_ops
from tpusim.results import PlanResult
from tpusim.server import StepLoad
from tpusim.serving.capacity import StepMemory, cache_room
from tpusim.serving.engines import Buckets
from tpusim.serving.serve import Server
from tpusim.serving.step_table import SharedSteps, StepTable
from tpusim.simulation.plan_run import run_forward
from tpusim.simulation.serving_run import serve_step

SMALL = {"layers": 3, "embed": 512, "mlp": 1024, "heads": 8, "kv_heads": 4, "vocab": 1000}
DENSE = ts.models.Transformer(**SMALL)
WINDOWED = ts.models.Transformer(**SMALL, window=256, global_every=3)
EXPERTS = ts.models.Transformer(**SMALL, experts=16, experts_per_token=2)
POD = ts.Slice("v6e", "2x2")
BIG = ts.Slice("v5p", "2x2x1")
PLAN = ServingPlan(mesh={"tensor": 4})
BUCKETS = Buckets(tokens=(16, 64, 256, 1024), rows=(8, 32, 128))


def decode(
    model: ts.models.Transformer, plan: ServingPlan, count: int = 8, keys: int = 512
) -> PlanResult:
    rows = -(-count // plan.ranks)
    shape = StepShape(tokens=rows, rows=rows)
    return serve_step(model, plan, POD, StepLoad(count, count * keys), shape)


def prompt(tokens: int) -> StepLoad:
    return StepLoad(0, 0, tokens, tokens, tokens * (tokens + 1) // 2)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8", "int4"])
def test_a_decoded_token_reads_each_matrix_once(dtype: str) -> None:
    step = decode(DENSE, replace(PLAN, weight_dtype=dtype), count=1)
    read = 0.0
    for op, times in walk_ops(step.program.body):
        if isinstance(op, Compute) and isinstance(op.work, MatmulWork):
            work = op.work
            given = 2 * work.batch * work.m * work.k
            read += times * (work.read_bytes - given)
    item = {"bf16": 2, "int8": 1, "fp8": 1, "int4": 0.5}[dtype]
    layers = 3 * (512 * 512 * 2 + 2 * 512 * 256 + 3 * 512 * 1024)
    assert read == pytest.approx((layers * item + 512 * 1000 * 2) / 4, rel=0.02)


@pytest.mark.parametrize(("tokens", "chip", "kernel", "kept"), [
    (1024, "v6e", "paged", True),
    (200_000, "v6e", "paged", False),
    (1024, "v5p", "paged", False),
    (1024, "v6e", "dot", False),
])  # fmt: skip
def test_layers_that_are_written_out_keep_activations_on_the_chip(
    tokens: int, chip: str, kernel: Any, kept: bool
) -> None:
    plan = ServingPlan(mesh={"tensor": 4}, kernel=kernel)
    shape = StepShape(tokens=tokens, rows=1)
    step = serve_step(
        DENSE, plan, ts.Slice(chip, "2x2" + "x1" * (chip == "v5p")), prompt(64), shape
    )
    moved = {
        op.name: op.work.read_bytes + op.work.write_bytes
        for op, _ in walk_ops(step.program.body)
        if isinstance(op, Compute) and isinstance(op.work, VectorWork)
    }
    residual = 3 * tokens * 512 * 2
    assert moved["layer/mid"] == (0 if kept else residual)


@pytest.mark.parametrize(("dtype", "item"), [("bf16", 2), ("int8", 1), ("fp8", 1), ("f32", 4)])
def test_the_bytes_of_a_page(dtype: str, item: int) -> None:
    plan = replace(PLAN, kv_dtype=dtype, page_size=64)
    room = cache_room(DENSE, plan, POD, tokens=64, rows=8)
    assert room.page_bytes == 64 * 3 * 2 * 4 * 64 * item / 4
    assert room.tokens == room.pages * 64
    assert 0 <= room.free_bytes - room.pages * room.page_bytes < room.page_bytes


def test_the_cache_that_an_engine_logs() -> None:
    """Qwen3-VL 8B on a device of 7x: 63.95 GiB free are 465,664 tokens in pages of 256.

    Source: vllm-project/tpu-inference, pull request 2803.
    """
    plan = ServingPlan(mesh={"data": 2}, page_size=256)
    pod = ts.Slice("7x", "1x1x1")
    room = cache_room(ts.models.load("qwen3-8b"), plan, pod, tokens=256, rows=8)
    assert room.page_bytes / 256 == 36 * 2 * 8 * 128 * 2
    free = replace(room, usable_bytes=room.step_bytes + 63.95 * 2**30)
    assert free.tokens == 465_664


def test_latents_are_cached_once_whatever_the_heads() -> None:
    model = ts.models.load("deepseek-v2-lite")
    room = cache_room(model, replace(PLAN, page_size=1), POD, tokens=64, rows=8)
    assert room.page_bytes == 27 * (512 + 64) * 2
    graph = serving_graph(model, PLAN, prompt(64), StepShape(tokens=64, rows=8))
    assert graph.parameter_count == model.parameter_count


def test_a_prompt_is_the_forward_pass() -> None:
    """All matmuls but those of the head, which reads the last token alone."""
    tokens = 256
    step = serve_step(DENSE, PLAN, POD, prompt(tokens), StepShape(tokens=tokens, rows=1))
    plan = ts.Plan(mesh={"tensor": 4}, seq_len=tokens, global_batch=1, param_dtype="bf16")
    whole = run_forward(DENSE, plan, POD)

    def matmuls(result: PlanResult) -> list[tuple[float, ...]]:
        works = ((op.work, n) for op, n in walk_ops(result.program.body) if isinstance(op, Compute))
        return [(w.m, w.k, w.n, n) for w, n in works if isinstance(w, MatmulWork)]

    assert matmuls(step)[:-1] == matmuls(whole)[:-1]
    head = 2 * tokens * 512 * 1000
    last = 2 * 512 * 1000
    assert step.flops.model == pytest.approx(whole.flops.model - head + last, rel=0.01)


@pytest.mark.parametrize("model", [DENSE, WINDOWED, EXPERTS], ids=["dense", "windowed", "experts"])
@pytest.mark.parametrize(
    "plan",
    [PLAN, ServingPlan(mesh={"attn_data": 2, "tensor": 2}, expert_parallel=True)],
    ids=["tensor", "attn_data"],
)
def test_a_step_of_the_table_is_the_simulated_step(
    model: ts.models.Transformer, plan: ServingPlan
) -> None:
    table, draw = StepTable(model, plan, POD, BUCKETS), random.Random(3)
    for _ in range(12):
        decodes = 2 * draw.randrange(0, 60)
        prefills = draw.choice([0, 2 * draw.randrange(1, 400)])
        keys = prefills + draw.randrange(5000) if prefills else 0
        pairs = (keys - prefills) * prefills + prefills * (prefills + 1) // 2
        context = decodes * draw.randrange(1, 4000)
        load = StepLoad(decodes, context, prefills, keys, pairs)
        if decodes + prefills:
            assert table.step_ps(load) == pytest.approx(
                table.step(load).timeline.total_ps, rel=1e-6
            )


CACHED = [
    (DENSE, PLAN),
    (DENSE, replace(PLAN, kernel="dot")),
    (WINDOWED, ServingPlan(mesh={"attn_data": 2, "tensor": 2})),
    (EXPERTS, replace(PLAN, expert_parallel=True)),
    (ts.models.load("deepseek-v2-lite"), PLAN),
    (ts.models.load("qwen3-next-80b-a3b"), PLAN),
    (DENSE, replace(PLAN, attention="tokens")),
]
"""Models and plans: two kinds of kernels, windows, experts, latents, states, and tokens divided."""


@pytest.mark.parametrize(("model", "plan"), CACHED)
def test_steps_that_caches_of_two_dtypes_share_are_those_of_each(
    model: ts.models.Transformer, plan: ServingPlan
) -> None:
    """To the byte, in either order, and so is the room for the cache."""
    loads = [StepLoad(8, 8000), StepLoad(2, 512, 60, 900, 30_000), StepLoad(100, 90_000)]

    def times(kv_dtype: str, known: SharedSteps) -> list[Any]:
        cached, engine = replace(plan, kv_dtype=kv_dtype), ts.Engine.of("vllm-tpu", chip="v6e")
        server = Server.of(model, cached, BIG, engine, longest=2048, known=known)
        table = StepTable(model, cached, BIG, BUCKETS, known=known)
        row = [table.decode_ps(64, 64 * 100, 300, 64), table.decode_ps(1, 10, 500, 1)]
        return [server.room, *row, *(table.step_ps(load) for load in loads)]

    alone = {dtype: times(dtype, SharedSteps()) for dtype in ("bf16", "fp8")}
    assert alone["bf16"] != alone["fp8"]
    for order in (("bf16", "fp8"), ("fp8", "bf16")):
        known = SharedSteps()
        assert {dtype: times(dtype, known) for dtype in order} == alone
        assert [len(each) for each in known.memories.values()] == [1]


def test_memory_is_shared_where_any_page_fits() -> None:
    """Beside a page of more bytes the buffers of a step may lie in another order."""
    tight = StepMemory(100.0, 90.0, page_elements=3.0, kv_dtype="fp8", others=0.0)
    assert tight.is_that_of("fp8")
    assert not tight.is_that_of("bf16")
    assert replace(tight, hbm_bytes=102.0).is_that_of("bf16")
    assert tight.room(replace(PLAN, kv_dtype="fp8", memory_fraction=1.0), 1, 1).pages == 3


def test_each_bucket_has_its_own_kernels() -> None:
    """Four devices divide the sequences of a step of 64, and none those of a step of 1.

    With one head of keys, each device otherwise reads all of them.
    """
    plan, draw = replace(PLAN, attention="tokens"), [1, 64, 1, 2, 64]
    table = StepTable(ts.models.Transformer(**SMALL | {"kv_heads": 1}), plan, POD, Buckets())
    for decodes in draw:
        load = StepLoad(decodes, decodes * 100_000)
        assert table.step_ps(load) == pytest.approx(table.step(load).timeline.total_ps, rel=1e-6)
        assert table.decode_ps(*load[:2], 1, 0) == table.step_ps(load)


@pytest.mark.parametrize("model", [DENSE, WINDOWED], ids=["dense", "windowed"])
def test_decode_steps_in_a_row_are_the_sum_of_them(model: ts.models.Transformer) -> None:
    table = StepTable(model, PLAN, POD, BUCKETS)
    for decodes, context, steps in ((1, 10, 500), (64, 64 * 100, 700), (100, 100 * 900, 3)):
        single = sum(
            table.decode_ps(decodes, context + decodes * step, 1, decodes) for step in range(steps)
        )
        row = table.decode_ps(decodes, context, steps, decodes)
        assert row == pytest.approx(single, rel=1e-3)


def test_more_keys_take_no_less_time() -> None:
    table = StepTable(WINDOWED, PLAN, POD, BUCKETS)
    times = [table.decode_ps(8, 8 * keys, 1, 8) for keys in (1, 64, 256, 1024, 8192, 65536)]
    assert times == sorted(times)


@pytest.mark.parametrize("model", [DENSE, WINDOWED], ids=["dense", "windowed"])
def test_kernels_take_sequences_that_decode_and_prompts_in_turn(
    model: ts.models.Transformer,
) -> None:
    """Pages of the one are not copied while the scores of the other are computed."""
    load = StepLoad(32, 32 * 4000, 96, 4096, 96 * 4000)
    step = serve_step(model, replace(PLAN, page_s=1e-7), POD, load, StepShape(tokens=128, rows=32))
    works = [op.work for op, _ in walk_ops(step.program.body) if isinstance(op, Compute)]
    kernels = [work for work in works if isinstance(work, CachedAttentionWork)]
    assert kernels
    for work in kernels:
        rates = CachedAttentionRates.of(work, POD.chip.device)
        decoding = rates.seconds(work.load._replace(prefills=0, prefill_keys=0, prefill_pairs=0))
        prompts = rates.seconds(work.load._replace(decodes=0, context=0))
        assert rates.seconds(work.load) == pytest.approx(decoding + prompts - rates.launch)


def test_experts_that_no_token_reaches_are_not_read() -> None:
    plan = replace(PLAN, expert_parallel=True)
    shape = StepShape(tokens=64, rows=64)
    times = [
        serve_step(EXPERTS, plan, POD, StepLoad(64, 0), replace(shape, routed=routed)).step_time_s
        for routed in (1, 2, 8, 64)
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_a_gate_of_shared_experts_costs_no_collective() -> None:
    gated = ts.models.Transformer(
        **SMALL, experts=16, experts_per_token=2, shared_mlp=512, shared_gate=True
    )
    plain = replace(gated, moe=replace(gated.moe, shared_gate=False))
    both = [decode(model, replace(PLAN, expert_parallel=True)) for model in (gated, plain)]
    assert len({sum(1 for _ in step.program.body) for step in both}) == 1


def test_kernels_read_the_cache_in_its_own_layout() -> None:
    plan = ServingPlan(mesh={"attn_data": 2, "tensor": 2})
    graph = serving_graph(DENSE, plan, StepLoad(8, 800), StepShape(tokens=4, rows=4))
    kernels = [op for op, _ in walk(graph.ops) if isinstance(op, CachedAttention)]
    assert kernels
    states = {s.tensor.short for s in graph.states}
    assert states == {"cached_keys", "cached_values"}
    assert not any(
        t.role is TensorRole.STATE
        for op, _ in walk(graph.ops)
        if isinstance(op, Einsum)
        for t in op.inputs
    )


CHANGED = {
    "mesh": {"attn_data": 2, "tensor": 2},
    "rules": {"act_embed": "tensor"},
    "expert_parallel": True,
    "moe_backend": "fused",
    "kernel": "dot",
    "on_chip": False,
    "attention": "tokens",
    "gather_weights": True,
    "weight_dtype": "int8",
    "matmul_dtype": "int8",
    "kv_dtype": "int8",
    "page_s": 1e-6,
    "expert_s": 1e-4,
    "attention_block": (128, 512),
}
ELSEWHERE = {"page_size", "memory_fraction", "placement"}
"""Fields that change the capacity, or the layout on the torus."""


@pytest.mark.parametrize("name", CHANGED)
def test_every_field_changes_a_step(name: str) -> None:
    mixed, shape = StepLoad(32, 32 * 900, 96, 4096, 96 * 4000), StepShape(tokens=128, rows=32)
    load = prompt(128) if name == "attention_block" else mixed
    plain = replace(PLAN, expert_parallel=name in ("moe_backend", "expert_s"))
    plain = replace(plain, moe_backend="fused") if name == "expert_s" else plain
    plans = (plain, replace(plain, **{name: CHANGED[name]}))
    model = EXPERTS if name in ("expert_parallel", "moe_backend", "expert_s") else DENSE
    found = {
        serve_step(model, plan, POD, load, replace(shape, tokens=128 // plan.ranks)).step_time_s
        for plan in plans
    }
    assert len(found) == 2


def test_all_fields_are_tried() -> None:
    assert {each.name for each in fields(ServingPlan)} == CHANGED.keys() | ELSEWHERE
    rooms = [
        cache_room(DENSE, plan, POD, tokens=64, rows=8)
        for plan in (PLAN, replace(PLAN, page_size=64), replace(PLAN, memory_fraction=0.5))
    ]
    assert len({(room.pages, room.page_size) for room in rooms}) == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mesh": {"model": 4}}, "serving.mesh has the axis 'model', which no server has"),
        ({"page_size": 0}, "page_size"),
        ({"memory_fraction": 1.5}, "memory_fraction is 1.5; write a number above 0"),
        ({"page_s": -1.0}, "page_s"),
        ({"expert_s": -1.0}, "expert_s"),
        ({"moe_backend": "gmm"}, "moe_backend"),
        ({"moe_backend": "fused"}, "write expert_parallel = true, or moe_backend = 'epmoe'"),
    ],
)
def test_a_plan_that_cannot_be(keys: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        ServingPlan(**keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["resnet-50", "vit-b/16", "stable-diffusion-3-medium", "z-image-turbo", "sdxl-vae"]
)
def test_a_step_of_images_is_their_forward_pass(name: str) -> None:
    model, plan = ts.models.load(name), ServingPlan(mesh={"data": 4})
    step = serve_step(model, plan, POD, prompt(8), StepShape(tokens=2, rows=2))
    whole = run_forward(model, ts.Plan(mesh={"data": 4}, global_batch=8, param_dtype="bf16"), POD)
    assert step.flops.model == whole.flops.model
    assert step.step_time_s == pytest.approx(whole.step_time_s, rel=0.05)


def test_an_encoder_is_served_without_a_cache() -> None:
    encoder = ts.models.Transformer(**SMALL, kind="encoder")
    traffic = ts.Traffic.poisson(rate=50, requests=100, prompt=128, output=1)
    served = ts.serve(encoder, PLAN, POD, traffic)
    assert served.metrics.numbers["requests_per_s"] > 40
    assert served.metrics.times["ttft"].p50 == served.metrics.times["e2e"].p50
