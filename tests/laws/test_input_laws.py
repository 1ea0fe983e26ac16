"""Laws of hosts that feed a step: limits of queueing theory, conservation, and the steady state."""

import random
from math import inf

import pytest
from extent import seeds, thorough

from tpusim.engine import HostLine, HostRun, HostStage, feed

PS = 10**6


def line(rng: random.Random, name: str = "host") -> HostLine:
    """A host of random stages, the last of which may take whole batches."""
    stages = [
        HostStage(f"stage {at}", rng.randrange(1, 5000), rng.choice((1, 1, 2, 3, 7)))
        for at in range(rng.randrange(1, 5))
    ]
    if rng.random() < 0.5:
        stages.append(HostStage("copy", rng.randrange(1, 5000), whole=True))
    return HostLine(name, tuple(stages), rng.randrange(1, 12))


def batch_ps(host: HostLine) -> float:
    """The time of a batch in the slowest stage of a host."""
    return max(
        stage.block_ps * (1 if stage.whole else host.blocks) / stage.servers
        for stage in host.stages
    )


@pytest.mark.parametrize("seed", seeds(40))
def test_the_slowest_stage_decides(seed: int) -> None:
    """Exactly, with prefetch enough: the mean step is the longest of the device and all stages.

    No steady state is found where a host is so little faster that it is still filling its prefetch
    after all steps, and only there.
    """
    rng = random.Random(seed)
    hosts = [line(rng) for _ in range(rng.randrange(1, 4))]
    slowest = max(map(batch_ps, hosts))
    step_ps = rng.randrange(1, int(2 * slowest) + 2)
    found = feed(hosts, step_ps, prefetch=30)
    filling = [made for made, taken in found.batches if made < taken + 29]
    assert found.steady or filling
    assert found.period_ps / found.steps == pytest.approx(max(step_ps, slowest), rel=1e-3)


@pytest.mark.parametrize("seed", seeds(40))
def test_batches_and_work_are_conserved(seed: int) -> None:
    """No step without its batch, none ahead of what may be, and each block passes each stage once.

    The work of a stage in a period is that of as many batches as steps, whatever waits where.
    """
    rng = random.Random(seed)
    hosts, prefetch = [line(rng) for _ in range(2)], rng.randrange(4)
    found = feed(hosts, rng.randrange(1, 30_000), prefetch)
    assert found.steady
    for made, taken in found.batches:
        assert taken == found.simulated + 1
        assert taken <= made <= taken + prefetch
    for use in found.uses:
        host = hosts[use.host]
        stage = next(stage for stage in host.stages if stage.name == use.name)
        work = stage.block_ps * (1 if stage.whole else host.blocks) * found.steps
        assert use.busy * stage.servers * found.period_ps == pytest.approx(work, rel=1e-9)


@pytest.mark.parametrize("seed", seeds(30))
def test_the_period_is_that_of_many_steps(seed: int) -> None:
    """Folded is unfolded: ten periods more, run one by one, take ten times the period."""
    rng = random.Random(seed)
    hosts, prefetch = [line(rng) for _ in range(2)], rng.randrange(4)
    step_ps = rng.randrange(1, 30_000)
    found = feed(hosts, step_ps, prefetch)
    assert found.steady
    begins = starts(hosts, step_ps, prefetch, found.simulated + 10 * found.steps)
    later = begins[-1] - begins[found.simulated]
    assert later == 10 * found.period_ps


def starts(hosts: list[HostLine], step_ps: int, prefetch: int, steps: int) -> list[int]:
    """When each step begins, by recursion over blocks: no processes, no queues, no states."""
    begins: list[int] = []
    ends: list[list[list[int]]] = [[[] for _ in host.stages] for host in hosts]
    for number in range(steps + 1):
        free = begins[-1] + step_ps if begins else 0
        arrivals = [free]
        for host, done in zip(hosts, ends, strict=True):
            allowed = 0 if number < prefetch else (begins[number - prefetch] if prefetch else free)
            arrivals.append(_batch(host, done, allowed))
        begins.append(max(arrivals))
    return begins


def _batch(host: HostLine, done: list[list[int]], allowed: int) -> int:
    """When a host has its next batch ready, if it may begin it at a time."""
    ready = [allowed] * host.blocks
    for stage, ended in zip(host.stages, done, strict=True):
        ready = [max(ready)] if stage.whole else ready
        for at, came in enumerate(ready):
            server = ended[-stage.servers] if len(ended) >= stage.servers else 0
            ended.append(max(came, server) + stage.block_ps)
            ready[at] = ended[-1]
    return max(ready)


@pytest.mark.parametrize("seed", seeds(30))
def test_more_prefetch_and_faster_stages_never_hurt(seed: int) -> None:
    rng = random.Random(seed)
    host, step_ps = line(rng), rng.randrange(1, 30_000)
    means = [mean(feed([host], step_ps, prefetch)) for prefetch in range(5)]
    assert means == sorted(means, reverse=True)
    fast = host._replace(
        stages=tuple(stage._replace(block_ps=stage.block_ps // 2) for stage in host.stages)
    )
    assert mean(feed([fast], step_ps, 1)) <= means[1]


def mean(run: HostRun) -> float:
    return run.period_ps / run.steps


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_stages_that_take_no_time_add_none(prefetch: int) -> None:
    host = HostLine("host", (HostStage("decode", 0), HostStage("copy", 0, whole=True)), 8)
    found = feed([host], 12_345, prefetch)
    assert (found.step_ps, found.first_ps) == (12_345, 0)


def test_hosts_that_are_alike_are_one() -> None:
    rng = random.Random(4)
    host = line(rng)
    one, many = (feed(hosts, 777, 2) for hosts in ([host], [host] * 6))
    assert (one.step_ps, one.steps, one.first_ps) == (many.step_ps, many.steps, many.first_ps)


@pytest.mark.thorough
@pytest.mark.parametrize("load", [0.5])
def test_the_queue_of_poisson_arrivals(load: float) -> None:
    """M/D/1: `load^2 / 2 (1 - load)` wait on average (Pollaczek and Khinchine)."""
    stages = (HostStage("read", PS, variation=1.0), HostStage("decode", int(load * PS)))
    found = feed([HostLine("host", stages, 1)], 0, 2000, seed=0, steps=100_000)
    assert not found.steady
    assert found.uses[1].busy == pytest.approx(load, rel=0.02)
    assert found.uses[1].queue == pytest.approx(load**2 / 2 / (1 - load), rel=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize(("prefetch", "stages"), [thorough(1, 3), (4, 3), thorough(6, 2)])
def test_the_throughput_of_tandem_queues(prefetch: int, stages: int) -> None:
    """n jobs in a circle of m exponential servers: `n / (n + m - 1)` each (Gordon and Newell)."""
    row = tuple(HostStage(f"stage {at}", PS, variation=1.0) for at in range(stages))
    found = feed([HostLine("host", row, 1)], 0, prefetch, seed=1, steps=60_000)
    rate = prefetch / (prefetch + stages - 1)
    assert PS / found.step_ps == pytest.approx(rate, rel=0.02)


def test_no_steady_state_is_said() -> None:
    """A host that is faster by a part in a million would take a million steps to fill up."""
    stages = (HostStage("decode", 10**6 - 1),)
    found = feed([HostLine("host", stages, 1)], 10**6, 100_000, steps=300)
    assert not found.steady
    assert found.step_ps == 10**6
    assert inf > found.simulated == 300
