"""Why work of the core takes as long as it does: read from its shapes and the costs of the chip."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tpusim.base.phase import Phase
from tpusim.base.units import format_bytes, format_seconds
from tpusim.costs import work_seconds
from tpusim.costs.attention import visited_keys
from tpusim.costs.compute import hbm_seconds, matrix_rate
from tpusim.hardware import Device
from tpusim.program import AttentionWork, Compute, MatmulWork, round_up, seen_keys
from tpusim.results.critical_path import limits
from tpusim.results.limit import PICO
from tpusim.results.plan_result import PlanResult
from tpusim.results.reason import Reason, ReasonKind
from tpusim.results.resources import FREE, LAUNCHES
from tpusim.results.result import Result
from tpusim.results.time_by_operation import TimeByOperation

TIMES_WIDER = 8
"""How much longer a side is made, to see what its length costs."""

ITEM_BYTES = 2
"""Bytes of an element of the operand or result that does not have the side."""

LOSSES = {
    "masked": "{:.0%} of the computed scores are masked",
    "grid": "{:.0%} of the time starts steps of the grid",
    "vector": "{:.0%} of the time is the vector unit's",
    "padding": "the heads leave {:.0%} of the array empty",
}
"""What attention loses, in words."""

LEAST_CLAUSE = 0.05
"""The fraction of attention's work from which on a sentence names what it goes to."""


def work_reasons(parts: TimeByOperation) -> Iterator[Reason]:
    """Yield why the work of the core takes as long as it does."""
    yield from _attention(parts)
    yield from _narrow_matmuls(parts)
    yield from _recomputation(parts)
    yield from _launches(parts)
    yield from _optimizer(parts)


def _attention(parts: TimeByOperation) -> Iterator[Reason]:
    """Yield the rate of fused attention, with its blocks, and what of it is no score in use."""
    found: list[tuple[Any, Any]] = parts.works(AttentionWork)
    device = parts.result.pod.chip.device
    rows = [row for row, _ in found]
    whole = sum(row.picoseconds for row in rows)
    if not whole:
        return
    peak = sum(row.runs * _useful_flops(work) / matrix_rate(device, work.dtype)
               for row, work in found)  # fmt: skip
    rate = peak / (whole * PICO)
    share = parts.share(rows)
    blocks: Counter[tuple[int, int]] = Counter()
    for row, work in found:
        block = min(work.block[0], int(work.q_len)), min(work.block[1], int(work.kv_len))
        blocks[block] += row.picoseconds
    queries, keys = blocks.most_common(1)[0][0]
    losses = _attention_losses(found, device)
    largest = sorted(losses.items(), key=lambda each: -each[1])
    clauses = [LOSSES[name].format(part) for name, part in largest if part > LEAST_CLAUSE]
    tail = f": {', '.join(clauses)}" if clauses else ""
    what = f"attention takes {share:.1%} of the step at {rate:.0%} of the matrix unit's peak"
    yield Reason(
        kind=ReasonKind.ATTENTION,
        share=share * max(0.0, 1 - rate),
        because=f"{what}, in blocks of {queries} x {keys}{tail}",
        evidence={
            "share": share,
            "rate": rate,
            "block_queries": queries,
            "block_keys": keys,
            **losses,
        },
    )


def _attention_losses(found: list[tuple[Any, Any]], device: Device) -> dict[str, float]:
    """Return what attention loses: fractions of its time, and of the scores and of the array."""
    costs = device.costs
    faster = {
        "grid": replace(device, costs=replace(costs, kernel_step=0.0)),
        "vector": replace(device, vpu_flops=device.vpu_flops * FREE),
    }

    def saved(work: AttentionWork, other: Device) -> float:
        return 1 - float(work_seconds(work, other)) / float(work_seconds(work, device))

    def padding(work: AttentionWork) -> float:
        widths = (work.head_dim, work.value_width)
        return 1 - float(sum(widths) / sum(round_up(each, device.mxu_side) for each in widths))

    return {
        "masked": _mean(found, lambda work: 1 - float(seen_keys(work) / visited_keys(work))),
        "grid": _mean(found, lambda work: saved(work, faster["grid"])),
        "vector": _mean(found, lambda work: saved(work, faster["vector"])),
        "padding": _mean(found, padding),
    }


def _useful_flops(work: AttentionWork) -> float:
    """Return the model's FLOPs of an attention: 2 for each seen score and width, twice backward."""
    scores = work.batch * work.heads * work.q_len * seen_keys(work)
    once = 2.0 * float(scores * (work.head_dim + work.value_width))
    return 2 * once if work.backward else once


def _mean(found: list[tuple[Any, Any]], value: Any) -> float:
    """Return the mean of a value of works, weighted with their time."""
    whole = sum(row.picoseconds for row, _ in found)
    return float(sum(row.picoseconds * value(work) for row, work in found) / whole)


def _narrow_matmuls(parts: TimeByOperation) -> Iterator[Reason]:
    """Yield what the step takes more because a side of its matmuls is short.

    These are matmuls that HBM bounds, or with a side below that of the array. Each is compared with
    one whose shortest side is 8 times as long, for as many FLOPs.
    """
    device = parts.result.pod.chip.device
    found: list[tuple[Any, Any]] = parts.works(MatmulWork)
    sides: Counter[int] = Counter()
    lost = 0.0
    for row, work in found:
        name, side = min((("m", work.m), ("k", work.k), ("n", work.n)), key=lambda each: each[1])
        if not side or _is_wide(work, float(side), device):
            continue
        now, wide = work_seconds(work, device), work_seconds(_widened(work, name), device)
        more = max(0.0, 1 - float(wide) / TIMES_WIDER / float(now)) * row.picoseconds
        sides[round(float(side))] += round(more)
        lost += more
    if not lost:
        return
    rows = [row for row, _ in found]
    share = parts.share(rows)
    flops = sum(
        row.runs * 2.0 * float(w.batch * w.m * w.k * w.n) / matrix_rate(device, w.dtype)
        for row, w in found
    )
    rate = flops / (sum(row.picoseconds for row in rows) * PICO)
    part = lost / sum(row.picoseconds for row in rows) * share
    side = sides.most_common(1)[0][0]
    yield Reason(
        kind=ReasonKind.NARROW_MATMULS,
        share=part,
        because=(
            f"matmuls take {share:.1%} of the step at {rate:.0%} of the matrix unit's peak; "
            f"{part:.1%} of the step is due to matmuls that are too narrow to fill it, most with a "
            f"side of {side:,} per device"
        ),
        evidence={"share": share, "rate": rate, "side": side, "lost": part},
    )


def _is_wide(work: MatmulWork, side: float, device: Device) -> bool:
    """Return True for a matmul that the array bounds, with no side shorter than the array's."""
    array = 2.0 * float(work.batch * work.m * work.k * work.n) / matrix_rate(device, work.dtype)
    memory = float(hbm_seconds(work.read_bytes, work.write_bytes, device))
    return array >= memory and side >= device.mxu_side


def _widened(work: MatmulWork, name: str) -> MatmulWork:
    """Return a matmul with a side 8 times as long; the tensor without that side stays as it is."""
    fixed = ITEM_BYTES * work.batch * work.m * work.k * work.n / getattr(work, name)
    read, write = work.read_bytes, work.write_bytes
    if name == "k":
        kept = min(float(fixed), float(write))
        read, write = TIMES_WIDER * read, kept + TIMES_WIDER * (write - kept)
    else:
        kept = min(float(fixed), float(read))
        read, write = kept + TIMES_WIDER * (read - kept), TIMES_WIDER * write
    longer: dict[str, Any] = {name: TIMES_WIDER * getattr(work, name)}
    more = TIMES_WIDER * work.epilogue_flops
    return replace(work, read_bytes=read, write_bytes=write, epilogue_flops=more, **longer)


def _recomputation(parts: TimeByOperation) -> Iterator[Reason]:
    rows = parts.where(lambda row: row.phase is Phase.RECOMPUTE)
    share = parts.share(rows)
    policy = _policy(parts.result)
    under = f" (remat {policy})" if policy else ""
    yield Reason(
        kind=ReasonKind.RECOMPUTATION,
        share=share,
        because=f"{share:.1%} of the step goes to computing activations again{under}",
        evidence={"share": share},
    )


def _policy(result: Result) -> str:
    """Return the policy that decides what is saved; empty for a compiled program."""
    return result.plan.remat.policy if isinstance(result, PlanResult) else ""


def _launches(parts: TimeByOperation) -> Iterator[Reason]:
    """Yield the launches and latencies on the critical path, and how short the operations are."""
    share = sum(each.share for each in limits(parts.result) if each.resource == LAUNCHES)
    rows = parts.where(lambda row: row.op is not None)
    count = sum(row.runs for row in rows) / parts.result.timeline.core_count
    if not count:
        return
    mean_s = parts.seconds(rows) / count
    yield Reason(
        kind=ReasonKind.LAUNCHES,
        share=share,
        because=(
            f"launches and latency take {share:.1%} of the step: a device runs {count:,.0f} "
            f"operations and waits of {format_seconds(mean_s)} on average"
        ),
        evidence={"share": share, "operations": count, "mean_s": mean_s},
    )


def _optimizer(parts: TimeByOperation) -> Iterator[Reason]:
    """Yield the time of the update itself, without waits, and the bytes that it moves."""
    rows = [row for row in parts.where(lambda row: row.phase is Phase.OPTIMIZER) if not row.waits]
    own = [(row, row.op.work) for row in rows if isinstance(row.op, Compute)]
    share = parts.share(row for row, _ in own)
    moved = sum(row.runs * float(work.read_bytes + work.write_bytes) for row, work in own)
    moved /= parts.result.timeline.core_count
    yield Reason(
        kind=ReasonKind.OPTIMIZER,
        share=share,
        because=(
            f"the optimizer takes {share:.1%} of the step: its update moves {format_bytes(moved)} "
            "through the HBM of each device"
        ),
        evidence={"share": share, "hbm_bytes": moved},
    )
