"""Seconds of kernels of linear attention: chunks, a recurrence, and the bytes of its state."""

from dataclasses import replace

import numpy as np
import pytest

from tpusim.costs import work_seconds
from tpusim.costs.compute import array_seconds, hbm_seconds, vector_seconds
from tpusim.costs.linear_attention import (
    BACKWARD,
    chunk_matmuls,
    chunk_operations,
    chunked_seconds,
    linear_attention_seconds,
    recurrent_seconds,
)
from tpusim.hardware import load_chip
from tpusim.program import LinearAttentionWork, kind_of, power_sum

V6E = load_chip("v6e").replace(op_launch=0.0).device
PREFILL = LinearAttentionWork(2, 32, 4096, 128, 128, "bf16", "head", True, False, 0, 0)
STATE = 64 * 32 * 128 * 128 * 4
DECODE = replace(PREFILL, batch=64, q_len=1, read_bytes=STATE, write_bytes=STATE)


def test_chunks_take_the_array_and_the_vector_unit_beside_each_other() -> None:
    chunks = 2 * 32 * 64
    array = sum(array_seconds(chunks, *sides, "bf16", V6E) for sides in chunk_matmuls(PREFILL))
    vector = vector_seconds(chunks * chunk_operations(PREFILL), V6E)
    steps = chunks * V6E.costs.kernel_step / V6E.tensor_cores
    assert linear_attention_seconds(PREFILL, V6E) == power_sum(array, vector, 3.0) + steps


def test_a_sequence_is_as_long_as_its_whole_chunks() -> None:
    one, part, two = (chunked_seconds(replace(PREFILL, q_len=n), V6E) for n in (64, 65, 128))
    assert part == two == pytest.approx(2 * one)


def test_time_is_linear_in_the_sequence() -> None:
    longer = replace(PREFILL, q_len=8 * 4096)
    assert work_seconds(longer, V6E) == pytest.approx(8 * work_seconds(PREFILL, V6E))


def test_the_backward_kernel_computes_the_chunks_again() -> None:
    back = work_seconds(replace(PREFILL, backward=True), V6E)
    assert back == pytest.approx(BACKWARD * work_seconds(PREFILL, V6E))


def test_decays_of_channels_keep_the_products_of_keys_on_the_vector_unit() -> None:
    channels = replace(PREFILL, decay="channel")
    pairs = 17 * 64 * 64 * 128 - 10 * 64 * 64
    assert chunk_operations(channels) - chunk_operations(PREFILL) == pairs + 15 * 64 * 64
    assert work_seconds(channels, V6E) > 5 * work_seconds(PREFILL, V6E)


def test_one_token_reads_and_writes_the_state() -> None:
    seconds = linear_attention_seconds(DECODE, V6E)
    assert seconds == max(hbm_seconds(STATE, STATE, V6E), recurrent_seconds(DECODE, V6E))
    assert seconds == hbm_seconds(STATE, STATE, V6E)
    assert seconds < chunked_seconds(DECODE, V6E)


def test_a_recurrence_has_seven_operations_for_each_element_of_the_state() -> None:
    elements = 64 * 32 * 128 * 128
    assert recurrent_seconds(DECODE, V6E) == vector_seconds(7 * elements, V6E)
    plain = replace(DECODE, delta=False, decay="")
    assert recurrent_seconds(plain, V6E) == vector_seconds(5 * elements, V6E)


def test_arrays_of_plans_take_what_each_takes_alone() -> None:
    lengths = np.array([1, 16, 64, 4096])
    together = work_seconds(replace(PREFILL, q_len=lengths), V6E)
    apart = [work_seconds(replace(PREFILL, q_len=int(n)), V6E) for n in lengths]
    assert list(together) == apart


def test_it_is_attention_in_a_breakdown() -> None:
    assert kind_of(PREFILL) == "attention"
