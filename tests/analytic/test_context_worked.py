"""Attention over a sequence on four devices, by hand.

A decoder of 8 heads of 128 on a sequence of 16,384 tokens, one for each ring of four devices of
v5p 4x4x4 along x: each device has 4,096 tokens. Its block of keys is 4,096 x 8 x 128 x 2 B = 8 MiB,
and so is its block of values. Links carry 90 GB/s one way; a hop starts with 3.6 us, a
kernel with 2.539, a step of its grid with 0.35 on one of two cores, and a merge with 1.213.
"""

from functools import lru_cache

import pytest

from tpusim.hardware import Slice, placement_from
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results import Result
from tpusim.simulation import simulate

POD = Slice("v5p", "4x4x4")
MODEL = Transformer(layers=1, embed=1024, mlp=1024, heads=8, vocab=1024)
HOP = 3.6e-6 + 2 * 8 * 2**20 / 90e9
LAUNCH, GROUP_LAUNCH = 2.539e-6, 1.213e-6
ARRAY, VECTOR, HBM = 0.918 * 459e12, 0.5 * 14e12, 0.85 * 2765e9
FORWARD, BACKWARD, GRID_STEP = 0.92, 0.62, 0.35e-6 / 2
MERGE = 56 * 2**20 / HBM + GROUP_LAUNCH


@lru_cache(maxsize=8)
def run(way: str, tokens: int = 16384, balanced: bool = True) -> Result:
    mesh = {"fsdp": 16, "context": 4}
    plan = Plan(
        mesh=mesh, seq_len=tokens, global_batch=16, context_exchange=way, context_balanced=balanced
    )
    placement = placement_from(POD, mesh, {"fsdp": ["y", "z"], "context": ["x"]})
    return simulate(MODEL, plan, POD, placement=placement)


def seconds(result: Result, name: str) -> float:
    """What one operation takes."""
    (record,) = (one for one in result.timeline.tasks if one.name == name)
    return record.duration_ps * 1e-12


def between(result: Result, first: str, last: str) -> float:
    """From the start of one operation to the end of another."""
    ran = {one.name: one for one in result.timeline.tasks}
    return (ran[last].end_ps - ran[first].start_ps) * 1e-12


def score(products: int, operations: float, efficiency: float) -> float:
    """The seconds of a score: its matmuls over 128 and its vector operations, nearly together."""
    array, vector = 2 * products * 128 / ARRAY, operations / VECTOR
    return float((array**3 + vector**3) ** (1 / 3)) / efficiency


def step(tokens: int, keys: float, blocks: int) -> float:
    """A kernel of 8 heads of 128, which visits so many keys for each of its queries.

    blocks: of 512 x 512 that the grid of a head steps over.
    """
    forward = score(2, 6.6 + 128 / 512, FORWARD)
    return 8 * tokens * keys * forward + 8 * blocks * GRID_STEP + LAUNCH


def step_back(tokens: int, keys: float, blocks: int) -> float:
    """The two kernels for gradients, of one sequence, so that one of two cores does all."""
    each = (score(3, 5.6 + 128 / 512, BACKWARD), score(4, 5.6 + 256 / 512, BACKWARD))
    return 2 * sum(8 * tokens * keys * one + 8 * blocks * GRID_STEP for one in each) + LAUNCH


def test_a_hop_carries_a_block_of_keys_and_one_of_values_one_way() -> None:
    """16 MiB over one link: 186.4 us, and 3.6 before."""
    assert pytest.approx(190e-6, rel=0.001) == HOP
    assert seconds(run("ring"), "layer/attention/keys first") == pytest.approx(HOP, rel=1e-6)


def test_a_kernels_step_sees_half_a_block_on_average() -> None:
    """8 heads x 4,096 queries x 2,048 keys at 1.52 ps a score: 102 us, and 45 of 256 steps.

    The device's own block has half a block of 512 keys more, on the diagonal, and steps over those
    that the mask hides.
    """
    assert step(4096, 2048, 32) == pytest.approx(149e-6, rel=0.005)
    taken = seconds(run("ring"), "layer/attention/step last")
    assert taken == pytest.approx(step(4096, 2048, 32), rel=1e-6)
    own = seconds(run("ring"), "layer/attention/own")
    assert own == pytest.approx(step(4096, 2048 + 256, 64), rel=1e-6)


def test_what_a_step_makes_is_merged_in_a_pass_over_hbm() -> None:
    """8 MiB that the kernel made, 16 that there are in f32, read and written, and statistics.

    These are 512 B for each query and head, 16 MiB: 56 in all, at 2,350 GB/s 25.0 us.
    """
    assert pytest.approx(26.2e-6, rel=0.01) == MERGE
    assert seconds(run("ring"), "layer/attention/result") == pytest.approx(MERGE, rel=1e-6)


def test_a_ring_whose_hops_are_shorter_than_its_steps_is_hidden() -> None:
    """8,192 tokens a device: steps of 590 us and merges of 51, in which each hop of 376 is done."""
    result, merge = run("ring", 32768), 112 * 2**20 / HBM + GROUP_LAUNCH
    took = between(result, "layer/attention/own", "layer/attention/result")
    late = 3 * (step(8192, 4096, 128) + merge)
    assert took == pytest.approx(step(8192, 4096 + 256, 256) + late, rel=1e-6)
    assert step(8192, 4096, 128) == pytest.approx(590e-6, rel=0.005)


def test_a_ring_whose_hops_are_longer_is_exposed() -> None:
    """1,024 tokens a device: three hops of 3.6 + 46.6 us beside steps of 12, and the last step."""
    hop = 3.6e-6 + 2 * 2 * 2**20 / 90e9
    assert hop == pytest.approx(50.2e-6, rel=0.001)
    assert step(1024, 512, 2) == pytest.approx(11.7e-6, rel=0.01)
    took = between(run("ring", 4096), "layer/attention/keys first", "layer/attention/result")
    merge = 14 * 2**20 / HBM + GROUP_LAUNCH
    assert took == pytest.approx(3 * hop + step(1024, 512, 2) + merge, rel=1e-6)


def test_backward_the_sums_follow_the_keys_and_come_home() -> None:
    """32 MiB in f32 a hop, 373 us alone; a step has two kernels, and their results added.

    Keys and sums share the link: 48 MiB in a step are 559 us and 3.6, less than its 1,120.
    """
    result = run("ring")
    kernel = seconds(result, "bwd/layer/attention/d/step last")
    lanes = 8 * 4096 * 512
    layout = (2 * lanes + lanes) / HBM + 2 * GROUP_LAUNCH
    assert kernel == pytest.approx(step_back(4096, 2048, 32) + layout, rel=1e-6)
    home = seconds(result, "bwd/layer/attention/d/home")
    assert home == pytest.approx(3.6e-6 + 32 * 2**20 / 90e9, rel=1e-6)
    names = (one.name for one in result.timeline.waits)
    waits = [name for name in names if name.startswith("bwd/layer/attention/d")]
    assert waits == ["bwd/layer/attention/d/home"]


def test_the_last_of_four_contiguous_parts_works_on_whole_blocks() -> None:
    """All keys of each block that arrives, so twice the time; of its own block half, as before."""
    result = run("ring", balanced=False)
    assert seconds(result, "layer/attention/own") == pytest.approx(step(4096, 2304, 64), rel=1e-6)
    late = seconds(result, "layer/attention/step last")
    assert late == pytest.approx(step(4096, 4096, 64), rel=1e-6)


def test_a_gathered_kernel_sees_half_of_all_keys_or_the_last_of_them_nearly_all() -> None:
    """8,192 and 14,336 of 16,384 keys, 7/4 of the average, and half a block, in 8 x 32 steps."""
    for balanced, keys in ((True, 8192), (False, 14336)):
        kernel = seconds(run("gather", balanced=balanced), "layer/attention")
        assert kernel == pytest.approx(step(4096, keys + 256, 256), rel=1e-6)


def test_exchanged_heads_see_half_of_all_keys() -> None:
    """Two heads of all 16,384 tokens: as much as eight of a quarter of them."""
    kernel = seconds(run("all-to-all"), "layer/attention")
    assert kernel == pytest.approx(step(4096, 8192 + 256, 256), rel=1e-6)
