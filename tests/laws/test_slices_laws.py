"""Laws of several slices: what another slice adds, and what it leaves as it was."""

from dataclasses import replace
from math import prod

import pytest
from extent import examples
from hypothesis import given
from hypothesis import strategies as st
from plans import any_program_of, flat, partitioned_of, plan_of, small
from reports import memory_levels

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Barrier, Collective, CollectiveKind, Flops, Program, dumps, loads
from tpusim.results import breakdown_ps
from tpusim.simulation import simulate

CHIPS, BATCH = 16, 32
GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
REDUCE = CollectiveKind.ALL_REDUCE
ROWS = "d(embedded)"

meshes = st.sampled_from(
    [{"fsdp": 16}, {"data": 16}, {"data": 4, "fsdp": 4}, {"fsdp": 4, "tensor": 4}, {"tensor": 16}]
)
unsplit = st.sampled_from([{"fsdp": 16}, {"data": 16}, {"data": 4, "fsdp": 4}])
crossings = st.sampled_from(["dcn_data", "dcn_fsdp"])
crossings_and_vocabularies = st.sampled_from(
    [("dcn_data", 32), ("dcn_data", 4096), ("dcn_fsdp", 32)]
)
"""Over `dcn_fsdp`, few rows only: a table that is sharded over slices is always gathered."""
slices = st.sampled_from([2, 4])
models = st.builds(
    small, heads=st.just(16), kv_heads=st.sampled_from([1, 4, 16]), gated=st.booleans(),
    parallel=st.booleans(), tied_embeddings=st.booleans(), layers=st.sampled_from([1, 3]),
)  # fmt: skip
ways = st.fixed_dictionaries({
    "lowering": st.sampled_from(["xla", "ideal"]), "style": st.sampled_from(["plain", "maxtext"]),
    "remat": st.sampled_from(["full", "minimal", "none"]),
})  # fmt: skip
chips = st.sampled_from(["v5e", "v6e"])


def plan(mesh: dict[str, int], batch: int = BATCH, **changes: object) -> Plan:
    return plan_of(mesh, global_batch=batch, **changes)


def collectives(program: Program) -> list[tuple[Collective, int]]:
    """All but the number that the gradients' norm is summed from."""
    return [(op, n) for op, n in flat(program.body)
            if isinstance(op, Collective) and op.scope != "gradient_norm"]  # fmt: skip


def crosses(op: Collective) -> bool:
    return any(axis.startswith("dcn_") for axis in op.axes)


def flops(program: Program) -> Flops:
    found = [(op.flops, n) for op, n in flat(program.body) if hasattr(op, "flops")]
    return Flops(*(sum(n * getattr(each, kind) for each, n in found)
                   for kind in ("model", "recompute", "redundant", "padding")))  # fmt: skip


def reduced_and_gathered(program: Program) -> tuple[float, float]:
    """Bytes of the tensors that a chip reduces within its slice, and of those that it gathers.

    Without the gathers of what a reduction across slices has shared out, and of gradients of rows.
    In a ring of n, n + 1 of n chunks of a weight move. Of a gradient whose shards are left on one
    slice each, all count.
    """
    sizes = dict(program.axes)
    within = [(op, n) for op, n in collectives(program) if not crosses(op)]
    shared = {op.name for op, _ in within
              if op.kind is GATHER and op.scope.startswith("d(") and op.asked}  # fmt: skip
    shared |= {op.name for op, _ in within if moves_rows(op)}
    gathered = 0.0
    for op, n in within:
        if op.kind is GATHER and op.name not in shared:
            scattered = op.scope.startswith("d(") and "scale" not in op.scope
            scattered &= f"@dcn_fsdp@{op.axes[0]}" in op.name
            gathered += n * op.bytes * (sizes["dcn_fsdp"] if scattered else 1)
    reduced = sum(n * op.bytes for op, n in within if op.kind in (SCATTER, REDUCE))
    for op, n in within:
        if op.kind is CollectiveKind.PERMUTE and op.algorithm in ("mesh order", "onward"):
            size = prod(sizes[axis] for axis in op.axes)
            nbytes = n * op.bytes * size / (size + 1)
            reduced += nbytes if op.scope.startswith("d(") else 0
            gathered += 0 if op.scope.startswith("d(") else nbytes
    return reduced, gathered


def moves_rows(op: Collective) -> bool:
    """Return True for a gather, within a slice, of the gradients of the rows of all tokens."""
    return op.kind is GATHER and op.scope == ROWS and {*op.axes} <= {"data", "fsdp"}


def gathered_rows(program: Program) -> float:
    """Bytes of the gradients of a table's rows that a chip gathers within its slice."""
    return sum(n * op.bytes for op, n in collectives(program) if moves_rows(op))


@examples(40)
@given(models, meshes, crossings_and_vocabularies, slices, ways, chips)
def test_another_slice_changes_no_flops_and_no_bytes_within_a_slice(
    model: Transformer, mesh: dict[str, int], crossing: tuple[str, int], n: int,
    way: dict[str, str], chip: str,
) -> None:  # fmt: skip
    """With the same batch a slice. What is communicated in the slice is not divided by n.

    Nor does it matter that weights move in rings where no other slice has the same. The embedding
    has fewer rows than tokens, so that it is gathered, or more, so that its rows are exchanged.
    Their gradients are not, where an axis that does not shard the table shards tokens, as slices
    do: each chip gathers those of all tokens, of all slices (9 of 9 programs of `dcn_data`). A sum
    of whole tables is one all-reduce over `data` x `fsdp`, but before it crosses `dcn_data` it is
    scattered over `fsdp` (`all-reduce.128` of bf16[32000,2048] with `dcn_fsdp`, `reduce-scatter.31`
    of bf16[32000,512] with `dcn_data`, data 4 x fsdp 4, two slices of v5p 2x2x4). That of a tied
    table is reduced twice where axes shard it, as is said at the law of what crosses.
    """
    axis, vocab = crossing
    model = model.replace(vocab=vocab)
    apart = ["reduce-at-once"] if axis == "dcn_data" else []
    given = plan(mesh, without_passes=apart, **way)
    one = any_program_of(model, given, Slice(chip, "4x4"))
    many = any_program_of(model, plan(mesh | {axis: n}, n * BATCH, **way), Slice(chip, "4x4", n))
    rows = BATCH * given.seq_len * 64 * 2
    exchanged = "fsdp" in mesh and vocab > 32 and way["style"] == "plain"
    exchanged &= not model.tied_embeddings
    assert gathered_rows(one) == (rows if exchanged and "data" in mesh else 0)
    assert gathered_rows(many) == (n * rows if exchanged else 0)
    single = flops(one)
    assert flops(many) == Flops(*(n * getattr(single, kind) for kind in
                                  ("model", "recompute", "redundant", "padding")))  # fmt: skip
    reduced, gathered = reduced_and_gathered(one)
    again = model.tied_embeddings and axis == "dcn_fsdp" and mesh == {"data": 16}
    reduced += vocab * 64 * 2 if again else 0
    assert reduced_and_gathered(many) == pytest.approx((reduced, gathered))


@examples(20)
@given(models, meshes, crossings, ways)
def test_an_axis_of_one_slice_changes_nothing(
    model: Transformer, mesh: dict[str, int], axis: str, way: dict[str, str]
) -> None:
    pod = Slice("v5e", "4x4")
    one = any_program_of(model, plan(mesh, **way), pod)
    other = any_program_of(model, plan(mesh | {axis: 1}, **way), pod)
    assert replace(other, axes=one.axes) == one


@examples(40)
@given(models, unsplit, crossings, slices, ways)
def test_what_crosses_is_each_gradient_once(
    model: Transformer, mesh: dict[str, int], axis: str, n: int, way: dict[str, str]
) -> None:
    """2 (n - 1) / n of every gradient leaves a slice, half if it is scattered over slices alone.

    One that is scattered within the slice too crosses as an all-reduce of its shards, which each
    device of the slice sends that has a copy. That of a tied table that axes shard crosses twice:
    the head's term is reduced by itself, one device adds its rows to it, and all terms are reduced
    (`all-reduce.17` and `.18` of bf16[262144,512], data 4 x fsdp 4, v5p 2x2x4; libtpu 0.0.42.1).
    """
    made = plan(mesh | {axis: n}, n * BATCH, **way)
    program = any_program_of(model, made, Slice("v5e", "4x4", n))
    passes = {REDUCE: 2, SCATTER: 1}
    crossing = [(op, times) for op, times in collectives(program)
                if crosses(op) and op.kind in passes]  # fmt: skip
    sent = sum(CHIPS * times * op.bytes * passes[op.kind] * (n - 1) / n for op, times in crossing)
    partitioned = partitioned_of(model, made)
    sizes = {"embed": 64, "mlp": 256, "heads": 16, "kv_heads": model.kv_heads, "head_dim": 32,
             "vocab": 512}  # fmt: skip
    gradients = {w.name: 2 * w.copies * prod(sizes[d] for d in w.local.dims)
                 for w in partitioned.weights}  # fmt: skip
    axes = {w.name: set(sum(w.local.layout, ())) for w in partitioned.weights}
    assert any(axis in each for each in axes.values()) == (axis == "dcn_fsdp")
    times_sent = {name: _times_sent(each, axis, mesh) for name, each in axes.items()}
    times_sent["embedding"] *= 2 if model.tied_embeddings and axes["embedding"] else 1
    assert sent == pytest.approx(
        sum(gradients[name] * times_sent[name] for name in gradients) * (n - 1) / n
    )


def _times_sent(layout: set[str], across: str, mesh: dict[str, int]) -> int:
    """How often a gradient crosses, in both directions of an all-reduce, by its weight's axes."""
    if layout == {across}:
        return 1
    return 2 * CHIPS // prod(mesh[axis] for axis in layout - {across}) if across in layout else 2


@examples(30)
@given(models, meshes, crossings, ways, chips)
def test_no_collective_spans_slices_and_a_slice_and_programs_come_back(
    model: Transformer, mesh: dict[str, int], axis: str, way: dict[str, str], chip: str
) -> None:
    made = plan(mesh | {axis: 2}, 2 * BATCH, **way)
    program = any_program_of(model, made, Slice(chip, "4x4", 2))
    assert all(len({a.startswith("dcn_") for a in op.axes}) == 1 for op, _ in collectives(program))
    assert sum(isinstance(op, Barrier) for op in program.body) == 1
    assert loads(dumps(program)) == program
    names = [op.name for op, _ in flat(program.body)]
    assert len(names) == len(set(names))
    assert all(dep.op in names for op, _ in flat(program.body) for dep in op.deps)


@examples(40)
@given(models, meshes, crossings, ways, chips, st.booleans())
def test_what_is_in_flight_is_held_and_given_back(
    model: Transformer, mesh: dict[str, int], axis: str, way: dict[str, str], chip: str,
    on_embed: bool,
) -> None:  # fmt: skip
    """Over time, not in program order: a shard lives until it has crossed. Folding changes none."""
    rules = {"act_embed": [*mesh][-1], "embed": [*mesh][-1]} if on_embed else {}
    made, pod = plan(mesh | {axis: 2}, 2 * BATCH, rules=rules, **way), Slice(chip, "4x4", 2)
    result = simulate(model, made, pod)
    levels = [level for _, level in memory_levels(result)]
    assert min(levels) == levels[0] == levels[-1]
    unfolded = simulate(model, made, pod, fold=False)
    assert unfolded.timeline.total_ps == result.timeline.total_ps
    assert unfolded.hbm_peak_bytes == result.hbm_peak_bytes
    assert breakdown_ps(unfolded.timeline) == breakdown_ps(result.timeline)
