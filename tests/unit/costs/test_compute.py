"""The blocks that an attention kernel visits, and what the array makes of them."""

import math
from dataclasses import replace

import pytest

from tpusim.costs import attention_seconds
from tpusim.costs.compute import array_width, statistics_seconds, visited_keys
from tpusim.hardware import load_chip
from tpusim.program import AttentionWork, seen_keys

FULL = AttentionWork(2, 16, 8192, 8192, 128, "bf16", False, 0, False, 0, 0)
CAUSAL = replace(FULL, causal=True)
V5P = load_chip("v5p").replace(op_launch=0.0, vector_launch=0.0).device


def test_causal_visits_half_and_the_diagonal_blocks() -> None:
    """Blocks of 512: 136 of 256, as the measured kernel."""
    assert visited_keys(CAUSAL) / visited_keys(FULL) == 136 / 256


def test_one_block_is_visited_whole() -> None:
    assert visited_keys(replace(CAUSAL, q_len=512, kv_len=512)) == 512


def test_a_window_cuts_the_keys() -> None:
    assert visited_keys(replace(FULL, window=1024)) == 1024 + 512
    assert visited_keys(replace(CAUSAL, window=1024)) == pytest.approx(1024 - 64 + 512)
    assert visited_keys(replace(CAUSAL, window=8192)) == visited_keys(CAUSAL)


def test_forward_flops_at_the_kernels_efficiency() -> None:
    flops = 4 * 2 * 16 * 8192 * 8192 * 128
    rate = V5P.flops["bf16"] * V5P.costs.attention_efficiency_forward
    assert attention_seconds(FULL, V5P) == pytest.approx(flops / rate)


def test_backward_is_five_products_to_forwards_two() -> None:
    device = load_chip("v5p").replace(
        op_launch=0.0,
        vector_launch=0.0,
        attention_efficiency_forward=0.4,
        attention_efficiency_backward=0.4,
    )
    forward = attention_seconds(FULL, device.device)
    backward = attention_seconds(replace(FULL, backward=True), device.device)
    rate = device.hbm_bandwidth * device.costs.hbm_efficiency
    statistics = 3 * 2 * 16 * 8192 * 512 / rate
    assert backward == pytest.approx(2.5 * forward + statistics)


def test_head_dim_rounds_up_to_the_array() -> None:
    assert [array_width(head, 128) for head in (64, 128, 192)] == [128, 128, 256]
    assert [array_width(head, 256) for head in (64, 128, 256)] == [128, 128, 128]


def test_short_blocks_lose_most_of_the_rate() -> None:
    """Blocks of 128 reach 3.7 % of peak where blocks of 512 reach about 40 % (v5e, jax #24633)."""
    short = replace(FULL, batch=2 * 64, q_len=128, kv_len=128)
    many = replace(FULL, q_len=1024, kv_len=1024)
    rates = [
        work.batch * work.q_len * work.kv_len / attention_seconds(work, V5P)
        for work in (short, many)
    ]
    assert rates[0] / rates[1] == pytest.approx(0.037 / 0.395, rel=0.05)


def rate(work: AttentionWork) -> float:
    """Scores that count, per second."""
    return float(seen_keys(work) * work.q_len / attention_seconds(work, V5P))


def test_large_blocks_are_faster_where_nothing_is_masked() -> None:
    """Of 2252 cycles for a block of 512 x 512, 1348 are those of its scores (v5p)."""
    whole = replace(FULL, block=(8192, 8192))
    assert rate(whole) / rate(FULL) == pytest.approx(2252 / 1348, rel=0.03)
    assert rate(FULL) * 4 / 3 < rate(replace(FULL, block=(1024, 1024))) < rate(whole)


@pytest.mark.parametrize(
    "block", [(512, 512), (1024, 512), (512, 2048), (1024, 4096), (1536, 1024), (3328, 2816)]
)
def test_visited_keys_are_those_of_the_blocks_that_the_mask_touches(block: tuple[int, int]) -> None:
    """Counted block by block, over a sequence that both sides divide."""
    queries, keys = block
    length = 2 * queries * keys // math.gcd(*block)
    work = replace(CAUSAL, q_len=length, kv_len=length, block=block)
    visited = sum(
        queries * keys
        for first in range(0, length, queries)
        for key in range(0, length, keys)
        if key < first + queries
    )
    assert visited_keys(work) == pytest.approx(visited / length)


def test_large_blocks_gain_on_long_causal_sequences_and_lose_on_short_ones() -> None:
    blocks = [(512, 512), (1024, 1024), (2048, 2048)]
    fastest = [
        max(blocks, key=lambda block, n=n: rate(replace(CAUSAL, q_len=n, kv_len=n, block=block)))
        for n in (2048, 8192, 131072)
    ]
    assert fastest == [(1024, 1024), (1024, 1024), (2048, 2048)]


def test_one_backward_kernel_has_five_of_the_sevenths_of_two() -> None:
    two = replace(FULL, backward=True)
    statistics = statistics_seconds(two, V5P)
    one_s, two_s = (attention_seconds(replace(two, fused=one), V5P) for one in (True, False))
    assert one_s - statistics == pytest.approx((two_s - statistics) * 5 / 7)
    assert attention_seconds(replace(FULL, fused=True), V5P) == attention_seconds(FULL, V5P)


def test_many_bytes_bind_the_kernel_to_hbm() -> None:
    work = replace(FULL, q_len=1, read_bytes=1e9)
    expected = 1e9 / (V5P.hbm_bandwidth * V5P.costs.hbm_efficiency)
    assert attention_seconds(work, V5P) == pytest.approx(expected)
