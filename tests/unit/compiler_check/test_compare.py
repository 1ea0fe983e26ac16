"""A plan beside a compiled program: what is equal, what differs, and what sums to the totals."""

import json
from dataclasses import replace

import pytest
from compiler_parts import ComparedCollective, Difference
from twins import MESHES, as_program, compared, is_named, lines_of, place, planned, replayed

from tpusim.base import Phase
from tpusim.compiler_check import TwinComparison, compare
from tpusim.program import Collective, CollectiveKind, Compute, Mode, Single

KINDS = sorted(MESHES)


def gathers_synchronously(op: Single) -> Single:
    """Let the core wait for the forward gather of wo_mlp, which the plan prefetches."""
    chosen = is_named(op, r"^all-gather/layer/wo_mlp@fsdp$")
    return replace(op, mode=Mode.SYNC) if chosen and isinstance(op, Collective) else op


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_agrees_with_itself(kind: str) -> None:
    found = compared(kind)
    assert found.error == 0
    assert found.same_mode_share == pytest.approx(1, abs=1e-12)
    assert found.same_algorithm_share == pytest.approx(1, abs=1e-12)
    assert found.verdict.startswith("the compiler agrees within 1 % on the step")
    for row in found.collectives:
        assert row.plan is not None, row
        assert row.program is not None, row
        assert row.wire_bytes[0] == pytest.approx(row.wire_bytes[1], rel=1e-9), row
        assert row.exposed_s[1] == pytest.approx(mean_of_uses(found, row), abs=1e-9), row
    rings = [each for each in found.differences if each.topic.startswith("rings over")]
    assert sum(each.seconds for each in rings) == pytest.approx(0, abs=1e-9)
    for difference in found.differences:
        assert difference in rings or difference.seconds == pytest.approx(0, abs=1e-9), difference
    for flops in found.flops:
        assert flops.plan == flops.program


def mean_of_uses(found: TwinComparison, row: ComparedCollective) -> float:
    """The plan's time in `row`, or the mean of both uses that share the program's rings.

    The gather and the scatter of a weight in rings have the same line in the program, which is
    attributed to each by halves.
    """
    uses = [row]
    if row.program and row.program.mode == Mode.RING:
        shared = row.program.operations
        uses = [
            each for each in found.collectives if each.program and each.program.operations == shared
        ]
    assert len(uses) <= 2
    return sum(each.exposed_s[0] for each in uses) / len(uses)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changed", [False, True])
def test_the_parts_sum_to_the_totals(kind: str, changed: bool) -> None:
    found = compared(kind, gathers_synchronously) if changed else compared(kind)
    for side in ("plan", "program"):
        step = getattr(found, f"{side}_step_s")
        differences = (getattr(row, f"{side}_s") for row in found.differences)
        assert sum(differences) == pytest.approx(step, rel=1e-9)
        for rows, whole in (
            (found.times, "step_s"), (found.flops, "flops"), (found.memory, "hbm_bytes"),
        ):  # fmt: skip
            total = sum(getattr(row, side) for row in rows)
            assert total == pytest.approx(getattr(found, f"{side}_{whole}"), rel=1e-9)


def test_a_collective_that_the_program_does_otherwise_is_found_and_ranked_first() -> None:
    found = compared("asynchronous", gathers_synchronously)
    first = found.differences[0]
    assert (first.what, first.when) == ("wo_mlp", "forward")
    assert first.words.startswith(
        "the plan gathers it asynchronously (fsdp, 768 KiB); the program gathers it while the core"
        " waits; exposed "
    )
    assert first.seconds < 0
    assert first.plan_operations == first.program_operations == ("all-gather/layer/wo_mlp@fsdp",)
    assert found.plan_step_s < found.program_step_s


def test_its_bytes_are_those_that_are_not_in_the_same_mode() -> None:
    found = compared("asynchronous", gathers_synchronously)
    wire = 2 * 3 / 4 * 2 * 512 * 2048 / 4
    total = sum(sum(row.wire_bytes) for row in found.collectives)
    assert found.same_mode_share == pytest.approx(1 - 2 * wire / total, rel=1e-9)
    assert found.same_algorithm_share == pytest.approx(1, abs=1e-9)


def test_the_verdict_says_how_far_off_the_plan_is_and_why() -> None:
    program = as_program(planned("tensor"), drops_reductions)
    found = compare(planned("tensor"), program, lines_of(planned("tensor")))
    assert not found.agrees
    slower = f"{found.error:.0%}".replace("%", " %")
    assert found.verdict.startswith(f"the plan is {slower} too slow (plan ")
    assert ", mostly because of synchronous collectives over tensor (" in found.verdict
    fast = replace(found, plan_step_s=0.5 * found.program_step_s, differences=())
    assert fast.verdict.startswith("the plan is 50 % too fast (plan ")


def test_the_reason_is_the_topic_that_adds_most_not_the_largest_row() -> None:
    def row(what: str, topic: str, plan_s: float, program_s: float) -> Difference:
        words = f"{what} differs"
        return Difference(
            what=what, topic=topic, when="", plan_s=plan_s, program_s=program_s, words=words
        )

    rows = (
        row("matmul", "work", 5.0, 2.0),
        row("wq", "rings over fsdp", 3.0, 1.0),
        row("wk", "rings over fsdp", 2.5, 1.0),
        row("dma", "waits", 0.0, 9.0),
    )
    slow = replace(compared("rings"), plan_step_s=1.5, program_step_s=1.0, differences=rows)
    assert slow.reason == "rings over fsdp (5.5 s against 2 s); wq: wq differs"
    fast = replace(slow, plan_step_s=0.5)
    assert fast.reason == "dma: dma differs"
    assert fast.verdict.startswith("the plan is 50 % too fast")
    assert replace(fast, differences=rows[:1]).reason == ""


def drops_reductions(op: Single) -> Single:
    """Reduce a hundredth of the activations."""
    small = isinstance(op, Collective) and op.axes == ("tensor",) and not op.parts
    return replace(op, bytes=op.bytes / 100) if small and isinstance(op, Collective) else op


def test_merged_gradients_are_listed_under_their_weights() -> None:
    rows = {(row.what, row.when, row.axes): row for row in compared("merged").collectives}
    for weight, elements in {"layer/wq": 512 * 512, "layer/wi_0": 512 * 2048}.items():
        row = rows[weight, "gradient", ("data",)]
        each_layer = 2 * 3 / 4 * 2 * elements / 4
        assert row.wire_bytes == pytest.approx((2 * each_layer, 2 * each_layer), rel=1e-9)
    merged = rows["layer/wi_0", "gradient", ("data",)]
    assert merged.program is not None
    assert "(+" in merged.program.operations[0]


def test_an_operation_without_a_line_has_the_line_that_calls_it() -> None:
    """As of a norm, which is a function of its own in the exported file."""
    plan = planned("asynchronous")

    def in_a_function(op: Single) -> Single:
        if isinstance(op, Compute | Collective) and op.source:
            return replace(op, source="step.py:7", callers=(op.source, "step.py:9"))
        return op

    found = compare(plan, as_program(plan, in_a_function), lines_of(plan))
    assert found.collectives == compared("asynchronous").collectives


def test_lines_of_other_files_mean_nothing() -> None:
    plan = planned("asynchronous")
    at = place(plan, "layer/wq")

    def of_a_package(op: Single) -> Single:
        product = isinstance(op, Compute) and op.source == at and op.phase is Phase.FORWARD
        return replace(op, source=at.replace("step.py", "kernel.py")) if product else op

    found = compare(plan, as_program(plan, of_a_package), lines_of(plan))
    (work,) = (
        row
        for row in found.times
        if row.what == "matmul and vector work" and row.phase is Phase.FORWARD
    )
    (query,) = (each for each in work.parts if each.what == "layer/wq")
    assert query.plan > 0
    assert query.program == 0


def test_embedding_is_one_item_whatever_is_moved_for_it() -> None:
    found = compared("asynchronous", exchanges_rows)
    (item,) = (row for row in found.differences if row.what == "embedding")
    plan, program, _ = item.words.split("; ")
    assert "gathers (fsdp, 768 KiB) forward" in plan
    assert "exchanges (fsdp, 768 KiB) forward" in program
    assert {row.what for row in found.collectives if "embed" in row.what} == {"embedding"}


def exchanges_rows(op: Single) -> Single:
    """Exchange rows of the table, as compiled programs do, instead of gathering it."""
    if is_named(op, r"^all-gather/embedding@fsdp$") and isinstance(op, Collective):
        return replace(op, kind=CollectiveKind.ALL_TO_ALL, algorithm="")
    return op


def test_facts_have_the_totals_and_are_plain() -> None:
    found = compared("rings")
    facts = json.loads(json.dumps(found.facts()))
    for key in ("step_s", "flops", "hbm_bytes"):
        for side in ("plan", "program"):
            assert facts[f"{side}_{key}"] == getattr(found, f"{side}_{key}")
    assert facts["same_mode_share"] == pytest.approx(1)
    assert len(facts["differences"]) == len(found.differences)
    assert len(facts["collectives"]) == len(found.collectives)


def test_it_prints_what_a_user_reads() -> None:
    text = str(compared("asynchronous", gathers_synchronously))
    first, *rest = text.splitlines()
    assert first.startswith("check       the ")
    assert max(map(len, rest)) <= 100
    for head in ("where the step goes", "FLOPs", "HBM peak", "collectives", "differences"):
        assert any(line.startswith(head) for line in rest), head
    assert "wo_mlp, forward: the plan gathers it asynchronously" in text


def test_work_is_compared_by_pass() -> None:
    found = compared("rings")
    assert [row.phase for row in found.flops] == [Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD]
    work = {row.phase: row for row in found.times if row.what == "matmul and vector work"}
    assert set(work) == set(Phase)
    assert work[Phase.FORWARD].plan == pytest.approx(work[Phase.FORWARD].program)


def test_an_empty_program_is_compared_too() -> None:
    plan = planned("tensor")
    program = replace(plan.program, body=plan.program.body[:3])
    found = compare(plan, replayed(program, plan), {})
    assert isinstance(found, TwinComparison)
    assert found.same_mode_share < 0.2
