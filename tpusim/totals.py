"""What the operations of programs add up to: FLOPs, bytes on the host, collectives unasked for."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain

from tpusim.partition.accumulate import MICROBATCHES
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
    counted,
)

_KINDS = ("model", "recompute", "redundant", "padding")


def step_flops(programs: tuple[Program, ...]) -> Flops:
    """The FLOPs of all programs."""
    kinds: Counter[str] = Counter()
    for body, times, _ in distinct(programs):
        flops = total_flops(body)
        for kind in _KINDS:
            kinds[kind] += getattr(flops, kind) * times
    return Flops(**kinds)


def distinct(programs: tuple[Program, ...]) -> Iterator[tuple[tuple[Op, ...], int, int]]:
    """What programs are made of, each once: how often it runs in all, and in one of them."""
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


def total_flops(body: tuple[TopOp, ...], segments: tuple[Segment, ...] = ()) -> Flops:
    """The FLOPs of a body, loops and calls counted as often as they run."""
    kinds: Counter[str] = Counter()
    for op, times in counted(body, segments):
        if isinstance(op, Compute):
            for kind in _KINDS:
                kinds[kind] += getattr(op.flops, kind) * times
    return Flops(**kinds)


def to_host_bytes(body: tuple[TopOp, ...], segments: tuple[Segment, ...] = ()) -> float:
    """Bytes that one device keeps on its host: a microbatch writes over those of the one before.

    With a pipeline, those of the microbatches that are between their forward pass and the end of
    their backward pass, when they are the most.
    """
    once = (op.body if isinstance(op, Loop) and op.name == MICROBATCHES else (op,) for op in body)
    always = _moved(chain.from_iterable(once), TransferKind.TO_HOST)
    rises = {
        segment.name: _moved(segment.body, TransferKind.TO_HOST)
        - _moved(segment.body, TransferKind.FROM_HOST)
        for segment in segments
    }
    levels = accumulate(rises[op.segment] for op in body if isinstance(op, Call))
    return always + max(levels, default=0.0)


def _moved(body: Iterable[TopOp], way: TransferKind) -> float:
    """Bytes that the transfers of a body move one way; those of calls are not among them."""
    return sum(
        times * float(op.bytes)
        for op, times in counted(op for op in body if not isinstance(op, Call))
        if isinstance(op, Transfer) and op.kind is way
    )


def unasked(
    body: tuple[TopOp, ...], segments: tuple[Segment, ...] = ()
) -> Iterator[tuple[str, str, int]]:
    """Collectives that nobody asked for: (kind over axes, tensor, how often)."""
    for op, times in counted(body, segments):
        if isinstance(op, Collective) and not op.asked:
            yield f"{op.kind} over {'+'.join(op.axes)}", op.scope, times
