"""The heap of a program: lifetimes in the order of issue, worked out by hand."""

from dataclasses import replace
from typing import Any

from tpusim.base import Phase
from tpusim.program import (
    Alloc,
    Call,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Loop,
    Mode,
    Op,
    Program,
    Segment,
    TopOp,
    VectorWork,
    program_heap,
    reported_heap,
)

K = 1024


def kib(*ops: TopOp, segments: tuple[Segment, ...] = ()) -> float:
    """The heap of a program in KiB."""
    return program_heap(Program(name="p", axes=(), body=ops, segments=segments)) / K


def life(takes: dict[str, int], frees: str) -> dict[str, Any]:
    """KiB that an operation takes, and the tensors that it frees, one letter each."""
    allocs = tuple(Alloc(name, size * K, "activations") for name, size in takes.items())
    return {"allocs": allocs, "frees": tuple(frees)}


def op(name: str, frees: str = "", deps: tuple[Dep, ...] = (), **takes: int) -> Compute:
    work = VectorWork(0, 0, 0)
    return Compute(name=name, phase=Phase.FORWARD, work=work, deps=deps, **life(takes, frees))


def beside(name: str, frees: str = "", **takes: int) -> Collective:
    """An asynchronous gather."""
    return Collective(
        name=name, phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER, axes=("x",), bytes=1,
        dtype="bf16", mode=Mode.ASYNC, **life(takes, frees),
    )  # fmt: skip


def loop(trips: int, *body: Op, frees: str = "", **takes: int) -> Loop:
    return Loop(name="loop", trips=trips, body=body, **life(takes, frees))


def test_a_buffer_lives_from_its_writer_to_its_last_reader() -> None:
    assert kib(op("1", a=4), op("2", "a", b=3), op("3", "b", c=2)) == 7


def test_a_gap_that_is_too_small_is_lost() -> None:
    """Of at most 6 alive, 4 lie below what lives on, and 5 do not fit there."""
    assert kib(op("1", a=4), op("2", "a", b=1), op("3", "bc", c=5)) == 4 + 1 + 5


def test_what_a_transfer_frees_lives_until_it_is_awaited() -> None:
    sent = beside("send", "a")
    assert kib(op("1", a=4), sent, op("2", "b", b=3), op("3", "c", (Dep("send"),), c=2)) == 7
    assert kib(op("1", a=4), sent, op("2", "b", (Dep("send"),), b=3), op("3", "c", c=2)) == 4


def test_a_loop_holds_what_it_takes_and_its_body_is_placed_once() -> None:
    """A stack of 8, and 3 of each iteration; what it frees is free for what follows."""
    stacked = loop(64, op("1", b=3), op("2", "b"), s=8, frees="s")
    assert kib(stacked) == 8 + 3
    assert kib(stacked, op("3", "c", c=11)) == 11


def test_what_an_iteration_leaves_to_the_next_is_there_twice() -> None:
    """A weight that is gathered while its predecessor is multiplied."""
    ahead = loop(9, op("multiply", "w"), beside("gather", w=4))
    assert kib(op("first", w=4), ahead, op("last", "w")) == 4
    overlapping = loop(9, beside("gather", w=4), op("multiply", "w"))
    assert kib(op("first", w=4), overlapping, op("last", "w")) == 8


def test_what_iterations_pile_up_is_there_until_a_later_loop_takes_it() -> None:
    """40 layers leave 3 each; nothing lies between what the same step leaves."""
    left = loop(40, op("1", b=2, k=3), op("2", "b"))
    gone = replace(loop(40, op("3", "c", c=1), op("4", "k")), name="gone")
    assert kib(left, gone) == 40 * 3 + 2
    assert kib(left, gone, op("5", "d", d=121)) == 40 * 3 + 2


def test_copies_that_leave_two_iterations_later_do_not_pile_up() -> None:
    """Each takes 4, which its copy frees, and waits for those but the last."""
    body = (op("compute", "", (Dep("send", 2),), x=4), beside("send", "x"))
    assert kib(loop(64, *body)) == 2 * 4


def test_a_segment_has_its_heap_above_what_its_stage_holds() -> None:
    """Two microbatches keep 4 each; a backward pass frees one as it starts, and needs 2 and 3."""
    passes = (
        Segment(name="forward", body=(op("f", "t", k=4, t=1),)),
        Segment(name="backward", body=(op("b", "k", x=2), op("c", "xy", y=3))),
    )
    row = [
        Call(name=f"{name}{at}", segment=name, microbatch=at)
        for name in ("forward", "backward")
        for at in (0, 1)
    ]
    assert kib(*row, segments=passes) == 4 + (4 + 2)
    assert kib(*row[:1], row[2], segments=passes) == 4 + 2


def reported(*ops: TopOp) -> float:
    """What is reported of a program's heap, in KiB."""
    return reported_heap(Program(name="p", axes=(), body=ops)) / K


def test_what_lies_above_what_is_held_through_a_loop_is_reported_twice() -> None:
    """The first loop leaves a stack of 6 beside 1; the second frees it beside 2, and needs 4."""
    forward = loop(2, op("1", "b", b=3), s=6)
    backward = replace(loop(2, op("2", "c", c=4), frees="s", g=2), name="backward")
    assert kib(op("0", w=1), forward, backward) == 1 + 6 + 2 + 4
    assert reported(op("0", w=1), forward, backward) == 13 + (13 - 7)


def test_gradients_that_outlive_a_larger_loop_are_reported_once() -> None:
    """The second loop frees a stack of 3 beside gradients of 9."""
    forward = loop(2, op("1", "b", b=3), s=3)
    backward = replace(loop(2, op("2", "c", c=4), frees="s", g=9), name="backward")
    assert reported(op("0", w=1), forward, backward) == 17 + (17 - 10)


def test_without_stacks_between_loops_the_heap_is_reported() -> None:
    """As of a chain of matmuls, and of the one loop of a forward pass."""
    assert reported(op("1", a=4), op("2", "a", b=3)) == kib(op("1", a=4), op("2", "a", b=3)) == 7
    assert reported(loop(2, op("1", "b", b=3), s=6)) == 9
