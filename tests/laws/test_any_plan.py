"""Laws that every plan obeys, over random models, meshes, rules and slices.

A plan runs, or is refused with a sentence; it never ends in anything else.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd, inf, prod
from typing import TypeAlias

import pytest
from extent import seeds
from reports import memory_levels

from tpusim.base import TpusimError
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results import Result, breakdown_ps
from tpusim.simulation import simulate

PODS = (
    ("v4", "4x4x4", 1), ("v4", "2x2x1", 1), ("v5e", "4x4", 1), ("v5e", "4x8", 2),
    ("v6e", "16x16", 1), ("7x", "2x2x2", 1), ("v3", "4x4", 1), ("v5p", "8x8x16", 1),
)  # fmt: skip

SEVERAL = (
    ("v5e", "4x8", 2), ("v5e", "4x4", 4), ("v6e", "4x4", 2), ("v4", "2x2x4", 2),
    ("v5p", "2x2x2", 4), ("7x", "2x2x2", 2), ("v3", "4x4", 2),
)  # fmt: skip

Case: TypeAlias = tuple[Transformer, Plan, Slice]

SHAPES = {
    "window": 100, "global_every": 2, "global_head_dim": 64, "global_kv_heads": 1,
    "global_keys_as_values": True, "wide_layers": 1, "wide_mlp": 96, "layer_embed": 24,
    "logit_cap": 30.0,
}  # fmt: skip
"""Keys of a model whose layers are not alike."""


def random_mesh(rng: random.Random, devices: int, axes: Sequence[str]) -> dict[str, int]:
    sizes = []
    for _ in axes[1:]:
        sizes.append(rng.choice([d for d in range(1, devices + 1) if devices % d == 0]))
        devices //= sizes[-1]
    sizes.append(devices)
    rng.shuffle(sizes)
    return dict(zip(axes, sizes, strict=True))


def random_rules(rng: random.Random, axes: list[str]) -> dict[str, str | list[str] | None]:
    choices: Mapping[str, tuple[float, Sequence[str | list[str] | None]]] = {
        "act_embed": (0.4, [*axes, None]), "vocab": (0.2, [*axes, None]),
        "embed": (0.2, [*axes, axes]), "act_seq": (0.15, axes), "mlp": (0.15, [*axes, None]),
    }  # fmt: skip
    return {key: rng.choice(of) for key, (odds, of) in choices.items() if rng.random() < odds}


def random_model(rng: random.Random) -> Transformer:
    heads = rng.choice([1, 2, 8, 24])
    return Transformer(
        layers=rng.choice([1, 2, 7]), embed=rng.choice([64, 1000, 4096]),
        mlp=rng.choice([5, 1024, 14336]), heads=heads,
        kv_heads=rng.choice([k for k in range(1, heads + 1) if heads % k == 0]),
        head_dim=rng.choice([16, 128]), vocab=rng.choice([1, 100, 30522]),
        gated=rng.random() < 0.5, parallel=rng.random() < 0.3, rotary=rng.random() < 0.5,
        tied_embeddings=rng.random() < 0.5, attention=rng.choice(["dot", "flash"]),
        kind=rng.choice(["decoder", "encoder"]),
        **rng.choice([{}, {}, {}, SHAPES]),
    )  # fmt: skip


def random_plan(rng: random.Random, pod: Slice) -> Plan:
    devices = pod.devices // pod.num_slices
    axes = rng.sample(["data", "fsdp", "tensor"], rng.randint(1, 3))
    mesh = random_mesh(rng, devices, axes)
    if pod.num_slices > 1:
        mesh["dcn_data"] = pod.num_slices
    plan = Plan(
        mesh=mesh, rules=random_rules(rng, axes), seq_len=rng.choice([1, 128, 2048]),
        global_batch=pod.devices * rng.choice([1, 4]),
        remat=rng.choice(["full", "minimal", "dots", "none"]),
        save=rng.sample(["q", "k", "out", "mlp_hidden"], rng.randint(0, 2)),
        lowering=rng.choice(["xla", "ideal"]), style=rng.choice(["plain", "maxtext"]),
        optimizer=rng.choice(["adam", "adafactor", "sgd", "muon"]),
        grad_dtype=rng.choice(["bf16", "f32"]), param_dtype=rng.choice(["bf16", "f32"]),
    )  # fmt: skip
    if "act_seq" in plan.rules:
        plan = replace(plan, seq_len=2048)
    microbatches = rng.choice([1, 1, 2, 5])
    return replace(plan, microbatches=microbatches, global_batch=microbatches * plan.global_batch)


def obeys(result: Result) -> None:
    timeline, rates = result.timeline, result.pod.chip.flops
    fastest = max(rates[dtype] for dtype in ("bf16", *result.plan.dtypes.matmuls.values()))
    assert 0 < result.mfu <= result.hfu <= fastest / rates["bf16"]
    assert sum(breakdown_ps(timeline).values()) == timeline.total_ps
    assert sum(result.memory_bytes.values()) == result.hbm_peak_bytes
    assert all(use.busy_ps <= timeline.total_ps for use in timeline.links)
    levels = [level for _, level in memory_levels(result)]
    assert 0 <= min(levels) == levels[0] == levels[-1]
    assert (result.error_range is None) == (result.plan.lowering == "ideal")
    if result.step_time_range_s and result.mfu_range:
        (low, high), (least, most) = result.step_time_range_s, result.mfu_range
        assert 0 < low < high < inf
        work = result.mfu * result.step_time_s
        assert (least * high, most * low) == pytest.approx((work, work))


def plain_plan(seed: int) -> Case:
    """Return a plan of a dense model."""
    rng = random.Random(seed)
    pod = Slice(*rng.choice(PODS))
    return random_model(rng), random_plan(rng, pod), pod


@pytest.mark.parametrize("seed", seeds(60))
def test_a_random_plan_obeys_the_laws(seed: int) -> None:
    obeys_folded_and_not(*plain_plan(seed))


def latent_plan(seed: int) -> Case:
    """Return a plan of latent attention."""
    rng = random.Random(seed)
    pod = Slice(*rng.choice(PODS))
    given, plan = random_model(rng), random_plan(rng, pod)
    latent = {"kv_rank": rng.choice([1, 500]), "q_rank": rng.choice([0, 7, 1536]),
              "rope_dim": rng.choice([1, 15]), "v_head_dim": rng.choice([0, 24])}  # fmt: skip
    alike = {"global_head_dim": 0, "global_kv_heads": 0, "global_keys_as_values": False}
    model = given.replace(kv_heads=given.heads, rotary=True, **latent, **alike)
    return model, plan, pod


@pytest.mark.parametrize("seed", seeds(20))
def test_a_random_plan_of_latent_attention_obeys_the_laws(seed: int) -> None:
    obeys_folded_and_not(*latent_plan(seed))


def plan_across_slices(seed: int) -> Case:
    """Return a plan with weights whole in each slice (`dcn_data`), or shared out (`dcn_fsdp`)."""
    rng = random.Random(seed)
    pod = Slice(*rng.choice(SEVERAL))
    model, plan = random_model(rng), random_plan(rng, pod)
    mesh = {axis: size for axis, size in plan.mesh.items() if axis != "dcn_data"}
    across = rng.choice([2**at for at in range(4) if pod.num_slices % 2**at == 0])
    mesh |= {"dcn_data": pod.num_slices // across, "dcn_fsdp": across}
    return model, plan.replace(mesh=mesh, collectives=rng.choice(["xla", "best"])), pod


@pytest.mark.parametrize("seed", seeds(40))
def test_a_random_plan_across_slices_obeys_the_laws(seed: int) -> None:
    obeys_folded_and_not(*plan_across_slices(seed))


def quantised_plan(seed: int) -> Case:
    """Return a plan with narrow matmuls."""
    rng = random.Random(seed)
    pod = Slice(*rng.choice([one for one in (*PODS, *SEVERAL) if one[0] != "v3"]))
    model, plan = random_model(rng), random_plan(rng, pod)
    narrow = [dtype for dtype in ("int8", "fp8") if dtype in pod.chip.flops]
    forward, dx, dw = (rng.choice(["", "bf16", *narrow, *narrow]) for _ in range(3))
    dtypes = {"matmul_dtype": forward, "matmul_dtype_dx": dx, "matmul_dtype_dw": dw}
    return model, plan.replace(dtype=rng.choice(["bf16", "f32"]), **dtypes), pod


@pytest.mark.parametrize("seed", seeds(40))
def test_a_random_quantised_plan_obeys_the_laws(seed: int) -> None:
    obeys_folded_and_not(*quantised_plan(seed))


def tiled_plan(seed: int) -> Case:
    """Return a plan with its loss in tiles."""
    rng = random.Random(seed)
    pod = Slice(*rng.choice((*PODS[:6], *SEVERAL)))
    model, plan = random_model(rng), random_plan(rng, pod)
    plan = replace(plan, seq_len=2048, vocab_tiles=rng.choice([2, 4, 64]))
    return model, plan, pod


@pytest.mark.parametrize("seed", seeds(40))
def test_a_random_plan_with_its_loss_in_tiles_obeys_the_laws(seed: int) -> None:
    obeys_folded_and_not(*tiled_plan(seed))


def expert_plan(seed: int) -> Case:
    """Return a plan of experts."""
    rng = random.Random(seed)
    pod = Slice(*rng.choice((*PODS[:6], *SEVERAL)))
    model, plan = random_model(rng), random_plan(rng, pod)
    experts = rng.choice([1, 2, 4, 8])
    model = model.replace(
        experts=experts, experts_per_token=rng.randint(1, experts), layers=4,
        expert_mlp=rng.choice([0, 512]), shared_mlp=rng.choice([0, 256]),
        dense_layers=rng.choice([0, 1]), expert_every=rng.choice([1, 2]), wide_layers=0, wide_mlp=0,
    )  # fmt: skip
    own = {axis: size for axis, size in plan.mesh.items() if not axis.startswith("dcn")}
    axis = rng.choice(sorted(own))
    expert = gcd(own[axis], experts)
    capacity = rng.choice([0.0, 0.0, 1.25])
    plan = plan.replace(
        mesh={**plan.mesh, axis: own[axis] // expert, "expert": expert}, save=(),
        capacity_factor=capacity, expert_exchange=rng.choice(["all-to-all", "gather", "ring"]),
        expert_skew=0.0 if capacity else rng.random(), seed=seed,
    )  # fmt: skip
    return model, plan, pod


@pytest.mark.parametrize("seed", seeds(25, default=1))
def test_a_random_plan_of_experts_obeys_the_laws(seed: int) -> None:
    obeys_folded_and_not(*expert_plan(seed))


def context_plan(seed: int) -> Case:
    """Return a plan whose keys cross in some way, over one axis or two, with any norms."""
    rng = random.Random(seed)
    pod = Slice(*rng.choice([one for one in PODS[:6] if one[2] == 1]))
    sizes = random_mesh(rng, pod.devices, ["fsdp", "tensor", "context", "second"])
    mesh = {axis: min(size, 4) for axis, size in sizes.items() if axis != "fsdp"}
    mesh["fsdp"] = pod.devices // prod(mesh.values())
    window = rng.choice([0, 0, 1, 300, 1500])
    model = random_model(rng).replace(attention="flash", heads=64, kv_heads=rng.choice([1, 4, 64]),
                    head_dim=16, window=window, global_every=rng.choice([0, 2]))  # fmt: skip
    ways = dict(zip(("context", "second"), rng.choice(WAYS), strict=True))
    plan = random_plan(rng, pod).replace(
        mesh=mesh, seq_len=2048, context_exchange=ways,
        context_balanced=rng.random() < 0.5, microbatches=1,
        rules=rng.choice([{}, {"act_residual_seq": "tensor"}]),
    )  # fmt: skip
    return model, plan, pod


@pytest.mark.parametrize("seed", seeds(40))
def test_a_random_plan_over_a_context_obeys_the_laws(seed: int) -> None:
    obeys_folded_and_not(*context_plan(seed))


WAYS = (
    ("gather", "gather"), ("ring", "ring"), ("ring", "all-to-all"), ("gather", "all-to-all"),
    ("all-to-all", "all-to-all"),
)  # fmt: skip


def obeys_folded_and_not(model: Transformer, plan: Plan, pod: Slice) -> None:
    """The laws hold, and no fold changes a result."""
    folded = simulate(model, plan, pod)
    obeys(folded)
    unfolded = simulate(model, plan, pod, fold=False)
    assert folded.timeline.total_ps == unfolded.timeline.total_ps
    assert folded.hbm_peak_bytes == unfolded.hbm_peak_bytes
    assert breakdown_ps(folded.timeline) == breakdown_ps(unfolded.timeline)
    assert folded.timeline.links == unfolded.timeline.links


def test_a_batch_that_does_not_divide_is_refused_on_every_slice() -> None:
    rng = random.Random(0)
    for chip, shape, slices in PODS:
        pod = Slice(chip, shape, slices)
        mesh = {"fsdp": pod.devices // slices, **({"dcn_data": slices} if slices > 1 else {})}
        with pytest.raises(TpusimError, match="global_batch is 7"):
            simulate(random_model(rng), Plan(mesh=mesh, seq_len=8, global_batch=7), pod)
