"""Totals over the operations of programs: FLOPs, bytes on the host, implicit resharding."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from tpusim.frames import is_microbatches
from tpusim.partition import CollectiveNode
from tpusim.program import (
    Call,
    Collective,
    Compute,
    Flops,
    Loop,
    Op,
    Program,
    Segment,
    TopOp,
    Transfer,
    TransferKind,
    walk_ops,
)

FLOP_KINDS = ("model", "recompute", "redundant", "padding", "optimizer")


@dataclass(frozen=True, slots=True)
class StepContents:
    """What a result shows of programs besides their timeline.

    flops: of all devices together.
    arguments: bytes of the resident tensors of each program.
    implicit_reshardings: collectives that no rule or annotation requires, as (kind over axes,
        tensor, times per step).
    """

    flops: Flops
    arguments: tuple[float, ...]
    implicit_reshardings: tuple[tuple[str, str, int], ...]


def step_contents(programs: Sequence[Program]) -> StepContents:
    """Return the contents of a step, one program for each stage."""
    reshardings = tuple(
        (what, tensor, most * times)
        for body, _, most in distinct_bodies(programs)
        for what, tensor, times in implicit_reshardings(body)
    )
    arguments = tuple(sum(float(alloc.bytes) for alloc in each.resident) for each in programs)
    return StepContents(step_flops(programs), arguments, reshardings)


def step_flops(programs: Sequence[Program]) -> Flops:
    """Return the FLOPs of all programs."""
    kinds: Counter[str] = Counter()
    for body, times, _ in distinct_bodies(programs):
        _add_flops(kinds, body, times)
    return Flops(**kinds)


def distinct_bodies(programs: Sequence[Program]) -> Iterator[tuple[tuple[Op, ...], int, int]]:
    """Yield each distinct body of programs, its runs in all of them, and the most in one."""
    runs: Counter[int] = Counter()
    most: dict[int, int] = {}
    bodies: dict[int, tuple[Op, ...]] = {}
    for program in programs:
        called = Counter(op.segment for op in program.body if isinstance(op, Call))
        plain = [op for op in program.body if not isinstance(op, Call)]
        found: list[tuple[int, tuple[Op, ...], int]] = [(id(op), (op,), 1) for op in plain]
        found += [(id(each), each.body, called[each.name]) for each in program.segments]
        for key, body, times in found:
            bodies[key] = body
            runs[key] += times
            most[key] = max(most.get(key, 0), times)
    for key, body in bodies.items():
        yield body, runs[key], most[key]


def total_flops(body: tuple[TopOp, ...]) -> Flops:
    """Return the FLOPs of a body, loops counted as often as they run."""
    kinds: Counter[str] = Counter()
    _add_flops(kinds, body, 1)
    return Flops(**kinds)


def _add_flops(kinds: Counter[str], body: tuple[TopOp, ...], times: int) -> None:
    for op, runs in walk_ops(body, times=times):
        if isinstance(op, Compute):
            for kind in FLOP_KINDS:
                kinds[kind] += getattr(op.flops, kind) * runs


def to_host_bytes(body: tuple[TopOp, ...], segments: tuple[Segment, ...] = ()) -> float:
    """Return the bytes that one device keeps on its host; microbatches reuse the same memory.

    With a pipeline, those of the microbatches between their forward pass and the end of their
    backward pass, at their most.
    """
    once = (op.body if isinstance(op, Loop) and is_microbatches(op.name) else (op,) for op in body)
    always = _moved(chain.from_iterable(once), TransferKind.TO_HOST)
    rises = {
        segment.name: _moved(segment.body, TransferKind.TO_HOST)
        - _moved(segment.body, TransferKind.FROM_HOST)
        for segment in segments
    }
    levels = accumulate(rises[op.segment] for op in body if isinstance(op, Call))
    return always + max(levels, default=0.0)


def _moved(body: Iterable[TopOp], kind: TransferKind) -> float:
    """Return the bytes that the transfers of a kind move in a body, without those of calls."""
    return sum(
        times * float(op.bytes)
        for op, times in walk_ops(op for op in body if not isinstance(op, Call))
        if isinstance(op, Transfer) and op.kind is kind
    )


def implicit_reshardings(body: tuple[TopOp, ...]) -> Iterator[tuple[str, str, int]]:
    """Yield collectives that no rule or annotation requires: (kind over axes, tensor, times)."""
    for op, times in walk_ops(body):
        if isinstance(op, Collective) and not op.asked:
            yield over_axes(op), op.scope, times


def over_axes(op: Collective | CollectiveNode) -> str:
    """Return a collective and its axes in words: `all-gather over fsdp+tensor`."""
    return f"{op.kind} over {'+'.join(op.axes)}"


def collective_axes(programs: Sequence[Program]) -> frozenset[tuple[str, ...]]:
    """Return the axes of each group of devices over which the programs communicate."""
    ops = (op for body, *_ in distinct_bodies(programs) for op, _ in walk_ops(body))
    return frozenset(op.axes for op in ops if isinstance(op, Collective))
