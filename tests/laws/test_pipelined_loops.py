"""Pipelines of layers of two kinds: an encoder's, then a decoder's, over the same stages."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from extent import sample
from plans import flat, holders, small

from tpusim.base import PlanError
from tpusim.export import export_jax
from tpusim.hardware import Slice
from tpusim.models import Architecture, EncoderDecoder, MoE, TextTower, TwoTowers, VisionTransformer
from tpusim.plan import Plan
from tpusim.program import Call, Collective, Compute, Loop, Program
from tpusim.report import pipeline_data
from tpusim.results import PlanResult
from tpusim.results.stage_uses import stage_uses
from tpusim.simulation import simulate

POD, STAGE = Slice("v5e", "4x4"), Slice("v5e", "2x2")
STAGES, MICROBATCHES, BATCH = 4, 8, 64
SOURCE, TARGET, EMBED = 128, 64, 64
BOTH = EncoderDecoder(
    layers=4, decoder_layers=8, embed=EMBED, mlp=256, heads=4, vocab=512, target_vocab=256,
    target_len=TARGET, tied_embeddings=False,
)  # fmt: skip
MODELS: dict[str, Architecture] = {
    "plain": BOTH,
    "one table": replace(BOTH, target_vocab=0, tied_embeddings=True),
    "experts": replace(BOTH, moe=MoE(experts=4, experts_per_token=2), layers=8, decoder_layers=16),
    "dense, then experts": small(layers=12, experts=4, experts_per_token=2, dense_layers=4),
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "gpipe": {}, "1f1b": {}, "zb-h1": {}, "zb-h2": {},
    "interleaved": {"virtual_stages": 3}, "circular": {"virtual_stages": 3},
}  # fmt: skip
PLANS: dict[str, dict[str, Any]] = {
    "full": {}, "none": {"remat": "none"}, "dots": {"remat": "dots"},
    "bf16": {"param_dtype": "bf16", "accumulator_dtype": "f32", "optimizer": "sgd"},
}  # fmt: skip
ONE_TABLE = ("gpipe", "1f1b", "zb-h1", "zb-h2")
CASES = [
    (schedule, model, list(PLANS)[(one + other) % len(PLANS)])
    for one, schedule in enumerate(SCHEDULES)
    for other, model in enumerate(MODELS)
    if not (model == "one table" and schedule in ONE_TABLE)
]
each_case = pytest.mark.parametrize(("schedule", "model", "plan"), sample(CASES, every=4))


@cache
def run(schedule: str, model: str = "plain", plan: str = "full") -> PlanResult:
    """A step on all stages; without a schedule, on the chips of one."""
    keys = SCHEDULES[schedule] | {"schedule": schedule} if schedule else {}
    mesh = {"stage": STAGES} if schedule else {}
    return simulate(
        MODELS[model],
        Plan(mesh={**mesh, "fsdp": 2, "tensor": 2}, seq_len=SOURCE, global_batch=BATCH,
             microbatches=MICROBATCHES, **PLANS[plan], **keys),
        POD if schedule else STAGE,
    )  # fmt: skip


@each_case
def test_stages_share_the_work_of_one_program(schedule: str, model: str, plan: str) -> None:
    staged, alone = run(schedule, model, plan), run("", model, plan)
    assert staged.flops.model == alone.flops.model
    assert staged.flops.recompute == alone.flops.recompute
    if schedule != "circular":
        assert staged.flops == alone.flops


@each_case
def test_stages_multiply_as_long_as_one_of_them_alone_would(
    schedule: str, model: str, plan: str
) -> None:
    if schedule == "circular":
        return
    lanes, alone = (_multiplied(run(how, model, plan)) for how in (schedule, ""))
    assert lanes == alone


def _multiplied(result: PlanResult) -> int:
    core = result.timeline.core_ps.items()
    return sum(time for (label, _), time in core if label in ("matmul", "attention"))


@each_case
def test_all_that_a_step_takes_it_gives_back(schedule: str, model: str, plan: str) -> None:
    for memory in run(schedule, model, plan).timeline.memory:
        taken = 0
        for change in memory.changes:
            times = 1
            for level in change.repeats:
                times *= level.repeats
            taken += change.bytes * times
        assert taken == 0


@each_case
def test_a_breakdown_sums_to_the_step(schedule: str, model: str, plan: str) -> None:
    result = run(schedule, model, plan)
    assert sum(result.breakdown_s.values()) == pytest.approx(result.step_time_s, rel=1e-12)
    assert min(result.breakdown_s.values()) >= 0


@pytest.mark.parametrize("model", MODELS)
def test_idle_iterations_are_those_of_the_closed_form(model: str) -> None:
    """p - 1 for each loop, of the m R that are needed: each costs what one of those does."""
    result = run("circular", model, "full")
    loops = {op.name: op for op in result.program.body if isinstance(op, Loop)}
    rounds = (1, 2)
    redundant = 0
    for name, count in zip(("pipeline", "pipeline 2"), rounds, strict=True):
        for phase in ("forward", "backward"):
            needed, idle = loops[f"{name}/{phase}"], loops[f"{name}/{phase} (bubble)"]
            assert (needed.trips, idle.trips) == (MICROBATCHES * count, STAGES - 1)
            each, unread = _flops(needed) // needed.trips, _flops(idle) // idle.trips
            assert each == unread
            redundant += _flops(idle)
    alone = run("", model, "full")
    assert result.flops.redundant - alone.flops.redundant == redundant
    idle, every = 2 * (STAGES - 1), MICROBATCHES * 3 + 2 * (STAGES - 1)
    lost = pipeline_data(result)
    assert {len(stage.unread) for stage in lost.stages} == {2 * idle}
    assert result.bubble == pytest.approx(lost.bubble, abs=1e-12)
    assert 0.5 * idle / every < result.bubble <= idle / every


def _flops(loop: Loop) -> int:
    """FLOPs of all iterations on all devices."""
    ops = ((op, times) for op, times in flat((loop,)) if isinstance(op, Compute))
    return sum(op.flops.total * times for op, times in ops)


@pytest.mark.parametrize("schedule", ["1f1b", "circular"])
def test_one_stage_is_no_pipeline(schedule: str) -> None:
    mesh = {"fsdp": 4, "tensor": 4}
    plans = (
        Plan(mesh=one, seq_len=SOURCE, global_batch=BATCH, microbatches=2, schedule=how)
        for one, how in ((mesh, ""), ({**mesh, "stage": 1}, schedule))
    )
    without, staged = (simulate(BOTH, plan, POD) for plan in plans)
    assert staged.timeline.tasks == without.timeline.tasks
    assert staged.memory_bytes == without.memory_bytes
    assert staged.bubble == 0


def _shard(tokens: int) -> int:
    """Bytes of a microbatch's activations on a device, which FSDP shards by examples."""
    return BATCH // MICROBATCHES // 2 * tokens * EMBED * 2


def test_what_a_decoder_reads_travels_along_its_stages() -> None:
    """A stage of the encoder sends its result; one of the decoder that and the encoder's too.

    12 layers in 4 parts: the encoder's 4 are on the first two stages, with 2 of the decoder's.
    """
    programs = run("1f1b").programs
    sent = [
        {
            (call.name[0], send.bytes) for call in _calls(program) for send in call.sends
            if call.name[0] in "FB" and call.name[1:].isdigit()
        }
        for program in programs
    ]  # fmt: skip
    one, both = _shard(SOURCE), _shard(SOURCE) + _shard(TARGET)
    assert sent == [
        {("F", one)}, {("F", both), ("B", one)}, {("F", both), ("B", both)}, {("B", both)}
    ]  # fmt: skip


def _calls(program: Program) -> Iterator[Call]:
    return (op for op in program.body if isinstance(op, Call))


def test_what_a_decoder_reads_goes_round_with_its_microbatch() -> None:
    program = run("circular").program
    moved = {
        (loop.name, op.scope): op.bytes
        for loop in program.body
        if isinstance(loop, Loop) and "bubble" not in loop.name
        for op in loop.body
        if isinstance(op, Collective) and op.axes == ("stage",)
    }
    source, target = _shard(SOURCE), _shard(TARGET)
    ahead, back = ("stage_out", "inputs", "finished"), ("d(stage_in)", "d(inputs)", "d(finished)")
    first = {("pipeline/forward", what): source for what in ahead[:2]}
    first |= {("pipeline/backward", what): source for what in back[:2]}
    second = {("pipeline 2/forward", what): target for what in ahead}
    second |= {("pipeline 2/backward", what): target for what in back}
    second |= {
        (loop, f"{what} (encoder_norm)"): source
        for loop, names in (("pipeline 2/forward", ahead), ("pipeline 2/backward", back))
        for what in names
    }
    assert moved == first | second


def test_each_iteration_of_a_decoder_holds_what_it_reads() -> None:
    """To its backward pass, m R + p - 1 times: JAX's scan saves what each iteration is given."""
    taken, freed = Counter[str](), Counter[str]()
    name = "encoder_norm (loop 2)"
    for loop in (o for o in run("circular").program.body if isinstance(o, Loop)):
        phase = next(flat(loop.body))[0].phase
        for op, times in holders(loop.body, loop.trips):
            taken[phase] += times * sum(alloc.tensor == name for alloc in op.allocs)
            freed[phase] += times * op.frees.count(name)
    iterations = MICROBATCHES * 2 + STAGES - 1
    assert (+taken, +freed) == ({"forward": iterations}, {"backward": iterations})


def test_what_passes_a_loop_by_waits_beside_it() -> None:
    """The image tower's result, while text goes round: all microbatches, over all stages."""
    image = VisionTransformer(layers=4, embed=32, mlp=64, heads=4, image=32, patch=8, classes=1)
    model = TwoTowers(image=image, text=TextTower(layers=4, embed=48, mlp=64, heads=4), shared=16)
    plan = Plan(mesh={"stage": 4, "data": 4}, global_batch=64, microbatches=8, schedule="circular",
                virtual_stages=2)  # fmt: skip
    program = simulate(model, plan, POD).program
    held = {a.tensor: a.bytes for op, _ in holders(program.body) for a in op.allocs}
    image_result = 64 // 16 * 16 * 2
    state = 64 // 4 // 8 * 2 * model.text.length * 48 * 2
    assert held["inputs and results (loop 2)"] == state + image_result


def test_a_table_of_stages_says_where_the_loops_are_joined() -> None:
    """The encoder's last layer is on the second stage, before the decoder's first two."""
    besides = [use.besides for use in stage_uses(run("1f1b"))]
    assert besides == ["embedding", "joint", "", "final norm, head, loss"]
    kinds = Counter(
        (each.slot.kind, each.slot.chunk)
        for use in stage_uses(run("circular")) for each in use.slots
    )  # fmt: skip
    assert kinds == {(kind, c): STAGES * MICROBATCHES for kind in "FB" for c in range(3)}


def test_an_exported_step_has_one_kind_of_layers() -> None:
    keys = {"mesh": {"stage": 4, "fsdp": 4}, "schedule": "circular", "virtual_stages": 3}
    plan = Plan(seq_len=SOURCE, global_batch=BATCH, microbatches=MICROBATCHES, **keys)
    with pytest.raises(PlanError, match="encoders is one of several kinds of layers in a pipeline"):
        export_jax(BOTH, plan, POD)
