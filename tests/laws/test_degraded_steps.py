"""Steps on slices with broken links, over random plans of every kind.

A degraded slice is never faster than the healthy one, a switch costs at least what one of its links
does, a lane for each class of devices says what one for each device says, and the same input gives
the same bytes.
"""

import random
from dataclasses import replace
from functools import cache

import pytest
from extent import seeds, thorough
from test_any_plan import random_model, random_plan

from tpusim.base import HardwareError, PlanError, TpusimError
from tpusim.bounds import bound
from tpusim.hardware import FAULTS, Slice, degraded
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.report import document
from tpusim.results import PlanResult, breakdown_ps
from tpusim.simulation import simulate, slowdown

PODS = "4x4x4", "4x4x8", "4x4x8_twisted", "4x8x8"
BALANCE = 0.01
"""How much more a search of routes may gain with a switch out than with one of its links."""


def piped(rng: random.Random, pod: Slice, plan: Plan) -> Plan:
    """A pipeline of several programs on the pod, or of one."""
    mesh = {"stage": 4, "fsdp": pod.devices // 4}
    schedule = rng.choice(["1f1b", "gpipe", "circular"])
    batch = pod.devices * 4
    return Plan(
        mesh=mesh, seq_len=plan.seq_len, global_batch=batch, microbatches=4, schedule=schedule
    )


@cache
def steps(seed: int) -> tuple[Transformer, Plan, dict[str, PlanResult]]:
    """A random plan, and its steps on a healthy slice, with a link out, and with its switch out."""
    rng = random.Random(seed)
    while True:
        pod = Slice(rng.choice(["v4", "v5p"]), rng.choice(PODS))
        model, plan = random_model(rng), random_plan(rng, pod)
        model = replace(model, layers=4)
        if rng.random() < 0.3:
            plan = piped(rng, pod, plan)
        dim = rng.randrange(3)
        try:
            healthy = simulate(model, plan, pod)
        except TpusimError:
            continue
        faulty = {fault: simulate(model, plan, degraded(pod, fault, dim)) for fault in FAULTS}
        return model, plan, {"": healthy} | faulty


@pytest.mark.parametrize("seed", seeds(60, default=2))
def test_no_fault_gains_and_a_switch_costs_most(seed: int) -> None:
    _, _, found = steps(seed)
    healthy, link, switch = (found[name].timeline.total_ps for name in ("", *FAULTS))
    assert healthy <= link
    assert healthy <= switch
    assert link <= switch * (1 + BALANCE)
    for each in found.values():
        assert sum(breakdown_ps(each.timeline).values()) == each.timeline.total_ps


@pytest.mark.parametrize("seed", seeds(20, default=1))
def test_the_bound_of_a_degraded_slice_is_below_its_step(seed: int) -> None:
    model, plan, found = steps(seed)
    pod = found["switch"].pod
    assert bound(model, plan, pod) <= found["switch"].step_time_s


@pytest.mark.parametrize("seed", seeds(20, default=2))
def test_the_same_input_gives_the_same_bytes(seed: int) -> None:
    model, plan, found = steps(seed)
    again = simulate(model, plan, found["switch"].pod)
    assert document(again) == document(found["switch"])


@pytest.mark.parametrize("seed", seeds(20, default=1))
def test_folded_is_unfolded(seed: int) -> None:
    model, plan, found = steps(seed)
    folded = found["switch"]
    if len(folded.programs) > 1:
        return
    unfolded = simulate(model, plan, folded.pod, placement=folded.placement, fold=False)
    assert folded.timeline.total_ps == unfolded.timeline.total_ps
    assert breakdown_ps(folded.timeline) == breakdown_ps(unfolded.timeline)


MODEL = Transformer(layers=4, embed=512, mlp=2048, heads=8, vocab=1024)


@pytest.mark.parametrize("mesh", [thorough({"data": 64}), {"fsdp": 16, "tensor": 4}])
@pytest.mark.parametrize("dim", [0, thorough(2)])
def test_messages_around_broken_links_take_as_long_as_flows(mesh: dict[str, int], dim: int) -> None:
    pod = degraded(Slice("v4", "4x4x4"), "switch", dim)
    plan = Plan(mesh=mesh, seq_len=128, global_batch=64)
    flows, hops = (simulate(MODEL, plan, pod, network=mode) for mode in ("flows", "hops"))
    healthy = simulate(MODEL, plan, pod.healthy, network="hops")
    assert healthy.step_time_s <= hops.step_time_s
    assert hops.step_time_s == pytest.approx(flows.step_time_s, rel=0.1)


def test_a_slowdown_is_that_of_the_worst_dimension() -> None:
    pod, plan = Slice("v4", "4x4x4"), Plan(mesh={"fsdp": 64}, seq_len=128, global_batch=64)
    found = slowdown(MODEL, plan, pod, "link")
    steps = [simulate(MODEL, plan, degraded(pod, "link", dim)).step_time_s for dim in range(3)]
    assert found.step_s == max(steps)
    assert found.healthy_s == simulate(MODEL, plan, pod).step_time_s
    assert found.factor == found.step_s / found.healthy_s > 1
    with pytest.raises(HardwareError, match="ends with its first broken link"):
        slowdown(MODEL, replace(plan, mesh={"fsdp": 16}), Slice("v5e", "4x4"), "link")


@pytest.mark.parametrize("network", ["hops"])
def test_slow_parts_are_not_followed_message_by_message(network: str) -> None:
    slow = {"chips": [{"at": [0, 0, 0], "compute": 0.5}]}
    pod = Slice("v4", "4x4x4", slow=slow, broken={"switches": [{"dim": 0, "at": [0, 0]}]})
    plan = Plan(mesh={"fsdp": 64}, seq_len=128, global_batch=64)
    assert simulate(MODEL, plan, pod).step_time_s >= simulate(MODEL, plan, pod.healthy).step_time_s
    with pytest.raises(PlanError, match="slow parts"):
        simulate(MODEL, plan, pod, network=network)
