"""HBM over time: the peak, when it is reached, and what it is made of."""

from dataclasses import replace

import pytest
from engine_programs import US, loop, program, simulate, task, transfer

from tpusim.engine import run
from tpusim.program import Alloc, Dep


def kept(name: str, size: float) -> Alloc:
    return Alloc(name, size, "activations")


def scratch(name: str, size: float) -> Alloc:
    return Alloc(name, size, "temporaries", padded=1)


def test_resident_tensors_are_always_held() -> None:
    weights = Alloc("w", 100.5, "parameters", padded=10)
    memory = run([program(task("a", 1), resident=(weights,))]).memory[0]
    assert (memory.peak_bytes, memory.peak_ps) == (101, 0)
    assert [(held.tensor, held.bytes, held.padded) for held in memory.held] == [("w", 101, 10)]


def test_a_task_frees_before_the_next_one_takes() -> None:
    memory = simulate(
        task("a", 2, allocs=(kept("x", 30),), frees=("x",)),
        task("b", 2, allocs=(kept("y", 40),), frees=("y",)),
    ).memory[0]
    assert (memory.peak_bytes, memory.peak_ps) == (40, 2 * US)
    assert [held.tensor for held in memory.held] == ["y"]


def test_a_transfer_takes_when_it_starts_and_not_when_it_is_issued() -> None:
    memory = simulate(
        transfer("gate", 3, stream="gate"),
        transfer("load", 1, deps=(Dep("gate"),), allocs=(kept("x", 30),)),
        task("dot", 2, allocs=(kept("y", 40),), frees=("y",)),
    ).memory[0]
    assert memory.peak_bytes == 40
    assert [(change.time_ps // US, change.bytes) for change in memory.changes] == [
        (0, 40),
        (2, -40),
        (3, 30),
    ]


@pytest.mark.parametrize("fold", [True, False])
def test_activations_pile_up_until_the_backward_pass(fold: bool) -> None:
    """64 layers keep 10 bytes each; the peak is the last forward task with its 7 scratch bytes."""
    forward = task("f", 2, allocs=(kept("x", 10), scratch("s", 7)), frees=("s",))
    backward = task("b", 3, allocs=(scratch("t", 5),), frees=("t", "x"))
    timeline = simulate(
        loop(64, forward, name="forward"), loop(64, backward, name="backward"), fold=fold
    )
    memory = timeline.memory[0]
    assert memory.peak_bytes == 64 * 10 + 7
    assert memory.peak_ps == 63 * 2 * US
    assert [(held.tensor, held.count, held.bytes, held.padded) for held in memory.held] == [
        ("x", 64, 640, 0),
        ("s", 1, 7, 1),
    ]
    assert memory.by_category() == {"activations": 640, "temporaries": 7}
    assert timeline.stats.trips_simulated == (2 if fold else 128)


@pytest.mark.parametrize("fold", [True, False])
def test_the_peak_is_found_inside_nested_loops(fold: bool) -> None:
    inner = loop(5, task("keep", 1, allocs=(kept("x", 3),)), name="inner")
    drop = loop(4, task("drop", 1, frees=("x",)), name="drops")
    memory = simulate(loop(10, inner, drop), fold=fold).memory[0]
    assert memory.peak_bytes == 3 * (9 + 5)
    assert memory.peak_ps == (9 * 9 + 4) * US


@pytest.mark.parametrize("fold", [True, False])
def test_a_tensor_that_is_not_held_cannot_be_freed(fold: bool) -> None:
    keep = loop(9, task("keep", 1, allocs=(kept("x", 3),)), name="keeps")
    drop = loop(10, task("drop", 1, frees=("x",)), name="drops")
    with pytest.raises(ValueError, match="'x' is freed and not held"):
        simulate(keep, drop, fold=fold)
    with pytest.raises(ValueError, match="'y', which no task takes"):
        simulate(task("drop", frees=("y",)))


def test_a_tensor_has_one_size() -> None:
    with pytest.raises(ValueError, match="'x' has 3 and 4 bytes"):
        simulate(task("a", allocs=(kept("x", 3),)), task("b", allocs=(kept("x", 4),)))


@pytest.mark.parametrize("fold", [True, False])
def test_a_loop_takes_as_it_starts_and_frees_as_it_ends(fold: bool) -> None:
    """Its stack is there in each of 9 iterations, and gone before the task that follows."""
    inner = replace(
        loop(9, task("a", 1, allocs=(kept("x", 3),), frees=("x",))),
        allocs=(kept("stack", 40),),
        frees=("given", "stack"),
    )
    memory = simulate(
        task("before", 1, allocs=(kept("given", 5),)),
        inner,
        task("after", 1, allocs=(kept("y", 47),), frees=("y",)),
        fold=fold,
    ).memory[0]
    assert (memory.peak_bytes, memory.peak_ps) == (48, 1 * US)
    assert [(change.time_ps // US, change.bytes) for change in memory.changes][-3:] == [
        (10, -45),
        (10, 47),
        (11, -47),
    ]
