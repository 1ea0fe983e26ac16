"""Element-wise groups: memory, core, and what of both does not overlap."""

import pytest

from tpusim.costs.compute import group_seconds
from tpusim.hardware import load_chip
from tpusim.program import VectorWork

GROUP_7X = load_chip("7x").device


def compiled(read: float, write: float, flops: float = 0, crossing: float = 0) -> VectorWork:
    return VectorWork(read, write, flops, crossing=crossing, compiled=True)


def test_a_compiled_group_pays_for_the_memory_that_it_touches() -> None:
    """From HBM to VMEM, from VMEM to HBM, from HBM to HBM, and on the chip (profiles of 7x).

    Of other chips it is not known.
    """
    found = [
        float(group_seconds(work, GROUP_7X)) * 1e6
        for work in (compiled(64, 0), compiled(0, 64), compiled(64, 64), compiled(0, 0, 1024))
    ]
    assert found == pytest.approx([0.72, 0.55, 1.27, 0.0], abs=0.05)
    v5p = load_chip("v5p").device
    assert group_seconds(compiled(0, 0), v5p) == v5p.costs.vector_launch


def test_memory_and_core_overlap_but_for_the_fill() -> None:
    costs = GROUP_7X.costs
    launch = costs.chip_launch + 0.57 * costs.vector_launch
    for nbytes, flops in ((1e6, 1e7), (1e8, 1e8), (1e9, 1e6)):
        memory = nbytes / (GROUP_7X.hbm_bandwidth * costs.hbm_efficiency)
        core = flops / GROUP_7X.vpu_flops
        fill = min(memory, core, costs.group_fill)
        found = group_seconds(compiled(nbytes, 0, flops), GROUP_7X)
        assert found == pytest.approx(max(memory, core) + fill + launch)


def test_tiles_cross_lanes_beside_the_vector_unit() -> None:
    tiles, flops = 4096, 1e6
    found = group_seconds(compiled(0, 0, flops, tiles), GROUP_7X)
    costs = GROUP_7X.costs
    assert found == pytest.approx(tiles * costs.lane_crossing + costs.chip_launch)


def test_a_group_of_a_plan_launches_whole_and_counts_fewer_operations() -> None:
    costs, flops = GROUP_7X.costs, 1e9
    found = group_seconds(VectorWork(0, 0, flops), GROUP_7X)
    wanted = flops / (GROUP_7X.vpu_flops * costs.vector_efficiency) + costs.vector_launch
    assert found == pytest.approx(wanted)
