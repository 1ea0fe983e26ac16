"""Seconds of a fused attention kernel."""

from dataclasses import replace

import numpy as np

from tpusim.costs.rates import hbm_seconds, matrix_rate
from tpusim.hardware import Device
from tpusim.program import Attention, Number
from tpusim.program.keys import seen_keys
from tpusim.program.numeric import largest, round_up, smallest

BLOCK = 512
"""Queries, and keys, of a block: what a tuned splash kernel visits at once (marin PR #6330)."""

HEAD_DIM = 128
"""The head_dim at which the chips' attention efficiencies hold."""

STEP_WORK = 670.0**2
"""Fixed cost of a kernel step, in scores of one head at full rate.

v5e reaches 3.7 % of peak with blocks of 128 (jax issue #24633), v5p 38-41 % with blocks of 512
(marin PR #6330): a time per block of (edge^2 + STEP_WORK) passes through both.
"""

STATISTIC_BYTES = 4 * 128
"""Bytes in which the forward kernel leaves the logarithm of each query's sum of exponentials: one
f32 number in each of 128 lanes (JAX's splash and flash attention kernels)."""


def visited_keys(work: Attention) -> Number:
    """Keys that the kernel visits for one query, on average, in whole blocks.

    Those that it sees (`seen_keys`), and half a block at each edge of the mask: one on
    the diagonal of a causal kernel, two of a window. Never more than without a window.
    """
    block = smallest(work.kv_len, BLOCK)
    if not work.window:
        return seen_keys(work) + block / 2 if work.causal else seen_keys(work)
    full = visited_keys(replace(work, window=0))
    return smallest(full, seen_keys(work) + block)


def array_width(head_dim: Number, side: int) -> Number:
    """The head_dim that the array is busy with: rounded up to its side, 128 counting as 128.

    Scores contract over head_dim and the weighted sum has it as columns, so 128 and 256 take equal
    time on an array of 256 (MaxText, model guide). The efficiencies are measured at 128: what 128
    itself wastes of a wide array is in them.
    """
    return round_up(head_dim, side) * HEAD_DIM / round_up(HEAD_DIM, side)


def kernel_flops(work: Attention, side: int) -> Number:
    """FLOPs that the array spends: `2 b h q keys` times the widths of the products.

    Forward there are two: scores contract over the width of queries and keys, and the weighted sum
    has that of the values. Backward there are five, 2.5 times as much where the widths are equal
    (flash-attention, #1525): scores, dQ and dK over that of queries and keys, dP and dV over that
    of the values. Each is rounded up to the array by itself.
    """
    scores = work.batch * work.heads * work.q_len * visited_keys(work)
    keys, values = (array_width(width, side) for width in (work.head_dim, work.value_width))
    forward = 2 * scores * (keys + values)
    return forward * ((3 * keys + 2 * values) / (keys + values)) if work.backward else forward


def short_blocks(work: Attention) -> Number:
    """How much longer a score takes where the sequence is shorter than a block, at least 1.

    A step costs `area + STEP_WORK`, so a score costs `1 + STEP_WORK / area`, over that of a whole
    block.
    """
    area = largest(smallest(work.q_len, BLOCK) * smallest(work.kv_len, BLOCK), 1)
    return (1 + STEP_WORK / area) / (1 + STEP_WORK / BLOCK**2)


def statistics_seconds(work: Attention, device: Device) -> Number:
    """Seconds in which the backward kernel's statistics are brought to its layout: `3 n / HBM`.

    n is what the forward kernel left, `b h q` numbers in 128 lanes each. Compiled programs copy it
    and then read one lane of the copy (plain language models with splash attention on v5e, v5p).
    """
    if not work.backward or np.any(work.share):
        return 0.0 * work.q_len
    left = work.batch * work.heads * work.q_len * STATISTIC_BYTES
    return hbm_seconds(2 * left, left, device) + 2 * device.costs.vector_launch


def attention_seconds(work: Attention, device: Device) -> Number:
    """Seconds of the kernel: `max(flops x short / (peak e), bytes / HBM) + launch`.

    e is the chip's measured efficiency, forward or backward, on the blocks that are visited. The
    backward kernel comes after `statistics_seconds`. A kernel that is a part of the pass takes its
    share of it.
    Raises PlanError where the chip has no matrix rate for the dtype.
    """
    costs = device.costs
    reached = (
        costs.attention_efficiency_backward
        if work.backward
        else (costs.attention_efficiency_forward)
    )
    rate = matrix_rate(device, work.dtype) * reached
    share = work.share if np.any(work.share) else 1
    array = share * kernel_flops(work, device.mxu_side) * short_blocks(work) / rate
    kernel = largest(array, hbm_seconds(work.read_bytes, work.write_bytes, device))
    return kernel + costs.op_launch + statistics_seconds(work, device)
