"""Passes of the lowering: switches, the record of what each did, and overlap as data."""

from dataclasses import replace
from itertools import pairwise

import pytest
from lowered import TABLE, Lowering, Overlap, lowering_for
from plans import ENCODER_480B, PLAN_480B, loop, plan_of, program_of, small, v4_2048

from tpusim.base import PlanError
from tpusim.frames import choices_of
from tpusim.hardware import Slice, placements
from tpusim.lowering import all_passes, asked_place, borrowed_notes, lowering_evidence
from tpusim.program import Collective, CollectiveKind, Dep, Mode, Program
from tpusim.simulation import simulate
from tpusim.simulation.explain_passes import PassTable, explain_passes

OPTIONAL = [each.name for each in all_passes() if each.optional]
POD = Slice("v5e", "4x8")
WEIGHTS = [f"layer/{name}" for name in ("wq", "wk", "wv", "wo", "wi_0", "wi_1", "wo_mlp")]
"""In the order in which a layer reads them."""


def table(**changes: object) -> PassTable:
    plan = plan_of({"fsdp": 32}, global_batch=64, style="maxtext", **changes)
    return explain_passes(simulate(small(layers=2), plan, POD))


def test_each_pass_has_a_name_of_its_own_and_says_what_it_does() -> None:
    passes = list(all_passes())
    assert len({each.name for each in passes}) == len(passes)
    assert all(each.does and each.when for each in passes)


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_pass_that_is_switched_off_does_nothing_and_is_said_to_be_off(name: str) -> None:
    (row,) = (row for row in table(without_passes=[name]).rows if row.name == name)
    assert (row.off, row.bodies) == (True, ())


def test_prefetching_hides_gathers() -> None:
    plan = plan_of({"fsdp": 32}, global_batch=64, style="maxtext")
    model = small(layers=2)
    hidden = simulate(model, plan, POD)
    waited = simulate(model, plan.replace(without_passes=["prefetch"]), POD)
    rows = {row.name: row for row in explain_passes(hidden).rows}
    assert rows["prefetch"].bodies == ("layers", "layers/d")
    assert waited.step_time_s != hidden.step_time_s


def test_the_encoder_is_regathered_in_its_backward_pass_only() -> None:
    plan = replace(PLAN_480B, placement=None)
    result = simulate(ENCODER_480B, plan, v4_2048())
    rows = {row.name: row for row in explain_passes(result).rows}
    assert rows["regather"].bodies == ("layers/d",)
    assert str(explain_passes(result)).startswith("passes      ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("prefech", "'prefech': did you mean 'prefetch'"),
        ("insert-casts", "the plan's own keys decide that pass"),
    ],
)
def test_a_pass_that_cannot_be_switched_off_is_refused(name: str, message: str) -> None:
    plan = plan_of({"fsdp": 32}, global_batch=64, without_passes=[name])
    with pytest.raises(PlanError, match=message):
        simulate(small(), plan, POD)


def test_observed_switches_off_every_pass_and_line_without_a_published_run() -> None:
    observed = [each.name for each in all_passes() if each.observed]
    rows = {row.name: row for row in table(without_passes=["observed"]).rows}
    assert [name for name, row in rows.items() if row.off] == observed
    pod = Slice("v5e", "16x16")
    plan = plan_of({"fsdp": 256}, global_batch=256, seq_len=128)
    placement = placements(pod, plan.mesh)[0]
    (seen,) = lowering_evidence(choices_of(plan), pod, placement, [("fsdp",)])
    without = plan.replace(without_passes=["observed"])
    (other,) = lowering_evidence(choices_of(without), pod, placement, [("fsdp",)])
    assert (seen.line.observed, other.line.observed) == (True, False)


def test_evidence_has_the_lowerings_that_a_group_may_have_in_other_places() -> None:
    """Four chips of a cube lie on one dimension or on two, all of it in one way."""
    pod = Slice("7x", "4x4x4")
    for devices, line, others in (
        (8, "SparseCore", ("SparseCore gathers as all-reduces",)),
        (128, "SparseCore gathers as all-reduces", ()),
    ):
        plan = plan_of({"data": 128 // devices, "fsdp": devices}, global_batch=128)
        placement = placements(pod, plan.mesh)[0]
        (seen,) = lowering_evidence(choices_of(plan), pod, placement, [("fsdp",)])
        assert (seen.line.lowering.name, seen.elsewhere) == (line, others)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_gather_waits_for_the_one_as_many_before_it_as_the_depth(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The depth of prefetching is data: gathers ahead of the matmul that reads them."""

    def deeper(*group: object) -> Lowering:
        low = lowering_for(*group)  # type: ignore[arg-type]
        return replace(low, overlap=Overlap(prefetch_depth=depth))

    monkeypatch.setattr(asked_place, "lowering_for", deeper)
    plan = plan_of({"fsdp": 32}, global_batch=64, style="maxtext")
    program: Program = program_of(small(layers=2), plan, POD)
    body = loop(program.body, "layers").body
    gathers = {
        op.name: op
        for op in body
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_GATHER
    }
    names = sorted(gathers, key=lambda name: WEIGHTS.index(gathers[name].scope))
    asynchronous = [op for op in gathers.values() if op.mode is Mode.ASYNC]
    assert asynchronous
    for op in asynchronous:
        before = names.index(op.name) - depth
        waits = {dep.op for dep in op.deps} & set(names)
        assert waits == ({names[before]} if before >= 0 else set())


def test_no_generation_takes_another_ones_habits_in_silence() -> None:
    plan = plan_of({"fsdp": 32}, global_batch=32, seq_len=128, style="maxtext")
    pod = Slice("v3", "4x4")
    (note,) = borrowed_notes(choices_of(plan), pod, placements(pod, plan.mesh)[0], [("fsdp",)])
    assert note.startswith("no maxtext program compiled for v3 shows how collectives over fsdp run")
    for generation, lines in TABLE.items():
        for line, following in pairwise(lines):
            assert line != following
        styles = [line.style for line in lines]
        assert None in styles or {"plain", "maxtext"} <= set(styles), generation


def test_the_dependencies_of_a_depth_of_one_are_those_of_the_gather_before() -> None:
    plan = plan_of({"fsdp": 32}, global_batch=64, style="maxtext")
    body = loop(program_of(small(layers=2), plan, POD).body, "layers").body
    found = [op for op in body if isinstance(op, Collective) and op.mode is Mode.ASYNC]
    assert all(Dep(first.name) in second.deps for first, second in pairwise(found))
