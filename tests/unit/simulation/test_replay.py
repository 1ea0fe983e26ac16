"""Results of compiled programs: what is known of them, and what is not made up."""

from dataclasses import replace

import pytest
from replays import ORIGIN, POD, PROGRAM, UNKNOWN, placed, small_replay
from steps import choose_costs, replay_program

from tpusim.base import PlanError
from tpusim.program import Loop
from tpusim.report import document
from tpusim.results import UnknownOperation

FLOPS = 6 * 2 * 3 * 2 * 2048 * 4096 * 4096 * 16
"""Of all products: trips, products of a layer, passes."""


def test_hfu_counts_all_that_is_multiplied() -> None:
    result = small_replay()
    assert result.flops.total == FLOPS
    assert result.flops.recompute == FLOPS / 3
    assert result.hfu == pytest.approx(FLOPS / 16 / 197e12 / result.step_time_s)


def test_mfu_is_never_made_up() -> None:
    result = small_replay()
    assert result.mfu is None
    assert document(result)["mfu"] is None
    assert "MFU is not known" in str(result)
    assert not any(line.startswith("MFU ") for line in str(result).splitlines())


def test_mfu_is_of_the_flops_that_are_given() -> None:
    result = small_replay(model_flops=FLOPS * 2 / 3)
    assert result.mfu == pytest.approx(result.hfu * 2 / 3)
    assert document(result)["mfu"] == result.mfu
    assert "MFU is not known" not in str(result)
    assert "MFU 0.0%" in small_replay(model_flops=0).rates


def test_an_hfu_below_the_mfu_is_explained() -> None:
    def said(flops: float, **given: object) -> str:
        return " ".join(str(small_replay(model_flops=flops, **given)).split())

    fewer = "HFU is below MFU: the compiled program executes 20.0% fewer matrix FLOPs"
    assert fewer in said(FLOPS * 1.25, unknown={})
    assert "HFU is below MFU" not in said(FLOPS * 1.001, unknown={})
    assert "HFU is below MFU" not in said(FLOPS * 1.25)
    assert "HFU does not count the matrix FLOPs of what is not understood" in said(FLOPS * 1.25)


def test_redundant_work_is_named_with_its_lines() -> None:
    """A third of the FLOPs is recomputation, which is no redundancy."""

    def said(flops: float) -> str:
        return " ".join(str(small_replay(model_flops=flops)).split())

    note = "the compiled program executes 3.7 times the model's FLOPs, of which recomputation is"
    assert f"{note} 1.2:" in said(FLOPS / 3.7)
    assert "Most are in model.py:12 (50%), model.py:13 (50%)" in said(FLOPS / 3.7)
    assert "times the model's FLOPs, of which" not in said(FLOPS * 2 / 3)
    assert "times the model's FLOPs, of which" not in said(FLOPS * 2 / 3 / 1.49)


def test_folding_does_not_show() -> None:
    one, other = small_replay(), small_replay(fold=False)
    assert one.timeline.total_ps == other.timeline.total_ps
    assert (one.breakdown_s, one.unknown) == (other.breakdown_s, other.unknown)
    assert str(one) == str(other)


def test_loops_of_a_billion_trips_are_folded_or_refused() -> None:
    loop = next(op for op in PROGRAM.body if isinstance(op, Loop))

    def step(trips: int, fold: bool = True) -> float:
        long = replace(PROGRAM, body=(replace(loop, trips=trips),))
        return replay_program(long, POD, placed(), origin=ORIGIN, fold=fold).step_time_s

    assert step(10**9) == pytest.approx(step(1000) * 10**6)
    with pytest.raises(PlanError, match=r"operations when each iteration .* leave out --no-fold"):
        step(10**9, fold=False)


def test_a_program_that_does_nothing_has_no_step() -> None:
    with pytest.raises(PlanError, match=r"has no operation that takes time \(parameters, "):
        replay_program(replace(PROGRAM, body=()), POD, placed(), origin=ORIGIN)


def test_what_is_not_understood_has_its_share_of_the_step() -> None:
    result = small_replay()
    (record,) = [task for task in result.timeline.tasks if task.name == UNKNOWN]
    assert result.unknown == (UnknownOperation(UNKNOWN, "no such kernel", record.total_ps),)
    assert result.unknown_share == record.total_ps / result.timeline.total_ps
    assert f"unknown     {result.unknown_share:.2%} of the step" in str(result)
    assert "custom-call.9 4.23 µs (no such kernel)" in str(result)
    clear = small_replay(unknown={})
    assert clear.unknown_share == 0
    assert "unknown     nothing" in str(clear)


def test_the_compiler_knows_best_what_hbm_holds() -> None:
    """Its report is the need; without one it is the heap of the schedule."""
    assert set(small_replay().memory_bytes) == {"arguments", "heap"}
    held = {"arguments": 600.0, "heap": 30.0 * 2**30}
    result = small_replay(held=held, origin=replace(ORIGIN, memory="the compiler's report"))
    assert result.hbm_peak_bytes == sum(held.values())
    assert not result.fits
    assert str(result).startswith("DOES NOT FIT")
    assert document(result)["replay"]["memory_from"] == "the compiler's report"


def test_the_level_of_hbm_reaches_the_need() -> None:
    from reports import memory_levels

    for held in (None, {"arguments": 512.0 * 2**20, "heap": 40.0 * 2**20}):
        result = small_replay(held=held)
        assert max(level for _, level in memory_levels(result)) == result.hbm_peak_bytes


def test_the_summary_says_what_ran_and_whose_seconds() -> None:
    lines = str(small_replay(remarks=("the second branch of cond.3 is the costlier",))).splitlines()
    assert lines[0] == "train_step on v5e:4x4 (16 chips)"
    at = lines.index("program     train_step, compiled by jax 0.10.2, libtpu 0.0.42.1 in 12.5 s")
    flagged = replace(small_replay().origin, flags=("--xla_a=1",))
    assert (
        str(flagged)
        == "train_step, compiled by jax 0.10.2, libtpu 0.0.42.1 in 12.5 s with --xla_a=1"
    )
    assert lines[at + 1] == "placement   fsdp=4 on x · tensor=4 on y"
    assert lines[at + 2].startswith("costs       model: ")
    assert "note        the second branch of cond.3 is the costlier" in lines
    assert max(map(len, lines)) <= 100


def test_costs_that_there_are_not() -> None:
    with pytest.raises(PlanError, match=r"costs is 'compilr': .*compiler"):
        choose_costs("compilr")


def test_operations_have_the_names_of_the_users_code() -> None:
    result = small_replay()
    loop = PROGRAM.body[0]
    names = [result.called(op) for op in loop.body]  # type: ignore[union-attr]
    assert names[:3] == ["model.py:12", "model.py:13", "model.py:12"]
    assert names[4] == "all-gather-done.1"
    assert result.called(replace(loop.body[2], source="")) == "dot_general"  # type: ignore[union-attr]
