"""Seconds of fused attention kernels, by library, pass, blocks and widths.

A kernel visits blocks of scores, one in each step of its grid. Its arithmetic is matmuls on the
array and a few operations of the vector unit for each score; a step costs a fixed time besides.
"""

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from tpusim.costs.compute import hbm_seconds, matrix_rate, vector_seconds
from tpusim.hardware import Device
from tpusim.program import (
    FLASH,
    SPLASH,
    TOKAMAX,
    AttentionWork,
    Number,
    largest,
    power_sum,
    round_up,
    seen_keys,
    smallest,
)

STATISTIC_BYTES = 4 * 128
"""Bytes that the forward kernel leaves for each query: the logarithm of its sum of exponentials,
one f32 number in each of 128 lanes (JAX's splash and flash attention kernels).
"""

SCORE_OVERLAP = 3.0
"""Power p of `(array^p + vector^p)^(1/p)` of a score: both run beside each other, nearly. Of
512 x 512 scores the compiler schedules 1348 cycles on v5p, 1031 on v6e (forward), and on v5e 2824
and 4014 backward in one kernel and in two (splash attention of jax 0.10.2, libtpu 0.0.42.1); the
equation has 1283, 947, 2791 and 3957.
"""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What a kernel does for each score.

    of_keys, of_values: matmuls over the width of queries and keys, and over that of the values.
    by_keys, by_queries: how many widths of a row it carries from one step to the next, for each
        query and for each key: the sums that a step adds to.
    operations: of the vector unit, in the splash attention of JAX and in Tokamax's.
    whole: its heads are not divided among TensorCores (`dimension_semantics`: "arbitrary"), only
        the sequences, of which `vmap` makes a parallel dimension.
    """

    of_keys: int
    of_values: int
    by_keys: int
    by_queries: int
    operations: tuple[float, float]
    whole: bool = True


_FORWARD_OPERATIONS = (6.6, 2.5)
"""Fitted to 76 calls on v6e (splash) and to one (Tokamax). By their sources splash has the mask
(three), the maximum, its subtraction, the exponential's factor and the sum; Tokamax masks on the
diagonal only, takes powers of two and, with an estimate of the logits, no maximum.
"""

_BACKWARD_OPERATIONS = (5.6, 5.6)

_KERNELS = {
    "forward": _Kernel(1, 1, 1, 0, _FORWARD_OPERATIONS, whole=False),
    "dq": _Kernel(2, 1, 1, 0, _BACKWARD_OPERATIONS),
    "dkv": _Kernel(2, 2, 0, 2, _BACKWARD_OPERATIONS),
    "all": _Kernel(3, 2, 1, 2, _BACKWARD_OPERATIONS),
}
"""Matmuls by JAX's kernels: scores and the weighted sum; scores, dP and dQ; scores, dP, dV and dK;
and scores, dP, dV, dK and dQ.
"""


def kernels_of(work: AttentionWork) -> tuple[str, ...]:
    """Return the kernels of a work: `forward`, or `dq` and `dkv`, or `all`, or its part alone."""
    if work.part:
        return (work.part,)
    if not work.backward:
        return ("forward",)
    return ("all",) if work.fused else ("dq", "dkv")


def visited_keys(work: AttentionWork) -> Number:
    """Return the keys that the kernel visits for one query, on average, in whole blocks.

    These are the keys that the query sees (`seen_keys`) and those of blocks that an edge of the
    mask crosses, `(q + k - gcd(q, k)) / 2` on average for blocks of q queries and k keys: half a
    block if q = k, half of the longer side if one divides the other. There is one edge on the
    diagonal of a causal kernel, and two with a window, but never more keys than without a window.
    """
    block = smallest(work.kv_len, sum(work.block) - gcd(*work.block))
    if not work.window:
        return seen_keys(work) + block / 2 if work.causal else seen_keys(work)
    full = visited_keys(replace(work, window=0))
    return smallest(full, seen_keys(work) + block)


def grid_steps(work: AttentionWork, kernel: str) -> Number:
    """Return the steps of a kernel's grid: the blocks that it visits and those that it skips.

    Splash attention steps over all blocks of a causal mask, and those below the edge of a window;
    Tokamax over those that the mask leaves. A step of flash attention has blocks of two sequences
    (`block_b`), or twice the queries (`block_q_dq`; torch_xla/experimental/custom_kernel.py).
    """
    if work.library == FLASH and kernel in ("forward", "dq"):
        sequences = work.batch if kernel == "dq" else np.ceil(work.batch / 2)
        rows = work.block[0] * (2 if kernel == "dq" else 1)
        work = replace(work, library=SPLASH, batch=sequences, block=(rows, work.block[1]))
    queries, keys = _block(work)
    visited = work.q_len * visited_keys(work) / (queries * keys)
    skips = work.causal and not work.window and work.library != TOKAMAX
    whole = work.q_len * work.kv_len / (queries * keys)
    return work.batch * work.heads * (largest(visited, whole) if skips else visited)


def _block(work: AttentionWork) -> tuple[Number, Number]:
    """Return the sides of a block, no longer than the sequence."""
    queries, keys = work.block
    return (
        largest(smallest(work.q_len, queries), 1),
        largest(smallest(work.kv_len, keys), 1),
    )


def kernel_flops(work: AttentionWork, kernel: str, side: int) -> Number:
    """Return the FLOPs that the array spends on a score: 2 for each row of each matmul's width.

    Widths are rounded up to the array's side: scores contract over the width of the queries and the
    weighted sum has the values' as columns, so 128 and 256 take equal time on an array of 256
    (MaxText, model guide; the backward kernels of a model of 256 on v6e).
    """
    keys, values = (round_up(width, side) for width in (work.head_dim, work.value_width))
    does = _KERNELS[kernel]
    return 2 * (does.of_keys * keys + does.of_values * values)


def score_seconds(work: AttentionWork, kernel: str, device: Device) -> Number:
    """Return the seconds of a score: `(array^p + vector^p)^(1/p) / e`, no less than at either peak.

    array: its matmuls, at the rate that large matmuls reach.
    vector: the operations of the mask and the exponential, at the rate of fused groups, and those
        that add to the sums that a step carries on, an operation for each element.
    e: what the chip's kernels keep of this rate.

    A calibration multiplies them, but not below a peak's.
    """
    does, costs = _KERNELS[kernel], device.costs
    queries, keys = _block(work)
    carried = does.by_keys * work.value_width / keys + does.by_queries * work.head_dim / queries
    vector = vector_seconds(does.operations[work.library == TOKAMAX] + carried, device)
    at_peak = kernel_flops(work, kernel, device.mxu_side) / matrix_rate(device, work.dtype)
    least = largest(at_peak, vector * costs.vector_efficiency)
    array = at_peak / costs.matmul_efficiency
    kept = (costs.attention_efficiency_forward, costs.attention_efficiency_backward)[work.backward]
    predicted = largest(power_sum(array, vector, SCORE_OVERLAP) / kept, least)
    return largest(predicted * costs.time_of("attention"), least)


def prepared_seconds(work: AttentionWork, device: Device) -> Number:
    """Return the seconds of what comes before and after the backward kernels, through HBM.

    Before, the forward kernel's statistics are copied to the backward kernel's layout, `b h q`
    numbers in 128 lanes, of which one is then read: `3 n / HBM` (plain language models with splash
    attention on v5e and v5p). After one kernel for all gradients, the parts of dQ of all blocks of
    keys are added up. Compiled programs have both as operations of their own.
    """
    if not work.backward or work.part:
        return 0.0 * work.q_len
    rows = work.batch * work.heads * work.q_len
    left = rows * STATISTIC_BYTES
    seconds = hbm_seconds(2 * left, left, device) + 2 * device.costs.vector_launch
    if not work.fused:
        return seconds
    item = np.where(work.kv_len > work.block[1], 2 * rows * work.head_dim, 0.0)
    return seconds + hbm_seconds(item * work.kv_len / work.block[1], item, device)


def idle_cores(work: AttentionWork, kernel: str, cores: int) -> Number:
    """Return the cores of the device over those that the kernel keeps busy, on average.

    A backward kernel deals out whole sequences: of one sequence, one of two cores does all.
    """
    if cores == 1 or not _KERNELS[kernel].whole:
        return 1.0
    return cores * np.ceil(work.batch / cores) / largest(work.batch, 1)


def attention_seconds(work: AttentionWork, device: Device) -> Number:
    """Return the seconds of fused attention: `max((steps s + scores r) i, bytes / HBM) + launch`.

    steps, s: of each kernel's grid (`grid_steps`), and the chip's `kernel_step` for each, divided
        among its cores.
    scores, r: those of the visited blocks, and `score_seconds` of each.
    i: see `idle_cores`.

    A calibration multiplies s and r. The backward pass has `prepared_seconds` besides.

    Raise PlanError if the chip has no matrix rate for the dtype.
    """
    scores = work.batch * work.heads * work.q_len * visited_keys(work)
    factor = device.costs.time_of("attention")
    step = factor * device.costs.kernel_step / device.tensor_cores
    arithmetic = sum(
        (grid_steps(work, kernel) * step + scores * score_seconds(work, kernel, device))
        * idle_cores(work, kernel, device.tensor_cores)
        for kernel in kernels_of(work)
    )
    kernel = largest(arithmetic, hbm_seconds(work.read_bytes, work.write_bytes, device))
    return kernel + device.costs.op_launch + prepared_seconds(work, device)
