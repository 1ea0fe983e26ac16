"""A plan whose numbers come from a recorded step has the result of lowering it, to the last bit."""

import random
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest
from extent import seeds
from plans import small

from tpusim.base.errors import PlanError
from tpusim.hardware import Slice, candidates
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results.plan_result import PlanResult
from tpusim.simulation import plan_run, simulate
from tpusim.simulation.recorded_runs import RecordedRuns

PLANS = 5
"""Plans of each kind, which share the recorded steps of their forms."""


class Kind(NamedTuple):
    """A kind of plans: its slice, axes whose sizes are drawn, axes of fixed size, and keys."""

    model: Transformer
    pod: Slice
    axes: tuple[str, ...]
    fixed: Mapping[str, int] = {}
    keys: Mapping[str, Any] = {}


DENSE = small(layers=8, vocab=1024)
EXPERTS = small(layers=4, experts=8, experts_per_token=2)
POD = Slice("v5p", "4x4x4")

KINDS = {
    "dense": Kind(DENSE, POD, ("data", "fsdp", "tensor")),
    "ideal": Kind(DENSE, Slice("v6e", "8x8"), ("fsdp", "tensor"), keys={"lowering": "ideal"}),
    "fastest algorithms": Kind(
        DENSE, Slice("v6e", "8x8"), ("data", "fsdp"), keys={"collectives": "best"}
    ),
    "per step": Kind(
        DENSE, POD, ("data", "fsdp"), keys={"gradient_reduction": "per-step", "microbatches": 4}
    ),
    "quantised": Kind(
        DENSE, Slice("v6e", "4x8"), ("fsdp", "tensor"), keys={"matmul_dtype": "int8"}
    ),
    "sorted experts": Kind(EXPERTS, POD, ("fsdp", "expert"), keys={"dispatch": "sort"}),
    "experts of a capacity": Kind(
        EXPERTS, POD, ("data", "expert"), keys={"dispatch": "one_hot", "capacity_factor": 1.25}
    ),
    "context": Kind(DENSE, POD, ("fsdp", "context"), keys={"context_exchange": "ring"}),
    "several slices": Kind(
        DENSE, Slice("v5e", "4x4", num_slices=4), ("fsdp", "tensor"), {"dcn_data": 4}
    ),
    **{
        schedule: Kind(DENSE, POD, ("fsdp", "tensor"), {"stage": 4}, {"schedule": schedule})
        for schedule in ("gpipe", "1f1b", "zb-h1", "zb-h2")
    },
    **{
        schedule: Kind(
            DENSE, POD, ("fsdp", "data"), {"stage": 4}, {"schedule": schedule, "virtual_stages": 2}
        )
        for schedule in ("interleaved", "circular")
    },
    "stages in slices": Kind(
        DENSE, Slice("v5e", "4x4", num_slices=2), ("fsdp", "tensor"), {"dcn_stage": 2}
    ),
}


def random_plan(rng: random.Random, kind: Kind) -> Plan:
    """A plan of a kind; two of one seed differ in their meshes and batches."""
    left = kind.pod.devices
    for size in kind.fixed.values():
        left //= size
    mesh = dict(kind.fixed)
    for axis in kind.axes[1:]:
        mesh[axis] = rng.choice([size for size in (1, 2, 4, 8) if left % size == 0])
        left //= mesh[axis]
    mesh[kind.axes[0]] = left
    microbatches = 8 if "stage" in mesh or "dcn_stage" in mesh else 1
    keys = {"microbatches": microbatches, "seq_len": 256} | dict(kind.keys)
    batch = kind.pod.devices * keys["microbatches"] * rng.choice([1, 2, 3])
    return Plan(mesh=mesh, global_batch=batch, **keys)


class _NoRuns:
    """Lowers every plan."""

    def fastest(self, *_: Any, **__: Any) -> None:
        return None


def result_of(kind: Kind, plan: Plan, runs: object, patch: pytest.MonkeyPatch) -> PlanResult | str:
    patch.setattr(plan_run, "RECORDED", runs)
    try:
        return simulate(kind.model, plan, kind.pod)
    except PlanError as error:
        return str(error)


def facts(result: PlanResult | str) -> Any:
    """All that a result says."""
    if isinstance(result, str):
        return result
    timeline = result.timeline
    memory = [(each.peak_bytes, each.peak_ps, each.held, each.changes) for each in timeline.memory]
    return {
        "step": result.step_time_s,
        "breakdown": list(result.breakdown_s.items()),
        "memory": (result.memory_bytes, result.lane, memory),
        "links": (result.link_use, timeline.links),
        "flops": result.flops,
        "tokens": result.tokens,
        "placement": result.placement,
        "verdicts": (result.verdicts, result.implicit_reshardings),
        "records": (timeline.lanes, tuple(timeline.tasks), tuple(timeline.waits)),
        "text": str(result),
    }


@pytest.mark.parametrize("seed", seeds(12, default=1))
@pytest.mark.parametrize("name", KINDS)
def test_a_recorded_step_has_the_result_of_the_lowered_one(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, kind, runs = random.Random(f"{name} {seed}"), KINDS[name], RecordedRuns()
    for _ in range(PLANS):
        plan = random_plan(rng, kind)
        lowered = result_of(kind, plan, _NoRuns(), monkeypatch)
        has_step(runs, kind, plan)
        assert facts(result_of(kind, plan, runs, monkeypatch)) == facts(lowered), plan
        assert isinstance(lowered, str) or has_step(runs, kind, plan), plan


def has_step(runs: RecordedRuns, kind: Kind, plan: Plan) -> bool:
    """Make the form of a plan known, or return True if it has a recorded step."""
    places = partial(candidates, kind.pod, plan.mesh)
    return runs.fastest(kind.model, plan, kind.pod, places, fold=True) is not None
