"""Seconds of kernels of linear attention: in chunks of tokens, or token by token.

A chunk is matmuls on the array (arXiv:2406.06484, section 3.2; with decays, arXiv:2412.06464,
section 3.3): the products of its keys and of its queries with its keys, a triangular system for the
values and keys that the delta rule writes, and products with the state before it. A few operations
of the vector unit for each element prepare them. One token a sequence, as in decoding, is a
recurrence on the vector unit, and reads and writes the state.

Both follow the kernels of SGLang-JAX, kernels/gdn/gated_delta.py and kernels/kda/kda.py, operation
by operation; none has been measured alone. Transcendental functions count eight operations
(`models.pieces.ACTIVATION_FLOPS`).
"""

from collections.abc import Iterator

import numpy as np

from tpusim.costs.attention import SCORE_OVERLAP
from tpusim.costs.compute import array_seconds, hbm_seconds, vector_seconds
from tpusim.hardware import Device
from tpusim.program import (
    LINEAR_CHUNK,
    LinearAttentionWork,
    Number,
    largest,
    power_sum,
    smallest,
)

SOLVED_ROWS = 16
"""Rows of a block of the triangular system that the vector unit solves, row after row; matmuls
subtract it from the rows below (`_solve_unit_lower_triangular` in both kernels)."""

DECAYS = {"": 0.0, "head": 10.0, "channel": 0.0}
"""Operations for each pair of tokens of a chunk: difference, mask and exponential of its decay.
Those of constant decays are known before."""

PRODUCTS_OF_CHANNELS = 17.0
"""Operations for each pair of tokens and channel of the keys where each channel has a decay, which
no matmul can apply: difference, mask, limit and exponential, and twice two products and a sum."""

BACKWARD = 3.0
"""Times that the backward kernel takes of the forward one: it computes the chunks again, and each
matmul has two transposes."""

RECURRENCE = {True: 7.0, False: 5.0}
"""Operations for each element of the state and token, by the delta rule: the decay, and for the
reading of the query, the reading of the key with this rule, and the writing two each."""


def chunk_matmuls(work: LinearAttentionWork) -> Iterator[tuple[Number, Number, Number]]:
    """Yield (rows, depth, columns) of each matmul of a chunk on the array, for one head."""
    chunk, keys, values = LINEAR_CHUNK, work.key_dim, work.value_dim
    if work.decay != "channel":
        yield from [(chunk, keys, chunk)] * (2 if work.delta else 1)
    if work.delta:
        solved = values + keys + (chunk if work.decay == "channel" else 0)
        below = range(chunk - SOLVED_ROWS, 0, -SOLVED_ROWS)
        yield from ((rows, SOLVED_ROWS, solved) for rows in below)
        yield chunk, keys, values
    yield from ((chunk, keys, values), (keys, chunk, values), (chunk, chunk, values))


def chunk_operations(work: LinearAttentionWork) -> Number:
    """Return the operations of the vector unit for a chunk of one head.

    Per pair of tokens, of decays and masks; per token, of scales, norms of queries and keys with
    the delta rule, and sums; of the triangular system, a product and a sum for each element before
    another in its block; and per element of the state, its decay and its sum.
    """
    chunk, keys, values = LINEAR_CHUNK, work.key_dim, work.value_dim
    pairs = DECAYS[work.decay] + (5.0 if work.delta else 2.0)
    tokens = (12 if work.delta else 2) * keys + (3 if work.delta else 1) * values
    operations = chunk * chunk * pairs + chunk * tokens + 2 * keys * values
    if work.decay == "channel":
        operations = operations + PRODUCTS_OF_CHANNELS * chunk * chunk * keys
    if work.delta:
        solved = values + keys + (chunk if work.decay == "channel" else 0)
        operations = operations + (SOLVED_ROWS - 1) * chunk * solved
    return operations


def chunked_seconds(work: LinearAttentionWork, device: Device) -> Number:
    """Return the seconds of the kernel in chunks: `chunks ((array^p + vector^p)^(1/p) + step)`.

    array: see `chunk_matmuls`, each as `array_seconds` has it.
    vector: see `chunk_operations`.
    p: that of a score of attention, as both run beside each other there.
    step: `kernel_step`, of a grid of one chunk and head a step, divided among the cores.
    """
    chunks = work.batch * work.heads * np.ceil(work.q_len / LINEAR_CHUNK)
    array = sum(array_seconds(chunks, *sides, work.dtype, device) for sides in chunk_matmuls(work))
    vector = vector_seconds(chunks * chunk_operations(work), device)
    steps = chunks * device.costs.kernel_step / device.tensor_cores
    return power_sum(array, vector, SCORE_OVERLAP) + steps


def recurrent_seconds(work: LinearAttentionWork, device: Device) -> Number:
    """Return the seconds of the vector unit for a recurrence: operations for the state's elements.

    Source: `_gated_delta_step` of the kernel of Gated DeltaNet.
    """
    elements = work.batch * work.heads * work.q_len * work.key_dim * work.value_dim
    return vector_seconds(RECURRENCE[work.delta] * elements, device)


def linear_attention_seconds(work: LinearAttentionWork, device: Device) -> Number:
    """Return the seconds of linear attention: `max(core, bytes / HBM) + launch`.

    core: `chunked_seconds`, or `recurrent_seconds` if sequences are shorter than a chunk and it is
        less; `BACKWARD` times as much backward.

    A calibration of attention multiplies the core. Raise PlanError if the chip has no matrix rate
    for the dtype.
    """
    chunked, recurrent = chunked_seconds(work, device), recurrent_seconds(work, device)
    core = np.where(work.q_len < LINEAR_CHUNK, smallest(chunked, recurrent), chunked)
    times = device.costs.time_of("attention") * (BACKWARD if work.backward else 1.0)
    memory = hbm_seconds(work.read_bytes, work.write_bytes, device)
    return largest(core * times, memory) + device.costs.op_launch
