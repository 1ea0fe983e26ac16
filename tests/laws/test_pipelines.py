"""Laws of pipelines: what is conserved, what is ordered, and what closed forms say."""

import json
from collections import Counter
from functools import cache
from typing import Any

import pytest
from extent import sample
from plans import plan_of, small
from reports import render_files
from steps import PlacementCandidate, StepOnPlacements, planned_step

from tpusim.engine import Timeline
from tpusim.hardware import Slice, candidates, load_chip
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Call, walk_ops
from tpusim.results import Result
from tpusim.simulation import simulate

POD = Slice("v5e", "4x4")
STAGES, MICROBATCHES = 4, 8
MESH = {"stage": STAGES, "fsdp": 2, "tensor": 2}
FLAT = {"data": STAGES, "fsdp": 2, "tensor": 2}
SCHEDULES = {
    "gpipe": {}, "1f1b": {}, "zb-h1": {}, "zb-h2": {},
    "interleaved": {"virtual_stages": 2}, "circular": {},
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tied_embeddings": True, "kv_heads": 1},
    "pattern": {"window": 8, "global_every": 2},
    "cut pattern": {"window": 8, "global_every": 3},
    "shapes": {"window": 8, "global_every": 2, "global_head_dim": 64, "global_kv_heads": 2},
    "experts": {"experts": 4, "experts_per_token": 2, "dense_layers": 3},
    "latent": {"kv_rank": 16, "rope_dim": 8, "v_head_dim": 16},
    "parallel": {"parallel": True, "gated": False, "activation": "gelu", "attention": "dot"},
}
PLANS: dict[str, dict[str, Any]] = {
    "full": {},
    "none": {"remat": "none"},
    "minimal": {"remat": "minimal", "param_dtype": "bf16", "accumulator_dtype": "f32"},
    "tiles": {"vocab_tiles": 2, "optimizer": "sgd"},
}
CASES = [
    (schedule, model, plan)
    for number, schedule in enumerate(SCHEDULES)
    for model, plan in (
        *((model, list(PLANS)[(at + number) % len(PLANS)]) for at, model in enumerate(MODELS)),
        ("plain", "none"),
    )
    if (schedule, model) not in (("circular", "cut pattern"), ("circular", "experts"))
]


each_case = pytest.mark.parametrize(("schedule", "model", "plan"), sample(CASES, every=7))


@cache
def piped(schedule: str, model: str = "plain", plan: str = "full", mesh: str = "piped") -> Result:
    how = {"schedule": schedule, **SCHEDULES[schedule]} if mesh == "piped" else {}
    return simulate(
        small(**{"layers": 8} | MODELS[model]),
        plan_of(
            MESH if mesh == "piped" else FLAT, global_batch=64, microbatches=MICROBATCHES,
            **PLANS[plan], **how,
        ),
        POD,
    )  # fmt: skip


@each_case
def test_stages_share_the_work_of_one_program(schedule: str, model: str, plan: str) -> None:
    staged, flat = piped(schedule, model, plan), piped("1f1b", model, plan, "flat")
    assert staged.flops.model == flat.flops.model
    assert staged.flops.recompute == flat.flops.recompute
    assert len(staged.programs) == (1 if schedule == "circular" else STAGES)


@each_case
def test_stages_compute_as_long_as_one_of_them_alone_would(
    schedule: str, model: str, plan: str
) -> None:
    """To the picosecond: all stages together multiply and attend as one on a fourth of the chips.

    A circular pipeline runs its layers in `m R + p - 1` trips where `m R` are needed.
    """
    lanes, alone = _core(piped(schedule, model, plan)), _core(one_stage(model, plan))
    if schedule != "circular":
        assert lanes == alone
    else:
        trips = MICROBATCHES + STAGES - 1
        assert lanes["attention"] * STAGES * MICROBATCHES == alone["attention"] * trips


def _core(result: Result) -> Counter[str]:
    """Picoseconds of all lanes in matrix products and in kernels."""
    found: Counter[str] = Counter()
    for (label, _), picoseconds in result.timeline.core_ps.items():
        if label in ("matmul", "attention"):
            found[label] += picoseconds
    return found


@cache
def one_stage(model: str, plan: str) -> Result:
    """The whole model on the chips of one stage, a microbatch at a time."""
    return simulate(
        small(**{"layers": 8} | MODELS[model]),
        plan_of(
            {"fsdp": 2, "tensor": 2}, global_batch=64, microbatches=MICROBATCHES, **PLANS[plan]
        ),
        Slice("v5e", "2x2"),
    )


@each_case
def test_a_breakdown_of_stages_sums_to_the_step_and_no_bubble_is_negative(
    schedule: str, model: str, plan: str
) -> None:
    staged = piped(schedule, model, plan)
    assert sum(staged.breakdown_s.values()) == pytest.approx(staged.step_time_s, rel=1e-12)
    assert min(staged.breakdown_s.values()) >= 0
    assert sum(staged.phases_s.values()) == pytest.approx(staged.step_time_s, rel=1e-12)
    assert staged.bubble > 0
    for lane in range(len(staged.programs)):
        core = [r for r in staged.timeline.tasks if r.lane == lane and r.stream == "core"]
        waits = [wait for wait in staged.timeline.waits if wait.lane == lane]
        assert sum(r.total_ps for r in (*core, *waits)) == staged.timeline.total_ps


@each_case
def test_all_that_a_step_takes_it_gives_back(schedule: str, model: str, plan: str) -> None:
    for memory in piped(schedule, model, plan).timeline.memory:
        assert sum(change.bytes * _times(change) for change in memory.changes) == 0


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2"])
def test_a_pass_of_a_ring_and_transfers_alone_takes_what_it_gives_back(schedule: str) -> None:
    """The head's weight pass, where all collectives run beside the core."""
    rules = {"act_residual_seq": "tensor"}
    plan = plan_of(
        {"stage": STAGES, "data": 2, "tensor": 2}, global_batch=64, microbatches=MICROBATCHES,
        schedule=schedule, rules=rules, lowering="ideal", seq_len=512,
    )  # fmt: skip
    staged = simulate(small(layers=8, embed=512, vocab=32000), plan, POD)
    for memory in staged.timeline.memory:
        assert sum(change.bytes * _times(change) for change in memory.changes) == 0


def _times(change: Any) -> int:
    count = 1
    for level in change.repeats:
        count *= level.repeats
    return count


@pytest.mark.parametrize("model", sample(MODELS, every=4))
def test_activations_wait_for_fewer_microbatches_where_backward_passes_come_soon(
    model: str,
) -> None:
    gpipe, soon = (piped(name, model).timeline for name in ("gpipe", "1f1b"))
    pairs = list(zip(gpipe.memory, soon.memory, strict=True))
    assert all(one.peak_bytes >= other.peak_bytes for one, other in pairs)
    saved = [[_saved(m) for m in line.memory] for line in (gpipe, soon)]
    assert saved[0] == [MICROBATCHES * saved[1][-1]] * STAGES
    assert saved[1] == [(STAGES - stage) * saved[1][-1] for stage in range(STAGES)]


def _saved(memory: Any) -> int:
    return int(memory.by_category()["saved activations"])


def test_one_stage_is_no_pipeline() -> None:
    model, mesh = small(layers=4), {"fsdp": 4, "tensor": 4}
    without = simulate(model, plan_of(mesh, microbatches=2), POD)
    one = simulate(model, plan_of({**mesh, "stage": 1}, microbatches=2, schedule="1f1b"), POD)
    assert _bare(one.timeline) == _bare(without.timeline)
    assert one.memory_bytes == without.memory_bytes
    assert one.bubble == 0


def _bare(timeline: Timeline) -> tuple[Any, ...]:
    return timeline.total_ps, timeline.tasks, timeline.waits, timeline.links


def test_folded_stages_take_the_same_time_as_unfolded_ones() -> None:
    model, plan = small(layers=16), plan_of(MESH, global_batch=32, microbatches=4)
    folded, unfolded = (simulate(model, plan, POD, fold=fold) for fold in (True, False))
    assert folded.timeline.total_ps == unfolded.timeline.total_ps
    assert folded.breakdown_s == unfolded.breakdown_s
    assert folded.memory_bytes == unfolded.memory_bytes


BIG = Transformer(layers=64, embed=8192, mlp=32768, heads=64, vocab=128)
LINE = Slice(load_chip("v5e").replace(ici_bandwidth="1 PB/s"), "4x4")


def share(schedule: str, microbatches: int, virtual_stages: int = 1, **changes: Any) -> Result:
    plan = Plan(
        mesh={"stage": 4, "tensor": 4}, seq_len=2048, global_batch=4 * microbatches,
        microbatches=microbatches, schedule=schedule, virtual_stages=virtual_stages,
        optimizer="sgd", param_dtype="bf16", **changes,
    )  # fmt: skip
    return simulate(BIG, plan, LINE)


@pytest.mark.parametrize("microbatches", [4, 16])
@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_bubbles_are_those_of_the_closed_form(
    schedule: str, chunks: int, microbatches: int
) -> None:
    """(p-1) / (v m + p-1) of the step where stages are equal (Narayanan et al., 2104.04473)."""
    found = share(schedule, microbatches, chunks).bubble
    assert found == pytest.approx(3 / (chunks * microbatches + 3), rel=0.01)


@pytest.mark.parametrize(("repeats", "microbatches"), [(1, 4), (2, 8), (4, 4)])
def test_the_idle_trips_of_a_circular_pipeline_are_redundant(
    repeats: int, microbatches: int
) -> None:
    flops = share("circular", microbatches, repeats).flops
    once = share("1f1b", microbatches).flops
    assert once.redundant == 0
    layers = flops.model + flops.recompute - _outside(microbatches)
    rounds = microbatches * repeats
    assert flops.redundant * rounds == layers * 3


def _outside(microbatches: int) -> int:
    """FLOPs of the logits, forward and backward."""
    return 3 * 2 * 4 * microbatches * 2048 * BIG.embed * BIG.vocab


@pytest.mark.parametrize("schedule", ["1f1b", "circular"])
def test_the_placement_of_a_pipeline_is_the_fastest(schedule: str) -> None:
    mesh = {"stage": 2, "fsdp": 4, "tensor": 2}
    model, plan = small(layers=4), plan_of(mesh, microbatches=4, schedule=schedule)
    laid = candidates(POD, mesh)
    times = [simulate(model, plan, POD, placement=way).timeline.total_ps for way in laid]
    step = StepOnPlacements(planned_step(model, plan, POD), POD)
    found = [PlacementCandidate(number, step.on(at)).examine()[0] for number, at in enumerate(laid)]
    assert all(least <= time for least, time in zip(found, times, strict=True))
    assert simulate(model, plan, POD).timeline.total_ps == min(times)


def test_stages_of_several_slices_send_across_dcn() -> None:
    model, mesh = small(layers=8), {"dcn_stage": 2, "stage": 2, "fsdp": 8}
    found = simulate(model, plan_of(mesh, microbatches=4), Slice("v5e", "4x4", 2))
    axes = [
        {send.axes for op in program.body if isinstance(op, Call) for send in op.sends}
        for program in found.programs
    ]
    inside, across = ("stage",), ("dcn_stage",)
    assert axes == [{inside}, {inside, across}, {inside, across}, {inside}]
    assert found.link_use["dcn+"] == found.link_use["dcn-"] > 0


def test_the_norm_of_all_gradients_holds_every_update() -> None:
    found = piped("1f1b")
    norms = [r for r in found.timeline.tasks if r.name == "gradient_norm"]
    updates = [r for r in found.timeline.tasks if r.name.startswith("update/")]
    assert {norm.lane for norm in norms} == set(range(STAGES))
    assert min(update.start_ps for update in updates) > max(norm.end_ps for norm in norms)


def test_tied_embeddings_exchange_their_gradient() -> None:
    programs = piped("1f1b", "tied").programs
    sums = [
        [s.name for s in program.segments if s.name.startswith("sum of both")]
        for program in programs
    ]
    assert [len(names) for names in sums] == [1, 0, 0, 1]


@pytest.mark.thorough
def test_all_files_of_a_report_are_written() -> None:
    found = piped("interleaved")
    files = render_files(found, found)
    assert {name.split(".")[0] for name in files} >= {"trace", "timeline", "torus", "operations"}
    assert all(files.values())
    for stage in range(STAGES):
        assert f"stage {stage} on stage=4" in files["program.txt"].decode()
    told = json.loads(files["result.json"])["pipeline"]
    assert len(told.pop("each")) == STAGES
    assert told == {
        "schedule": "interleaved", "stages": STAGES, "virtual_stages": 2,
        "microbatches": MICROBATCHES, "bubble": found.bubble, "fullest_stage": found.lane,
    }  # fmt: skip
    assert "pipeline    interleaved, 4 stages x 2 parts" in files["summary.txt"].decode()


def test_a_stage_splits_its_backward_pass_where_weights_can_wait() -> None:
    """The bubble of ZB-H1 is (p-1)(F + B - W) where stages are equal (arXiv:2401.10241, 2.2)."""
    found = share("zb-h1", 8)
    took: dict[str, float] = {}
    program = found.programs[1]
    for segment in program.segments:
        names = {op.name for op, _ in walk_ops(segment.body)}
        runs = sum(isinstance(op, Call) and op.segment == segment.name for op in program.body)
        spent = sum(
            r.total_ps for r in (*found.timeline.tasks, *found.timeline.waits)
            if r.lane == 1 and r.name in names and r.stream == "core"
        )  # fmt: skip
        took[segment.name.partition(" of ")[0]] = spent / runs
    expected = 3 * (took["forward"] + took["backward"] - took["weight gradients"])
    assert found.breakdown_s["bubble"] == pytest.approx(expected * 1e-12, rel=0.05)
