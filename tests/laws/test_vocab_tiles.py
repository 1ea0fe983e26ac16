"""A loss in tiles: the same step with less of the logits in memory, and what that costs."""

from collections import Counter
from functools import cache

import pytest
from plans import (
    any_program_of,
    calcs,
    flat,
    graph_of,
    holders,
    loop,
    partitioned_of,
    plan_of,
    small,
)

from tpusim.base import Phase
from tpusim.graph import VOCAB_TILES
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Compute, MatmulWork, Op, Program
from tpusim.results import Result
from tpusim.simulation import simulate

COUNTS = (2, 4, 16)
POD = Slice("v5p", "2x2x4")
MODEL = small(embed=256, mlp=512, vocab=64000)
TIED = small(embed=256, mlp=512, vocab=64000, tied_embeddings=True)
PLANS = (
    plan_of({"fsdp": 16}, seq_len=1024),
    plan_of({"data": 4, "tensor": 4}, seq_len=1024),
    plan_of({"fsdp": 4, "tensor": 4}, seq_len=1024, style="maxtext"),
    plan_of({"fsdp": 4, "tensor": 4}, seq_len=1024, rules={"act_embed": "tensor"}),
    plan_of({"fsdp": 4, "context": 4}, seq_len=1024),
    plan_of({"fsdp": 16}, seq_len=1024, microbatches=2),
    plan_of({"fsdp": 16}, seq_len=1024, lowering="ideal"),
    plan_of({"fsdp": 16}, seq_len=1024, remat="none"),
)
REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


def tiled(plan: Plan, count: int, **changes: object) -> Plan:
    return plan.replace(**changes, vocab_tiles=count)


@cache
def step(place: int, count: int, model: Transformer = MODEL) -> Result:
    return simulate(model, tiled(PLANS[place], count), POD)


def computed(body: tuple[Op, ...], scope: str) -> list[tuple[Compute, int]]:
    return [(op, n) for op, n in flat(body) if isinstance(op, Compute) and op.scope == scope]


def moved(program: Program, scope: str) -> Counter[str]:
    """How often a step communicates a tensor, by kind of collective."""
    found: Counter[str] = Counter()
    for op, n in flat(program.body):
        if isinstance(op, Collective) and op.scope == scope:
            found[op.kind] += n
    return found


def waits_ps(result: Result) -> int:
    """Picoseconds before the norm of the gradients in which the core waits for collectives."""
    (norm,) = [task for task in result.timeline.tasks if task.name == "gradient_norm"]
    ends = [
        task.end_ps + sum((level.repeats - 1) * level.period_ps for level in task.repeats)
        for task in result.timeline.tasks
        if task.stream == "core"
    ]
    return norm.start_ps - max(end for end in ends if end <= norm.start_ps)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("place", range(len(PLANS)))
def test_a_tile_costs_one_more_logits_matmul(place: int, count: int) -> None:
    """Its FLOPs are computed again and no model FLOPs; its time comes on top of the step's.

    Less the end of the ring of the head's gradient, for which only a step without tiles may wait.
    """
    whole, parts = step(place, 1), step(place, count)
    before, after = whole.flops, parts.flops
    logits = 2 * PLANS[place].global_batch * 1024 * MODEL.embed * MODEL.vocab
    assert after.recompute - before.recompute == logits
    assert (after.model, after.redundant, after.padding) == (
        before.model, before.redundant, before.padding,
    )  # fmt: skip
    (once,) = [t for t in whole.timeline.tasks if t.name == "logits"]
    again_ps = once.duration_ps - waits_ps(whole)
    assert parts.step_time_s >= whole.step_time_s + again_ps * 1e-12


@pytest.mark.parametrize("place", range(len(PLANS)))
def test_logits_shrink_with_the_tiles_and_so_does_the_peak(place: int) -> None:
    results = [step(place, count) for count in (1, *COUNTS)]
    taken = [
        {a.bytes for op, _ in holders(r.program.body) for a in op.allocs if a.tensor == "logits"}
        for r in results
    ]
    (whole,) = taken[0]
    assert taken == [{whole / count} for count in (1, *COUNTS)]
    peaks = [result.hbm_peak_bytes for result in results]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0]


@pytest.mark.parametrize("count", COUNTS)
def test_a_tile_runs_what_a_shorter_sequence_would(count: int) -> None:
    plan = PLANS[0].replace(style="maxtext")
    short = any_program_of(MODEL, tiled(plan, 1, seq_len=1024 // count), POD)
    body = any_program_of(MODEL, tiled(plan, count), POD).body
    for scope in ("final_norm", "logits", "loss"):
        ((tile, trips),) = computed((loop(body, VOCAB_TILES),), scope)
        (alone, _), *_ = computed(short.body, scope)
        assert tile.work == alone.work
        assert trips == count


@pytest.mark.parametrize("place", range(len(PLANS)))
def test_maxtext_gathers_the_head_once_and_reduces_its_gradient_once(place: int) -> None:
    """A microbatch, whatever the number of tiles."""
    plan = PLANS[place].replace(style="maxtext")
    for scope in ("head", "d(head)"):
        one, many = (
            moved(any_program_of(MODEL, tiled(plan, n), POD), scope) for n in (2, 8)
        )  # fmt: skip
        assert one == many
        assert many.total() in (0, plan.microbatches)
    program = any_program_of(MODEL, tiled(PLANS[0], 8, style="maxtext"), POD)
    gathers, reductions = moved(program, "head"), moved(program, "d(head)")
    assert gathers == {CollectiveKind.ALL_GATHER: 1}
    assert reductions.total() == sum(reductions[kind] for kind in REDUCTIONS) == 1


@pytest.mark.parametrize("place", [0, 3, 4, 5])
def test_elsewhere_each_tile_gathers_the_head_and_scatters_its_term(place: int) -> None:
    """Once forward and once backward, and what is added up over the tiles is the shard."""
    plan = PLANS[place].replace(collective_matmul=False)
    for count in COUNTS:
        program = any_program_of(MODEL, tiled(plan, count), POD)
        tiles = count * plan.microbatches
        assert moved(program, "head") == {CollectiveKind.ALL_GATHER: 2 * tiles}
        assert moved(program, "d(head)") == {CollectiveKind.REDUCE_SCATTER: tiles}
        held = {a.bytes for op, _ in flat(program.body) for a in op.allocs if a.tensor == "d(head)"}
        assert held == {2 * MODEL.embed * MODEL.vocab / 16}


@pytest.mark.parametrize("mesh", [{"data": 16}, {"data": 4, "tensor": 4}, {"data": 4, "fsdp": 4}])
def test_an_all_reduce_of_the_terms_waits_for_the_last_tile(mesh: dict[str, int]) -> None:
    """As XLA moves it behind the loop, but no reduce-scatter."""
    program = any_program_of(MODEL, tiled(plan_of(mesh, seq_len=1024), 4), POD)
    scattered = {CollectiveKind.REDUCE_SCATTER: 4} if "fsdp" in mesh else {}
    assert moved(program, "d(head)") == {CollectiveKind.ALL_REDUCE: 1, **scattered}


def test_a_ring_in_a_tile_holds_its_logits_and_their_gradient() -> None:
    """Two tensors of a tile and the gathered head; without a ring the gradient is fused."""
    for rings, tensors in ((True, 2), (False, 1)):
        plan = tiled(PLANS[0], 2, collective_matmul=rings)
        held = [a for op, _ in flat(any_program_of(MODEL, plan, POD).body) for a in op.allocs]
        of_loss = {a.tensor for a in held if a.tensor in ("bwd/logits", "bwd/d(logits)")}
        assert len(of_loss) == tensors


def test_the_sum_over_maxtext_s_tiles_is_read_and_written_by_each() -> None:
    """In the dtype in which weights are stored, unreduced; and reduced in it."""
    for dtype, item in (("f32", 4), ("bf16", 2)):
        plan = tiled(PLANS[0], 4, param_dtype=dtype, style="maxtext")
        program = any_program_of(MODEL, plan, POD)
        elements = MODEL.embed * MODEL.vocab
        ((zeros, _),) = computed(program.body, "d(head)/zeros")
        (total,) = (alloc for alloc in zeros.allocs if alloc.tensor == "d(head)")
        assert (total.bytes, total.category) == (item * elements, "unreduced gradients")
        ((product, trips),) = computed(program.body, "logits/dw")
        assert isinstance(product.work, MatmulWork)
        tokens = 2 * 1024 / 4
        operands = 2 * tokens * (MODEL.embed + MODEL.vocab)
        assert product.work.read_bytes == operands + item * elements
        assert product.work.write_bytes == item * elements
        assert trips == 4
        (reduced,) = (
            op for op, _ in flat(program.body) if isinstance(op, Collective)
            and op.scope == "d(head)" and op.kind in REDUCTIONS
        )  # fmt: skip
        assert (reduced.bytes, reduced.dtype) == (item * elements, dtype)


@pytest.mark.parametrize("place", range(len(PLANS)))
def test_a_tied_table_has_two_shares_of_its_gradient(place: int) -> None:
    """The lookup's and the tiles'; no weight is lost, and the step costs one more matmul still."""
    plan = tiled(PLANS[place], 4)
    graph = graph_of(TIED, plan)
    assert graph.parameter_count == TIED.parameter_count
    assert len(graph.gradients) == len(graph.parameters)
    (both,) = (c for c, _ in calcs(partitioned_of(TIED, plan)) if c.op.name == "embedding/dsum")
    assert len(both.reads) == 2
    whole, parts = step(place, 1, TIED), step(place, 4, TIED)
    logits = 2 * plan.global_batch * 1024 * TIED.embed * TIED.vocab
    assert parts.flops.recompute - whole.flops.recompute == logits


def test_both_shares_of_a_tied_table_are_added_up_before_they_are_reduced() -> None:
    """Once, in the dtype of the tiles' sum; until then the sum is held unreduced."""
    program = any_program_of(TIED, tiled(PLANS[0], 4, style="maxtext"), POD)
    (reduced,) = (
        op for op, _ in flat(program.body)
        if isinstance(op, Collective) and op.scope.startswith("d(embedding)")
    )  # fmt: skip
    assert reduced.kind in REDUCTIONS
    assert (reduced.bytes, reduced.dtype) == (4 * TIED.embed * TIED.vocab, "f32")
    ((both, _),) = computed(program.body, "embedding/dsum")
    lookup, tiles, total = (item * TIED.embed * TIED.vocab for item in (2, 4, 4))
    assert (both.work.read_bytes, both.work.write_bytes) == (lookup + tiles, total)


def test_logits_wait_for_the_head_that_all_tiles_share() -> None:
    """Its gather may be under way beside the core when the loop over the tiles begins."""
    result = step(6, 4)
    gather = next(
        task for task in result.timeline.tasks
        if "gather" in task.name and task.name.endswith("/head@fsdp")
    )  # fmt: skip
    logits = next(task for task in result.timeline.tasks if task.name == "logits")
    assert logits.start_ps >= gather.end_ps


@pytest.mark.parametrize("place", range(len(PLANS)))
def test_the_policy_of_the_layers_leaves_the_tiles_alone(place: int) -> None:
    again = {
        op.scope
        for op, _ in flat(step(place, 4).program.body)
        if isinstance(op, Compute) and op.phase is Phase.RECOMPUTE
    }
    assert {"final_norm", "logits"} <= again


def test_a_tile_lies_as_the_tensor_that_it_is_a_part_of() -> None:
    """Also where an annotation says how, and the tokens are cut in two dimensions."""
    plan = tiled(
        PLANS[2], 4096, annotate={"layers_out": (("fsdp",), ("tensor",), None)}, style="plain"
    )
    layouts = partitioned_of(MODEL, plan).layouts
    assert layouts["tile/layers_out"] == layouts["layers_out"] == (("fsdp",), ("tensor",), ())
    assert layouts["tile/ids"] == layouts["ids"]
    assert {"batch/4", "seq/1024"} <= graph_of(MODEL, plan).sizes.keys()
