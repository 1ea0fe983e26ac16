"""The bound in closed form is never above the simulated step, nor its memory above the peak."""

import random

import numpy as np
import pytest
from extent import seeds
from test_any_plan import PODS, SEVERAL, random_mesh, random_model, random_plan

from tpusim.base.errors import TpusimError
from tpusim.exploration import PlanArrays, bound, bounds
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.simulation import simulate


def is_below(model: Transformer, plan: Plan, pod: Slice) -> None:
    result = simulate(model, plan, pod)
    found = bounds(model, PlanArrays.of([(plan, pod)]))
    assert 0 < found.seconds[0] <= result.step_time_s
    assert 0 < found.hbm_bytes[0] <= result.hbm_peak_bytes


@pytest.mark.parametrize("seed", seeds(40))
def test_the_bound_of_a_random_plan_is_below_its_step(seed: int) -> None:
    rng = random.Random(seed)
    pod = Slice(*rng.choice((*PODS, *SEVERAL)))
    is_below(random_model(rng), random_plan(rng, pod), pod)


@pytest.mark.parametrize("seed", seeds(30))
def test_the_bound_of_a_random_quantised_plan_is_below_its_step(seed: int) -> None:
    rng = random.Random(seed)
    pod = Slice(*rng.choice([one for one in (*PODS, *SEVERAL) if one[0] != "v3"]))
    model, plan = random_model(rng), random_plan(rng, pod)
    narrow = [dtype for dtype in ("int8", "fp8") if dtype in pod.chip.flops]
    forward, dx, dw = (rng.choice(["", "bf16", *narrow, *narrow]) for _ in range(3))
    dtypes = {"matmul_dtype": forward, "matmul_dtype_dx": dx, "matmul_dtype_dw": dw}
    is_below(model, plan.replace(dtype=rng.choice(["bf16", "f32"]), **dtypes), pod)


@pytest.mark.parametrize("seed", seeds(30))
def test_the_bound_of_a_random_pipeline_is_below_its_step(seed: int) -> None:
    rng = random.Random(seed)
    pod = Slice(*rng.choice([one for one in PODS if one[2] == 1]))
    stages, chunks = rng.choice([2, 4]), rng.choice([1, 1, 2])
    single, several = ["gpipe", "1f1b", "zb-h1", "zb-h2", "circular"], ["interleaved", "circular"]
    schedule = rng.choice(single if chunks == 1 else several)
    model = random_model(rng).replace(layers=rng.choice([8, 16]), **ALIKE)
    given, count = random_plan(rng, pod), rng.choice([4, 8, 16])
    plan = given.replace(
        mesh=random_mesh(rng, pod.devices // stages, list(given.mesh)) | {"stage": stages},
        schedule=schedule, virtual_stages=chunks, microbatches=count,
        global_batch=count * pod.devices * rng.choice([1, 4]),
    )  # fmt: skip
    try:
        simulate(model, plan, pod)
    except TpusimError:
        pytest.skip("the plan is refused")
    is_below(model, plan, pod)


ALIKE = {
    "window": 0, "global_every": 0, "global_head_dim": 0, "global_kv_heads": 0,
    "global_keys_as_values": False, "wide_layers": 0, "wide_mlp": 0, "layer_embed": 0,
}  # fmt: skip


def test_the_bound_of_many_plans_is_that_of_each() -> None:
    model = Transformer(layers=4, embed=256, mlp=1024, heads=8, kv_heads=2, vocab=1000)
    pods = [Slice("v5e", "4x4"), Slice("v4", "2x2x4")]
    base = Plan(mesh={"data": 1, "fsdp": 1, "tensor": 1}, seq_len=128, global_batch=64)
    plans = [
        (base.replace(mesh=mesh, microbatches=count), pod)
        for pod in pods
        for count in (1, 2, 4)
        for data in (1, 2, 4)
        for tensor in (1, 2, 4)
        for mesh in [{"data": data, "fsdp": 16 // data // tensor, "tensor": tensor}]
    ]
    together = bounds(model, PlanArrays.of(plans)).seconds
    assert np.allclose(together, [bound(model, *each) for each in plans], rtol=1e-12)
