"""The partitioned program of a device, and its text: one line per operation."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod

import numpy as np

from tpusim.base.plain_text import LONGEST_WORD, plain
from tpusim.base.units import format_bytes, format_mesh, format_seconds
from tpusim.program.numeric import Number
from tpusim.program.ops import (
    Alloc,
    Barrier,
    Call,
    Compute,
    Loop,
    Segment,
    Send,
    Single,
    TopOp,
    Transfer,
    WaitOp,
)
from tpusim.program.work import (
    AttentionWork,
    CachedAttentionWork,
    CachedLinearWork,
    CombinedWork,
    ConvolutionWork,
    EstimatedWork,
    LinearAttentionWork,
    MatmulWork,
    VectorWork,
    Work,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The operations that one device of the mesh runs in a step, and its resident memory.

    axes: (mesh axis, size).
    body: operations in the order of issue. Those before, between and after calls are done, with
        their transfers, before the next call begins.
    resident: allocations that are held for the whole step.
    segments: bodies that the calls run.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    body: tuple[TopOp, ...]
    resident: tuple[Alloc, ...] = ()
    segments: tuple[Segment, ...] = ()

    @property
    def devices(self) -> int:
        """The number of devices of the mesh; with a pipeline, those of all stages."""
        return prod(size for _, size in self.axes)

    def __str__(self) -> str:
        return program_text(self)


def program_text(program: Program) -> str:
    """Return the program's axes, its resident memory by category, and its operations."""
    axes = format_mesh(dict(program.axes))
    held: dict[str, float] = {}
    for alloc in program.resident:
        held[alloc.category] = held.get(alloc.category, 0.0) + _one(alloc.bytes)
    resident = ", ".join(f"{category} {format_bytes(n)}" for category, n in held.items())
    head = f"program {plain(program.name)} on {axes}; resident: {resident or 'nothing'}"
    return "\n".join([head, *_segments(program), *_lines(program.body, "  ")])


def _segments(program: Program) -> Iterator[str]:
    for segment in program.segments:
        calls = [op for op in program.body if isinstance(op, Call) and op.segment == segment.name]
        yield f"  segment {segment.name} x{len(calls)}"
        yield from _lines(segment.body, "    ")
        sends = Counter(_send(send) for call in calls for send in call.sends)
        yield from (f"    {how} x{times}" for how, times in sends.items())


def _send(send: Send) -> str:
    axes = "+".join(send.axes)
    return f"send to stage {send.to} over {axes}: {format_bytes(_one(send.bytes))} {send.dtype}"


def _lines(body: tuple[TopOp, ...], indent: str) -> Iterator[str]:
    for calls, ops in groupby(body, lambda op: isinstance(op, Call)):
        if calls:
            yield f"{indent}calls {' '.join(op.name for op in ops)}"
        else:
            yield from _operations(ops, indent)


def _operations(ops: Iterable[TopOp], indent: str) -> Iterator[str]:
    for op in ops:
        if isinstance(op, Loop):
            yield f"{indent}loop {op.name} x{op.trips}"
            yield from _lines(op.body, indent + "  ")
        elif not isinstance(op, Call):
            yield f"{indent}{op.phase:<9} {_line(op)}"


def _line(op: Single) -> str:
    if isinstance(op, Compute):
        return f"{_work(op.work):<46} {op.name}"
    if isinstance(op, WaitOp):
        return f"wait for {', '.join(dep.op for dep in op.deps)}"
    if isinstance(op, Barrier):
        return f"barrier {'+'.join(op.axes)}  {op.name}"
    if isinstance(op, Transfer):
        made = f" (made in {format_seconds(_one(op.host_s))})" if _one(op.host_s) else ""
        return f"{op.kind} {format_bytes(_one(op.bytes))}{made}  {op.name}"
    how = f"{op.mode}{', as ' + op.algorithm if op.algorithm else ''}"
    implicit = "" if op.asked else "  [implicit resharding]"
    size = format_bytes(_one(op.bytes))
    what = f"{op.kind} {'+'.join(op.axes)} {size} {op.dtype} ({how})"
    return f"{what:<46} {plain(op.scope, LONGEST_WORD)}{implicit}"


def _work(work: Work) -> str:
    match work:
        case MatmulWork():
            batch = f"{_count(work.batch)} x " if _one(work.batch) != 1 else ""
            shape = f"[{_count(work.m)}, {_count(work.k)}, {_count(work.n)}]"
            return f"matmul {batch}{shape} {work.dtype}"
        case ConvolutionWork():
            return (
                f"convolution {_count(work.batch)} x {_count(work.positions)} positions, "
                f"{_count(work.taps)} taps, {_count(work.in_channels)} to "
                f"{_count(work.out_channels)}"
            )
        case AttentionWork():
            kind = "attention backward" if work.backward else "attention"
            values = f" and {_count(work.value_dim)}" if np.any(work.value_dim) else ""
            return (
                f"{kind} {_count(work.batch)} x {_count(work.heads)} heads, "
                f"{_count(work.q_len)} x {_count(work.kv_len)} x {_count(work.head_dim)}{values}"
            )
        case CachedAttentionWork():
            return (
                f"attention of {_count(work.local.decodes)} decoding and "
                f"{_count(work.local.prefills)} prompt tokens x {_count(work.heads)} heads"
            )
        case CachedLinearWork():
            return f"linear attention of {_count(work.tokens)} tokens"
        case LinearAttentionWork():
            kind = "linear attention backward" if work.backward else "linear attention"
            return (
                f"{kind} {_count(work.batch)} x {_count(work.heads)} heads, {_count(work.q_len)} x "
                f"{_count(work.key_dim)} x {_count(work.value_dim)}"
            )
        case VectorWork():
            moved = work.read_bytes + work.write_bytes
            return f"vector {format_bytes(_one(moved))}"
        case EstimatedWork():
            return f"{work.kind} of {_one(work.cycles) / 1000:.6g} thousand cycles"
        case CombinedWork():
            return " and ".join(_work(part) for part in work.parts)


def _count(value: Number) -> str:
    return f"{_one(value):.6g}" if _one(value) % 1 else str(int(_one(value)))


def _one(value: Number) -> float:
    """Return the number itself, or the first of an array of plans."""
    return float(np.ravel(value)[0])
