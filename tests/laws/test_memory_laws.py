"""HBM over a step: its level, its peak and who holds it, in the result and in the figure."""

import random
from functools import cache

import pytest
from accounts import FRAGMENTATION_LABEL
from extent import seeds
from plans import flat, holders, loop, plan_of, small
from test_any_plan import PODS, SEVERAL
from test_offload_laws import ONE, drawn, with_pcie
from test_partition_memory import run as in_order

from tpusim.base import format_bytes
from tpusim.hardware import Slice
from tpusim.program import Compute
from tpusim.report import memory_data
from tpusim.results import Result
from tpusim.simulation import simulate

SEEDS = seeds(24)
ALL = (*[pod for pod in PODS if pod[1] not in ("16x16", "8x8x16")], *SEVERAL, *ONE)


@cache
def result(seed: int, fold: bool = True) -> Result:
    """One of three plans offloads nothing, and some kernels are narrow."""
    model, plan, pod = drawn(seed, ALL)
    if seed % 3 == 0:
        plan = plan.replace(offload=(), offload_optimizer=False)
    if "int8" in pod.chip.flops and seed % 2:
        plan = plan.replace(matmul_dtype="int8")
    return simulate(model, plan, pod, fold=fold)


def resident(r: Result) -> int:
    """Bytes that are there before the step and after it: weights and moments, written over."""
    return int(sum(a.bytes for a in r.program.resident))


def idle(r: Result) -> int:
    """Bytes that are lost between buffers, which count all along."""
    return int(r.memory_bytes.get(FRAGMENTATION_LABEL, 0))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_level_starts_and_ends_with_what_stays_and_is_never_below(seed: int) -> None:
    use, stays = memory_data(result(seed)), resident(result(seed)) + idle(result(seed))
    levels = [level for _, level in use.levels]
    assert use.levels[0] == (0, stays)
    assert levels[-1] == stays == min(levels)
    times = [time for time, _ in use.levels]
    assert times == sorted(times)
    assert times[-1] <= use.end_s


@pytest.mark.parametrize("seed", SEEDS)
def test_the_peak_is_the_highest_level_and_all_of_it_has_a_holder(seed: int) -> None:
    """To the byte, by category and by tensor, in the result, in the figure and in print."""
    r = result(seed)
    use, memory = memory_data(r), r.timeline.memory[0]
    top = max(level for _, level in use.levels)
    assert top == use.peak_bytes == r.hbm_peak_bytes
    assert next(time for time, level in use.levels if level == top) == use.peak_s
    assert sum(r.memory_bytes.values()) == sum(use.held.values()) == top
    assert sum(held.bytes for held in memory.held) + idle(r) == top
    assert all(0 <= held.padded <= held.bytes for held in memory.held)
    sizes = list(r.memory_bytes.values())
    assert sizes == sorted(sizes, reverse=True)
    printed = " + ".join(f"{name} {format_bytes(n)}" for name, n in use.held.items())
    assert printed in " ".join(str(r).split())


@pytest.mark.parametrize("seed", SEEDS)
def test_stacks_of_the_figure_lie_between_the_lowest_level_that_lasts_and_the_peak(
    seed: int,
) -> None:
    use = memory_data(result(seed))
    sums = [sum(held) for held in zip(*use.stacks.values(), strict=True)]
    ends = [*(time for time, _ in use.levels[1:]), use.end_s]
    lasting = [level for (start, level), end in zip(use.levels, ends, strict=True) if end > start]
    assert max(sums) == use.peak_bytes
    assert min(sums) >= min(lasting)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fold_changes_the_memory(seed: int) -> None:
    folded, whole = (result(seed, fold) for fold in (True, False))
    assert memory_data(folded) == memory_data(whole)
    assert folded.timeline.memory[0].held == whole.timeline.memory[0].held


@pytest.mark.parametrize("seed", SEEDS)
def test_the_peak_lies_between_the_largest_operation_and_all_that_is_ever_taken(seed: int) -> None:
    """What an operation reads is there at one time, and so is what it writes.

    A loop takes the stacks that its iterations write, before them.
    """
    r = result(seed)
    ops, takers = list(flat(r.program.body)), list(holders(r.program.body))
    taken = sum(n * float(alloc.bytes) for op, n in takers for alloc in op.allocs)
    assert r.hbm_peak_bytes <= resident(r) + taken + idle(r)
    works = [op.work for op, _ in ops if isinstance(op, Compute)]
    assert r.hbm_peak_bytes >= max(float(work.read_bytes) for work in works)
    assert r.hbm_peak_bytes >= max(float(work.write_bytes) for work in works)
    assert r.hbm_peak_bytes >= resident(r) + max(
        sum(float(alloc.bytes) for alloc in op.allocs) for op, _ in takers
    )


@pytest.mark.parametrize("seed", seeds(16))
def test_on_one_device_the_peak_is_that_of_the_operations_in_their_order(seed: int) -> None:
    """Summed up without the engine: nothing runs beside anything else."""
    model, plan, pod = drawn(seed, ONE)
    r = simulate(model, plan.replace(offload=(), offload_optimizer=False), pod)
    held = {alloc.tensor: float(alloc.bytes) for alloc in r.program.resident}
    assert r.hbm_peak_bytes == in_order(r.program.body, held) + idle(r)
    assert sum(held.values()) == resident(r)


@pytest.mark.parametrize("speed", [1, 1e-2, 1e-4])
@pytest.mark.parametrize("seed", seeds(6))
def test_two_layers_copies_are_in_hbm_however_slow_the_host_is(seed: int, speed: float) -> None:
    """A layer begins when those of the layer before the last have left; one is fetched ahead."""
    rng = random.Random(seed)
    names = rng.sample(["layer_in", "q", "v", "context", "out", "mlp_hidden"], rng.randint(1, 3))
    model = small(layers=8, parallel=rng.random() < 0.5, attention=rng.choice(["dot", "flash"]))
    plan = plan_of({"fsdp": 16}, seq_len=512, global_batch=64, offload=names)
    r = simulate(model, plan, with_pcie(Slice("v5e", "4x4"), speed), fold=False)
    forward, backward = (computed(r, name) for name in ("layers", "layers/d"))
    for name in names:
        left = [end for _, end in times(r, f"to-host/layer/{name}")]
        assert all(gone <= begun for gone, (begun, _) in zip(left, forward[2:], strict=False))
        fetched = [start for start, _ in times(r, f"from-host/layer/{name}")]
        assert all(done <= start for (_, done), start in zip(backward, fetched[1:], strict=False))
        assert (len(left), len(fetched)) == (8, 7)


def times(r: Result, name: str) -> list[tuple[int, int]]:
    """Start and end of each run of an operation, in ps."""
    return [(t.start_ps, t.end_ps) for t in r.timeline.tasks if t.name == name]


def computed(r: Result, scan: str) -> list[tuple[int, int]]:
    """Start of the first and end of the last operation of the core in each trip of a loop."""
    names = [op.name for op in loop(r.program.body, scan).body if isinstance(op, Compute)]
    first, last = times(r, names[0]), times(r, names[-1])
    return [(start, end) for (start, _), (_, end) in zip(first, last, strict=True)]
