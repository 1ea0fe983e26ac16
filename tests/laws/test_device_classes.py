"""Slices with slow parts: a lane for each class of devices says what one for each device says."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from extent import seeds
from test_any_plan import random_model, random_plan

from tpusim.base import PlanError
from tpusim.engine import Timeline
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results import breakdown_ps
from tpusim.simulation import simulate

PODS = (
    ("v4", "2x2x1", 1), ("v4", "2x2x2", 1), ("v4", "2x2x4", 1), ("v5e", "4x4", 1),
    ("v5e", "2x4", 2), ("v6e", "2x4", 1), ("7x", "2x2x1", 2), ("7x", "2x2x2", 1),
    ("v5p", "2x2x1", 3), ("v3", "4x4", 1),
)  # fmt: skip


def random_slow(rng: random.Random, pod: Slice) -> dict[str, Any]:
    """Slow chips, links and slices; at least one of them."""
    dims, wrap = pod.topology.dims, pod.topology.wrap

    def number() -> int:
        return rng.randrange(pod.num_slices)

    def chip() -> list[int]:
        return [rng.randrange(length) for length in dims]

    def share() -> float:
        return rng.choice([0.25, 0.5, 0.8, 0.95])

    def link() -> Iterator[dict[str, Any]]:
        one = chip()
        dim = rng.randrange(len(dims))
        if dims[dim] > 1:
            other = list(one)
            other[dim] += 1 if one[dim] + 1 < dims[dim] or wrap[dim] else -1
            other[dim] %= dims[dim]
            yield {"between": [one, other], "bandwidth": share(), "slice": number()}

    chips = {
        (tuple(at), s): {"at": at, "slice": s, rng.choice(["compute", "hbm"]): share()}
        for at, s in ((chip(), number()) for _ in range(rng.choice([0, 1, 1, 2, 3])))
    }
    links = {
        (frozenset(map(tuple, each["between"])), each["slice"]): each
        for _ in range(rng.choice([0, 0, 1, 2]))
        for each in link()
    }
    slices = [{"slice": number(), "compute": share()}] if rng.random() < 0.2 else []
    made = {"chips": [*chips.values()], "links": [*links.values()], "slices": slices}
    return made if any(made.values()) else {"chips": [{"at": chip(), "hbm": share()}]}


@cache
def both(seed: int) -> tuple[Timeline, Timeline]:
    """A random plan on a random slice with slow parts, folded and unfolded."""
    rng = random.Random(seed)
    while True:
        chip, shape, slices = rng.choice(PODS)
        healthy = Slice(chip, shape, slices)
        pod = Slice(chip, shape, slices, slow=random_slow(rng, healthy))
        model, plan = random_model(rng), random_plan(rng, pod)
        plan = replace(plan, global_batch=min(plan.global_batch, plan.microbatches * pod.devices))
        try:
            folded = simulate(replace(model, layers=min(model.layers, 3)), plan, pod)
        except PlanError as error:
            if "slow" in str(error):
                raise
            continue
        unfolded = simulate(
            replace(model, layers=min(model.layers, 3)),
            plan,
            pod,
            placement=folded.placement,
            fold=False,
        )
        return folded.timeline, unfolded.timeline


def of_lane(timeline: Timeline, lane: int, names: dict[str, int]) -> tuple[Any, ...]:
    """All that a lane did, with the classes of those that it waited for."""
    records = [each for each in (*timeline.tasks, *timeline.waits) if each.lane == lane]
    spans = Counter(
        (each.name, each.label, names.get(each.stream, each.stream), start, each.duration_ps)
        for each in records
        for start in each.starts()
    )
    links = [use[1:] for use in timeline.links if use.lane == lane]
    return timeline.lanes[lane][1], spans, links, timeline.memory[lane][:3]


@pytest.mark.parametrize("seed", seeds(200, default=1))
def test_folded_is_unfolded(seed: int) -> None:
    folded, unfolded = both(seed)
    assert folded.total_ps == unfolded.total_ps
    assert breakdown_ps(folded) == breakdown_ps(unfolded)
    assert sum(breakdown_ps(folded).values()) == folded.total_ps
    # Lanes of devices are in the order of their classes.
    classes = [at for at, count in enumerate(folded.devices) for _ in range(count)]
    assert len(classes) == len(unfolded.lanes)
    known = {name: at for at, (name, _) in enumerate(folded.lanes)}
    single = {name: at for at, (name, _) in zip(classes, unfolded.lanes, strict=True)}
    of_class = [of_lane(folded, at, known) for at in range(len(folded.lanes))]
    for lane, at in enumerate(classes):
        assert of_lane(unfolded, lane, single) == of_class[at]


@pytest.mark.parametrize("remat", ["minimal", "full"])
def test_layers_on_slow_chips_fold_as_those_of_healthy_ones(remat: str) -> None:
    """A wait that is over does not keep the iterations after it apart."""
    model = Transformer(layers=48, embed=1024, mlp=4096, heads=8, vocab=1000)
    pod = Slice("v6e", "4x8", slow={"chips": [{"at": [1, 6], "compute": 0.95}]})
    rules = {"embed": "data", "act_seq": "tensor"}
    plan = Plan(
        mesh={"tensor": 8, "data": 2, "fsdp": 2}, seq_len=2048, global_batch=64, microbatches=2,
        rules=rules, remat=remat, save=["q", "mlp_hidden"], lowering="ideal",
    )  # fmt: skip
    stats = simulate(model, plan, pod).timeline.stats
    assert stats.trips > 1500
    assert stats.trips_simulated < stats.trips / 15
