"""The steps of attention kernels, the blocks that they visit, and what a score takes."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tpusim.costs import attention_seconds
from tpusim.costs.attention import (
    grid_steps,
    idle_cores,
    kernel_flops,
    prepared_seconds,
    score_seconds,
    visited_keys,
)
from tpusim.hardware import load_chip
from tpusim.program import FLASH, SPLASH, TOKAMAX, AttentionWork, seen_keys

FULL = AttentionWork(2, 16, 8192, 8192, 128, "bf16", False, 0, False, 0, 0)
CAUSAL = replace(FULL, causal=True)
V5E, V5P, V6E = (
    load_chip(name).replace(op_launch=0.0, vector_launch=0.0).device
    for name in ("v5e", "v5p", "v6e")
)


def test_causal_visits_half_and_the_diagonal_blocks() -> None:
    """Blocks of 512: 136 of 256, as the measured kernel."""
    assert visited_keys(CAUSAL) / visited_keys(FULL) == 136 / 256


def test_one_block_is_visited_whole() -> None:
    assert visited_keys(replace(CAUSAL, q_len=512, kv_len=512)) == 512


def test_a_window_cuts_the_keys() -> None:
    assert visited_keys(replace(FULL, window=1024)) == 1024 + 512
    assert visited_keys(replace(CAUSAL, window=1024)) == pytest.approx(1024 - 64 + 512)
    assert visited_keys(replace(CAUSAL, window=8192)) == visited_keys(CAUSAL)


def test_splash_attention_steps_over_the_blocks_that_a_causal_mask_hides() -> None:
    """16 x 16 blocks of each of 32 heads, of which Tokamax visits 136 only."""
    steps = [grid_steps(work, "forward") for work in (FULL, CAUSAL)]
    assert steps == [32 * 256, 32 * 256]
    assert grid_steps(replace(CAUSAL, library=TOKAMAX), "forward") == 32 * 136
    assert grid_steps(replace(CAUSAL, window=1024), "forward") < 32 * 256 / 4


def test_a_step_of_flash_attention_has_two_sequences_or_twice_the_queries() -> None:
    flash = replace(CAUSAL, library=FLASH)
    steps = [grid_steps(flash, kernel) for kernel in ("forward", "dq", "dkv")]
    assert steps == [16 * 256, 32 * 128, 32 * 256]
    assert grid_steps(replace(flash, batch=1), "forward") == 16 * 256


def test_a_score_takes_the_array_and_the_vector_unit_beside_each_other() -> None:
    """Between the larger of the two and their sum; the vector unit decides on v6e."""
    costs = V6E.costs
    array = kernel_flops(CAUSAL, "forward", 256) / V6E.flops["bf16"] / costs.matmul_efficiency
    vector = (6.6 + 128 / 512) / (V6E.vpu_flops * costs.vector_efficiency)
    assert score_seconds(CAUSAL, "forward", V6E) == pytest.approx(
        (array**3 + vector**3) ** (1 / 3) / costs.attention_efficiency_forward
    )
    assert vector > array


def test_steps_and_scores_add_up() -> None:
    work = replace(FULL, block=(1024, 2048))
    steps = 32 * 8 * 4 * V6E.costs.kernel_step
    scores = 32 * 8192 * 8192 * score_seconds(work, "forward", V6E)
    assert attention_seconds(work, V6E) == pytest.approx(steps + scores)


def test_two_cores_share_the_forward_kernel_and_deal_out_sequences_backward() -> None:
    """JAX's backward kernels are `arbitrary` in heads; `vmap` makes sequences parallel."""
    alone, two, three = (replace(FULL, batch=batch, backward=True) for batch in (1, 2, 3))
    assert [idle_cores(work, "dq", 2) for work in (alone, two, three)] == [2, 1, 4 / 3]
    assert idle_cores(alone, "forward", 2) == idle_cores(alone, "dq", 1) == 1
    seconds = [attention_seconds(work, V5P) - prepared_seconds(work, V5P) for work in (alone, two)]
    assert seconds[0] == pytest.approx(seconds[1])


@pytest.mark.parametrize(
    ("device", "kernels", "block", "cycles"),
    [
        (V5P, ("forward",), 512, 1348),
        (V6E, ("forward",), 512, 1031),
        (V5E, ("all",), 512, 2824),
        (V5E, ("dq", "dkv"), 512, 4014),
    ],
)
def test_scores_take_about_what_the_compiler_schedules(
    device, kernels: tuple[str, ...], block: int, cycles: int
) -> None:
    """Of splash attention of jax 0.10.2, per core (libtpu 0.0.42.1), by the equation alone."""
    exact = device.costs
    scores = sum(
        score_seconds(replace(FULL, backward=kernel != "forward"), kernel, device)
        * (exact.attention_efficiency_forward if kernel == "forward"
           else exact.attention_efficiency_backward)
        for kernel in kernels
    )  # fmt: skip
    found = scores * block**2 * device.clock * device.tensor_cores
    assert found == pytest.approx(cycles, rel=0.09)
    page = (Path(__file__).parents[3] / "docs/compiler.md").read_text("utf-8")
    assert f"{cycles}" in page
    assert re.search(rf"the equation of .* has .*\b{found:.0f}\b", page)


def test_widths_round_up_to_the_array() -> None:
    """128 takes as long as 256 on an array of 256, and each width counts by itself."""
    widths = (64, 128, 192)
    assert [kernel_flops(replace(FULL, head_dim=n), "forward", 128) for n in widths] == [
        4 * n for n in (128, 128, 256)
    ]
    assert kernel_flops(FULL, "dq", 256) == kernel_flops(replace(FULL, head_dim=256), "dq", 256)
    assert kernel_flops(replace(FULL, head_dim=192, value_dim=128), "all", 128) == 2 * (
        3 * 256 + 2 * 128
    )


def rate(work: AttentionWork) -> float:
    """Scores that count, per second."""
    return float(seen_keys(work) * work.q_len / attention_seconds(work, V6E))


def test_large_blocks_are_faster_where_nothing_is_masked() -> None:
    sides = (128, 256, 512, 1024, 2048, 4096)
    rates = [rate(replace(FULL, block=(side, side))) for side in sides]
    assert rates == sorted(rates)
    assert rates[3] > 4 / 3 * rates[2]  # a third faster or more (AXLearn PR #958)


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
    assert fastest == [(1024, 1024), (2048, 2048), (2048, 2048)]


def test_one_backward_kernel_has_five_of_seven_matmuls_and_half_the_steps() -> None:
    two = replace(FULL, backward=True)
    one = replace(two, fused=True)
    one_s, two_s = (attention_seconds(w, V5E) - prepared_seconds(w, V5E) for w in (one, two))
    assert 0.5 < one_s / two_s < 5 / 7 * 1.03
    assert attention_seconds(replace(FULL, fused=True), V5E) == attention_seconds(FULL, V5E)


def test_parts_of_the_gradient_of_the_queries_are_added_up_after_one_kernel() -> None:
    """Of 16 blocks of keys each: 16 read and one written, besides the statistics."""
    two, one = (replace(FULL, backward=True, fused=fused) for fused in (False, True))
    tensor = 2 * 2 * 16 * 8192 * 128
    rate = V6E.hbm_bandwidth * V6E.costs.hbm_efficiency
    more = prepared_seconds(one, V6E) - prepared_seconds(two, V6E)
    assert more == pytest.approx(17 * tensor / rate)
    assert prepared_seconds(replace(one, part="all"), V6E) == 0
    assert prepared_seconds(two, V6E) == pytest.approx(3 * 2 * 16 * 8192 * 512 / rate)


def test_tokamax_s_forward_kernel_is_bound_by_the_array() -> None:
    """It does less for each score, and its backward kernels the same."""
    splash, tokamax = (
        replace(CAUSAL, block=(2048, 1024), library=library) for library in (SPLASH, TOKAMAX)
    )
    assert score_seconds(splash, "forward", V6E) > 1.4 * score_seconds(tokamax, "forward", V6E)
    back = [replace(work, backward=True) for work in (splash, tokamax)]
    assert score_seconds(back[0], "all", V6E) == score_seconds(back[1], "all", V6E)


def test_many_bytes_bind_the_kernel_to_hbm() -> None:
    work = replace(FULL, q_len=1, read_bytes=1e9)
    expected = 1e9 / (V5P.hbm_bandwidth * V5P.costs.hbm_efficiency)
    assert attention_seconds(work, V5P) == pytest.approx(expected)
