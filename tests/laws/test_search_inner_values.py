"""A search over values inside a mesh is a sweep of all combinations, of which each plan is once."""

import random
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from extent import sample, seeds

from tpusim.base import TpusimError
from tpusim.bounds import bounds
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results import Result
from tpusim.searches import PlanSpace, search
from tpusim.simulation import simulate

DENSE = Transformer(
    layers=8, embed=512, mlp=1024, heads=8, kv_heads=4, vocab=2000, attention="flash"
)
MODELS = {
    "dense": (DENSE, ("fsdp", "tensor")),
    "unfused": (DENSE.replace(attention="dot"), ("data", "tensor")),
    "experts": (DENSE.replace(experts=8, experts_per_token=2), ("fsdp", "expert")),
    "stages": (DENSE, ("fsdp", "stage")),
    "context": (DENSE, ("fsdp", "context")),
}
PODS = [("v5e", "2x4", 1), ("v4", "2x2x2", 1), ("7x", "2x2x1", 1), ("v6e", "2x2", 2)]
BASE = Plan(mesh={"data": 1}, seq_len=512, global_batch=32, microbatches=4)
VALUES: dict[str, list[Any]] = {
    "remat": ["full", "minimal", "dots", "none"],
    "save": [[], ["q"], ["q", "k", "v"], ["mlp_hidden"]],
    "offload": [[], ["layer_in"]],
    "scan_layers": [True, False],
    "microbatches": [1, 2, 8],
    "gradient_reduction": ["per-microbatch", "per-step"],
    "accumulator_dtype": ["", "f32", "bf16"],
    "attention_block": [[512, 512], [128, 256], [1024, 512]],
    "attention_block_backward": [[], [512, 512], [128, 128]],
    "attention_backward": ["two-kernels", "one-kernel"],
    "vocab_tiles": [1, 4, 3],
    "vocab_blocks": [1, 4, 3],
    "schedule": ["", "1f1b", "gpipe", "interleaved", "zb-h1", "circular"],
    "virtual_stages": [1, 2],
    "expert_buffer": [0.0, 1.5],
    "expert_tiles": [[512, 1024, 1024], [128, 128, 128]],
    "expert_exchange": ["all-to-all", "gather"],
    "expert_skew": [0.0, 1.0],
    "seed": [0, 1],
    "capacity_factor": [0.0, 1.25],
    "context_exchange": ["gather", "ring", "all-to-all"],
    "context_balanced": [True, False],
    "style": ["plain", "maxtext"],
    "offload_optimizer": [False, True],
    "weight_update_axes": [[], ["fsdp"]],
    "optimizer": ["adam", "sgd"],
}
"""Values of keys that are no sizes, of which some contradict each other, divide nothing or change
nothing in a model or on a mesh."""


def random_space(kind: str, rng: random.Random) -> PlanSpace:
    """A space of three keys, whose values are in any order."""
    model, axes = MODELS[kind]
    pod = Slice(*rng.choice([each for each in PODS if each[2] == 1 or kind == "dense"]))
    keys = [key for key in VALUES if key != "weight_update_axes" or "fsdp" in axes]
    vary = {key: rng.sample(VALUES[key], len(VALUES[key])) for key in rng.sample(keys, 3)}
    axes = (*axes, "dcn_data") if pod.num_slices > 1 else axes
    return PlanSpace(base=BASE, slices=[pod], axes=axes, vary=vary).of(model)


def every_result(space: PlanSpace) -> Iterator[Result]:
    """The steps of all combinations, also of those that the space counts once."""
    (pod,), (_, sizes) = space.slices, space.table
    assert space.model
    for values in product(*space.vary.values()):
        for mesh in sizes.tolist():
            given = dict(zip(space.vary, values, strict=True))
            try:
                plan = BASE.replace(mesh=dict(zip(space.names, mesh, strict=True)), **given)
                yield simulate(space.model, plan, pod)
            except TpusimError:
                continue


@pytest.mark.parametrize("seed", seeds(40, default=1))
@pytest.mark.parametrize("kind", sample(MODELS, 6))
def test_a_search_over_values_inside_a_mesh_is_a_sweep(kind: str, seed: int) -> None:
    try:
        space = random_space(kind, random.Random(f"{kind} {seed}"))
    except TpusimError:
        return  # three keys whose values all contradict each other
    assert space.model
    steps = [result.step_time_s for result in every_result(space) if result.fits]
    found = search(space.model, space, top=4, workers=1)
    assert found.proved
    best = [each.step_time_s for each in found.best]
    assert sorted(set(best)) == sorted(set(steps))[: len(set(best))]
    assert len(best) == min(4, len(best) if len(set(steps)) < 4 else 4)
    combinations = prod(len(values) for values in space.vary.values()) * len(space.table[0])
    assert len(space) + sum(space.left_out.values()) == combinations
    assert found.plans - sum(found.left_out.values()) == found.admitted


@pytest.mark.parametrize("seed", seeds(40, default=1))
@pytest.mark.parametrize("kind", sample(MODELS, 6))
def test_bounds_of_values_inside_a_mesh_are_below_their_steps(kind: str, seed: int) -> None:
    rng = random.Random(f"bounds of {kind} {seed}")
    try:
        space = random_space(kind, rng)
    except TpusimError:
        return
    assert space.model
    for block in space.blocks:
        known = bounds(space.model, block)
        for at in rng.sample(range(len(block)), min(2, len(block))):
            alone = bounds(space.model, block.take(np.array([at])))
            assert known.seconds[at] == pytest.approx(alone.seconds[0], rel=1e-12)
            try:
                result = simulate(space.model, block.plan(at), block.pods[block.pod[at]])
            except TpusimError:
                continue
            assert 0 < known.seconds[at] <= result.step_time_s
            assert 0 < known.hbm_bytes[at] <= result.hbm_peak_bytes
