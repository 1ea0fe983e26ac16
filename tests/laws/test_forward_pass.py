"""The forward pass alone: models of the zoo, on one device and on many, and steps with state."""

from dataclasses import dataclass

import pytest
from extent import sample
from plans import flat, lowered_forward, plan_of

from tpusim import models
from tpusim.base import ModelError, Phase, PlanError
from tpusim.costs import cost_program
from tpusim.engine import run
from tpusim.frames import choices_of
from tpusim.graph import (
    LOSS,
    Graph,
    GraphWriter,
    Remat,
    Tensor,
    executed_flops,
    forward_pass,
    training_step,
    walk,
)
from tpusim.hardware import Slice, placements
from tpusim.models import Architecture, GraphChoices
from tpusim.partition import partition_graph, resolve_rules
from tpusim.plan import Plan
from tpusim.program import Collective, Compute, Program, VectorWork
from tpusim.simulation import simulate
from tpusim.simulation.plan_run import run_forward

ZOO = models.names()
ON_ONE = Slice("v5e", "1x1")
ON_MANY = Slice("v5p", "4x4x4")
SEQ_LEN = 512


def plan_for(model: Architecture, pod: Slice) -> Plan:
    """A plan of every model: a batch for each device, weights sharded."""
    length = SEQ_LEN if model.reads_text else 0
    axes = {"data": 4, "fsdp": pod.devices // 4} if pod.devices > 1 else {"data": 1}
    return Plan(mesh=axes, seq_len=length, global_batch=4 * pod.devices)


def loss_flops(graph: Graph) -> int:
    """FLOPs of the operations that nothing but the loss reads."""
    alone = {op.name for op, _ in walk(forward_pass(graph).ops)}
    return sum(
        times * executed_flops(op, graph.sizes)
        for op, times in walk(graph.ops)
        if op.name not in alone
    )


def forward_flops(program: Program) -> float:
    """Model FLOPs of the operations of the forward pass."""
    return sum(
        times * op.flops.model
        for op, times in flat(program.body)
        if isinstance(op, Compute) and op.phase is Phase.FORWARD
    )


@pytest.mark.parametrize("name", sample(ZOO, 4))
def test_a_forward_pass_is_the_graph_without_its_loss(name: str) -> None:
    model = models.load(name)
    whole = model.graph(batch=8, seq_len=SEQ_LEN)
    alone = forward_pass(whole)
    kept = {op.name for op in alone.ops}
    assert alone.ops == tuple(op for op in whole.ops if op.name in kept)
    assert LOSS not in dict(alone.outputs)
    left = [op for op in whole.ops if op.name not in kept]
    made = {tensor.name for op in left for tensor in op.outputs}
    assert whole.loss.name in made
    assert not any(made & {tensor.name for tensor in op.inputs} for op in alone.ops)
    with pytest.raises(ModelError, match=r"has no loss to train by"):
        _ = alone.loss


@pytest.mark.thorough
def test_only_losses_of_pairs_multiply_matrices() -> None:
    """Each image with each text, as vectors of one width."""
    found = {name: loss_flops(models.load(name).graph(batch=8, seq_len=SEQ_LEN)) for name in ZOO}
    kinds = (models.TwoTowers, models.ContrastiveCaptioner)
    paired = {name for name in ZOO if isinstance(models.load(name), kinds)}
    assert {name for name, flops in found.items() if flops} == paired
    for name in paired:
        model = models.load(name)
        assert isinstance(model, kinds)
        towers = isinstance(model, models.TwoTowers)
        assert found[name] == 2 * 8 * 8 * (model.shared if towers else model.text.embed)


@pytest.mark.parametrize(
    ("name", "pod"), sample([(name, pod) for name in ZOO for pod in (ON_ONE, ON_MANY)], every=61)
)
def test_a_model_runs_forward_only(name: str, pod: Slice) -> None:
    model = models.load(name)
    plan = plan_for(model, pod)
    alone, step = run_forward(model, plan, pod), simulate(model, plan, pod)
    whole = model.graph(batch=plan.microbatch, seq_len=plan.seq_len)
    assert float(alone.flops.model) == forward_flops(step.programs[0]) - loss_flops(whole)
    assert alone.flops.recompute == alone.flops.optimizer == 0
    phases = {op.phase for op, _ in flat(alone.programs[0].body)}
    assert phases == {Phase.FORWARD}
    assert 0 < alone.step_time_s < step.step_time_s
    assert alone.hbm_peak_bytes <= step.hbm_peak_bytes
    assert alone.error_range is None
    assert "its forward pass alone" in " ".join(str(alone).split())


def test_a_forward_pass_has_no_pipeline() -> None:
    plan = plan_of({"fsdp": 8, "stage": 8})
    with pytest.raises(PlanError, match=r"a forward pass alone has no pipeline; write stage = 1"):
        run_forward(models.load("llama2-7b"), plan, ON_MANY)


LAYERS, BATCH, CACHED, HEADS, WIDTH = 3, 16, 1024, 8, 64


def decoding(w: GraphWriter) -> None:
    """A layer of attention for one new token of each sequence, with a cache of keys and values."""
    w.size(batch=BATCH, kv_seq=CACHED, heads=HEADS, head_dim=WIDTH, embed=256)
    x = w.input("x", ("batch", "embed"), "compute")

    def layer(w: GraphWriter, x):  # type: ignore[no-untyped-def]
        dims = ("batch", "kv_seq", "heads", "head_dim")
        query, key, value = (w.dense(name, x, "heads", "head_dim") for name in "qkv")
        keys = w.update("keys_after", w.state("keys", *dims), key)
        values = w.update("values_after", w.state("values", *dims), value)
        scores = w.einsum("scores", query, keys, ("batch", "heads", "kv_seq"))
        weights = w.pointwise("softmax", (scores,), scores.dims, 5.0, over=("kv_seq",))
        mixed = w.einsum("mixed", weights, values, ("batch", "heads", "head_dim"))
        return w.add("sum", x, w.dense("out", mixed, "embed", over=2))

    w.output("y", w.layers("layer", LAYERS, x, layer))


def decode_graph() -> Graph:
    w = GraphWriter("decoder", {})
    decoding(w)
    return forward_pass(w.graph())


@pytest.mark.parametrize("mesh", [{"data": 1}, {"data": 4, "tensor": 4}])
def test_a_decode_step_keeps_its_cache_in_hbm_and_writes_one_position(mesh: dict[str, int]) -> None:
    graph = decode_graph()
    assert [(s.tensor.short, s.copies) for s in graph.states] == [("keys", 3), ("values", 3)]
    plan = Plan(mesh=mesh, global_batch=BATCH)
    partitioned = partition_graph(graph, plan.sharding, resolve_rules(plan.sharding, graph))
    devices = plan.devices
    pod = Slice("v5e", "1x1" if devices == 1 else "4x4")
    placement = placements(pod, plan.mesh)[0]
    program = lowered_forward(graph, partitioned, choices_of(plan), pod, placement)
    cache = BATCH * CACHED * HEADS * WIDTH * 2 / devices
    held = {alloc.tensor: alloc.bytes for alloc in program.resident if alloc.category == "state"}
    assert held == {"layer/keys": LAYERS * cache, "layer/values": LAYERS * cache}
    ops = [(op, times) for op, times in flat(program.body) if isinstance(op, Compute)]
    updates = [(op, n) for op, n in ops if op.name.endswith("_after")]
    written = BATCH * HEADS * WIDTH * 2 / devices
    assert [op.work for op, _ in updates] == [VectorWork(written, written, 0)] * 2
    assert {n for _, n in updates} == {LAYERS}
    assert not {a.tensor for op, _ in ops for a in op.allocs} & set(held)
    names = [op.name for op, _ in ops]
    assert names.index("layer/keys_after") < names.index("layer/scores")
    read = next(op.work for op, _ in ops if op.name == "layer/scores")
    assert read.read_bytes >= cache
    moved = [op for op, _ in flat(program.body) if isinstance(op, Collective)]
    assert not any(op.scope in ("layer/keys", "layer/values") for op in moved)
    costed = cost_program(program, pod, placement)
    assert run([costed]).total_ps > 0
    assert "layer/keys_after" in str(program)


def test_a_training_step_updates_its_state_without_a_gradient() -> None:
    w = GraphWriter("normed", {"batch": 8, "embed": 32})
    x = w.dense("wi", w.input("x", ("batch", "embed"), "compute"), "embed")
    mean = w.pointwise("mean", (x,), ("embed",), 1.0, over=("batch",))
    w.update("running_after", w.state("running", "embed", dtype="f32"), mean)
    loss = w.pointwise("loss", (x,), w.tensor("loss", ("batch",), "f32"), 1.0, over=("embed",))
    graph = w.graph(loss)
    step = training_step(graph, Remat())
    assert [name for name, _ in step.gradients] == ["wi"]
    assert sum(op.name == "running_after" for op, _ in walk(step.ops)) == 1


@dataclass(frozen=True, kw_only=True)
class Counted(Architecture):
    """Layers with a state each."""

    name: str = "counted"

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        w.size(embed=32)

        def layer(w: GraphWriter, x: Tensor) -> Tensor:
            w.update("after", w.state("held", "embed"), w.state("other", "embed"))
            return w.dense("wi", x, "embed")

        x = w.layers("layer", 4, w.input("x", ("batch", "seq", "embed"), "compute"), layer)
        made = w.tensor("loss", ("batch", "seq"), "f32")
        return w.pointwise("loss", (x,), made, 1.0, over=("embed",))


@pytest.mark.parametrize("schedule", ["1f1b", "circular"])
def test_stages_of_a_pipeline_hold_no_state(schedule: str) -> None:
    plan = plan_of({"data": 4, "stage": 4}, microbatches=4, schedule=schedule)
    with pytest.raises(PlanError, match=r"counted has state \(layer/held, layer/other\), which"):
        simulate(Counted(), plan, Slice("v5e", "4x4"))
    held = simulate(Counted(), plan_of({"data": 16}), Slice("v5e", "4x4")).memory_bytes
    assert held["state"] == 2 * 4 * 32 * 2


def test_what_a_state_refuses() -> None:
    w = GraphWriter("mine", {"batch": 2, "seq": 4, "embed": 8})
    x = w.input("x", ("batch", "embed"), "compute")
    with pytest.raises(ModelError, match=r"mine updates x, which is no state; see w.state"):
        w.update("after", x, x)
    with pytest.raises(ModelError, match=r"which has no batch; view it with the dimensions"):
        w.update("after", w.state("held", "embed"), x)
    with pytest.raises(ModelError, match=r"mine has no output but its loss; name one"):
        forward_pass(w.graph(x))
