"""Steps that train a part of the weights: bytes and FLOPs of the rest, and what is never more."""

import random
from math import prod
from pathlib import Path
from typing import Any

import pytest
from extent import sample, seeds, thorough
from plans import any_program_of, flat, holders, plan_of, small
from test_any_plan import Case, obeys
from test_bound import KINDS

import tpusim as ts
from tpusim.base import Phase, PlanError, TpusimError
from tpusim.bounds import PlanArrays, bound, bounds
from tpusim.graph import Adapters
from tpusim.hardware import Slice
from tpusim.models import ARCHITECTURES, names
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Program, TransferKind
from tpusim.simulation import simulate
from tpusim.training import Checkpoints, checkpoint_cost

MODEL = small(embed=1024, mlp=4096, heads=8, head_dim=128, vocab=2048)
RANK = 16
ADAPTERS = 3 * RANK * (4 * (1024 + 1024) + 3 * (1024 + 4096))
"""Parameters of the adapters of three layers."""

WEIGHTS = 3 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024) + 2 * 2048 * 1024 + 1024
POD = Slice("v5p", "2x2x4")
BF16, F32 = 2, 4


def program(mesh: dict[str, int], **changes: Any) -> Program:
    return any_program_of(MODEL, plan_of(mesh, seq_len=512, global_batch=64, **changes), POD)


def held(made: Program, category: str) -> float:
    return sum(alloc.bytes for alloc in made.resident if alloc.category == category)


def moved(made: Program, kind: CollectiveKind, phase: Phase) -> float:
    ops = ((op, n) for op, n in flat(made.body) if isinstance(op, Collective))
    return sum(op.bytes * n for op, n in ops if op.kind is kind and op.phase is phase)


@pytest.mark.parametrize("mesh", [{"data": 16}, {"data": 4, "fsdp": 4}, {"fsdp": 16}])
def test_state_and_reductions_are_those_of_the_adapters(mesh: dict[str, int]) -> None:
    """Adapters are whole on each device: their gradients are all-reduced, and nothing else is."""
    made = program(mesh, adapter_rank=RANK)
    norms, matrices = 3 * 2 * 1024 + 1024, WEIGHTS - 3 * 2 * 1024 - 1024
    shared = norms + matrices / mesh.get("fsdp", 1)
    assert held(made, "weights") == F32 * (shared + ADAPTERS)
    assert held(made, "optimizer state") == 2 * F32 * ADAPTERS
    assert moved(made, CollectiveKind.ALL_REDUCE, Phase.BACKWARD) == BF16 * ADAPTERS
    assert moved(made, CollectiveKind.REDUCE_SCATTER, Phase.BACKWARD) == 0
    assert moved(made, CollectiveKind.ALL_TO_ALL, Phase.BACKWARD) == 0


def test_annotations_shard_adapters() -> None:
    given = {"adapter_rank": RANK, "adapter_weights": ["wi_0"], "trainable": ["*scale"]}
    whole = program({"fsdp": 16}, **given)
    own, norms = 3 * RANK * (1024 + 4096), 3 * 2 * 1024 + 1024
    assert held(whole, "optimizer state") == 2 * F32 * (own + norms)
    noted = {
        f"layer/wi_0_adapter_{n}": d for n, d in (("a", ["fsdp", None]), ("b", [None, "fsdp"]))
    }
    sharded = program({"fsdp": 16}, **given, annotate=noted)
    assert held(sharded, "optimizer state") == 2 * F32 * (own / 16 + norms)


def test_moments_on_the_host_and_accumulators_are_those_of_the_adapters() -> None:
    mesh = {"data": 4, "fsdp": 4}
    made = program(mesh, adapter_rank=RANK, microbatches=2, offload_optimizer=True)
    copies = [op for op, _ in flat(made.body) if getattr(op, "kind", "") == TransferKind.FROM_HOST]
    assert sum(op.bytes for op in copies) == 2 * F32 * ADAPTERS
    sums = [
        a for op, _ in holders(made.body) for a in op.allocs if a.tensor.endswith("/accumulator")
    ]
    assert sum(alloc.bytes for alloc in sums) == BF16 * ADAPTERS


def test_a_larger_rank_takes_longer_and_holds_more() -> None:
    plans = [plan_of({"fsdp": 16}, seq_len=512, adapter_rank=rank) for rank in (1, 8, 64, 512)]
    results = [simulate(MODEL, plan, POD) for plan in plans]
    for key in ("step_time_s", "hbm_peak_bytes", "flops"):
        found = [getattr(result, key) for result in results]
        found = [getattr(each, "model", each) for each in found]
        assert found == sorted(found)
        assert len(set(found)) == len(found), key


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "1f1b"}, {"schedule": "circular", "virtual_stages": 2},
        *map(thorough, (
            {"schedule": "gpipe"}, {"schedule": "zb-h1"}, {"schedule": "circular"},
            {"schedule": "interleaved", "virtual_stages": 2},
        )),
    ],
)  # fmt: skip
def test_pipelines_train_adapters(changes: dict[str, Any]) -> None:
    model, mesh = MODEL.replace(layers=8), {"stage": 4, "fsdp": 4}
    plan = plan_of(mesh, seq_len=512, global_batch=64, microbatches=8, **changes)
    whole = simulate(model, plan, POD)
    assert simulate(model, plan.replace(trainable=["*"]), POD).programs == whole.programs
    made = simulate(model, plan.replace(adapter_rank=4, adapter_weights=["wq"]), POD)
    assert made.step_time_s < whole.step_time_s
    assert made.hbm_peak_bytes < whole.hbm_peak_bytes
    state = max(held(each, "optimizer state") for each in made.programs)
    assert state == 2 * F32 * (8 // 4) * 4 * (1024 + 1024)
    norms = simulate(model, plan.replace(trainable=["*_norm_scale"]), POD)
    assert norms.step_time_s < whole.step_time_s
    if changes["schedule"] != "circular":
        with pytest.raises(PlanError, match="is frozen and has no backward pass"):
            simulate(model, plan.replace(trainable=["head"]), POD)


def part_trained(seed: int) -> tuple[Case, Plan]:
    """Return a random plan of any kind, and the same one that trains a part of the weights."""
    rng = random.Random(seed)
    model, plan, pod = KINDS[rng.choice(list(KINDS))][0](seed)
    own = [p.tensor.name for p in model.graph(batch=1, seq_len=8).parameters]
    some = tuple(rng.sample(own, rng.randint(1, 3)))
    adapters = Adapters(rank=rng.choice([1, 16, 100]), weights=rng.choice([(), ("w?*",)]))
    changes: list[dict[str, Any]] = [
        {"trainable": some}, {"adapters": adapters}, {"adapters": adapters, "trainable": some}
    ]  # fmt: skip
    return (model, plan, pod), plan.replace(**rng.choice(changes))


@pytest.mark.parametrize("block", seeds(200, default=1))
def test_a_random_plan_that_trains_a_part_obeys_the_laws(block: int) -> None:
    """Frozen weights never make a step longer, and the bound stays below it."""
    ran = 0
    for seed in range(5 * block, 5 * block + 5):
        try:
            (model, plan, pod), part = part_trained(seed)
            whole, found = simulate(model, plan, pod), simulate(model, part, pod)
        except TpusimError:
            continue
        ran += 1
        obeys(found)
        assert bound(model, part, pod) <= found.step_time_s, seed
        if not part.adapters.rank:
            assert found.step_time_s <= whole.step_time_s, seed
            assert found.flops.model <= whole.flops.model, seed
    assert ran


@pytest.mark.parametrize("changes", [{"adapter_rank": 64}, {"trainable": ["wo", "*scale"]}])
def test_the_bound_of_many_plans_is_that_of_each(changes: dict[str, Any]) -> None:
    sizes = [(data, tensor) for data in (1, 2, 4) for tensor in (1, 2, 4)]
    meshes = [{"data": d, "fsdp": 16 // d // t, "tensor": t} for d, t in sizes]
    plans = [
        plan_of(mesh, microbatches=count, global_batch=64, **changes)
        for mesh in meshes
        for count in (1, 2)
    ]
    together = bounds(MODEL, PlanArrays.of([(plan, POD) for plan in plans])).seconds
    assert list(together) == pytest.approx([bound(MODEL, plan, POD) for plan in plans], rel=1e-12)


FIRST = [names(kind)[0] for kind in ARCHITECTURES.values() if names(kind)]
REST = [name for name in names() if name not in FIRST]


@pytest.mark.parametrize("name", [*sample(FIRST, 6), *map(thorough, REST)])
def test_every_architecture_trains_a_part_of_its_weights(name: str) -> None:
    """All weights by name are the plan's own program; one alone is never slower."""
    model = ts.models.load(name)
    seq_len = 256 if model.reads_text else 0
    plan = plan_of({"data": 4, "fsdp": 4}, seq_len=seq_len, global_batch=64)
    whole = simulate(model, plan, POD)
    assert simulate(model, plan.replace(trainable=["*"]), POD).program == whole.program
    rng, parameters = random.Random(name), model.graph(batch=1, seq_len=max(seq_len, 1)).parameters
    for weight in rng.sample([p.tensor.name for p in parameters], 2):
        one = simulate(model, plan.replace(trainable=[weight]), POD)
        assert one.step_time_s < whole.step_time_s, weight
        assert held(one.program, "optimizer state") < held(whole.program, "optimizer state")
        assert held(one.program, "weights") == held(whole.program, "weights")


def test_a_written_run_trains_the_same(tmp_path: Path) -> None:
    plan = plan_of({"fsdp": 16}, adapter_rank=4, adapter_weights=["wq"], trainable=["*scale"])
    path = tmp_path / "run.toml"
    ts.write_run(path, MODEL, plan, POD)
    text = path.read_text("utf-8")
    assert 'adapter_weights = ["wq"]' in text
    assert ts.read_run(path).plan == plan
    assert "adapters of rank 4 beside wq, trains *scale" in str(plan)


@pytest.mark.parametrize(
    ("weights", "times"),
    [((), 6), (("wv",), 5), (("wk",), 5), (("wq",), 4), (("wi_0",), 4), (("wi_1",), 4),
     (("wo",), 3)],
)  # fmt: skip
def test_a_gradient_behind_an_adapters_is_reduced_alone(
    weights: tuple[str, ...], times: int
) -> None:
    """Without adapters, three a layer: those of queries, keys and values are added up before.

    The gradients of both norms' results, and the result of `wo` again. What adapters add is one
    narrow tensor each. Compiled programs of v5e 4x4 move as much (libtpu 0.0.42.1).
    """
    changes = {"adapter_rank": RANK, "adapter_weights": weights, "collective_matmul": False}
    made = program({"data": 4, "tensor": 4}, **changes)
    again = (Phase.BACKWARD, Phase.RECOMPUTE)
    ops = [(op, n) for op, n in flat(made.body) if isinstance(op, Collective) and op.phase in again]
    wide = BF16 * 64 * 512 * 1024 / 4
    found = sum(op.bytes * n for op, n in ops if op.axes == ("tensor",)) / wide
    assert int(found) == 3 * times + 1


def test_a_result_counts_what_is_trained_and_a_checkpoint_has_it_alone() -> None:
    """Llama 2 7B has 39,976,960 weights of adapters of rank 16 in all of its layers' matrices."""
    model, pod = ts.models.load("llama2-7b"), Slice("v6e", "4x4")
    plan = plan_of({"fsdp": 16}, seq_len=4096, global_batch=16, adapter_rank=16)
    result = simulate(model, plan, pod)
    assert result.facts()["model"]["trained_parameters"] == 39_976_960
    assert "trains      40.0M weights, 0.59% of the 6.74B of the model" in str(result)
    for optimizer, items in (("adam", 3), ("sgd", 1)):
        made = simulate(model, plan.replace(optimizer=optimizer), pod)
        cost = checkpoint_cost(made, Checkpoints(every=100))
        assert cost.total_bytes == cost.host_bytes == items * F32 * 39_976_960


def test_names_of_all_weights_are_noted() -> None:
    plan = plan_of({"fsdp": 16}, trainable=["*scale", "w*", "embedding", "head"])
    said = ("note", "plan.trainable is not used, as it names all weights")
    assert said in tuple(simulate(MODEL, plan, POD).notes())
    assert said not in tuple(simulate(MODEL, plan.replace(trainable=["head"]), POD).notes())


def test_of_a_lora_step_the_model_flops_are_two_thirds_and_the_adapters() -> None:
    plan = plan_of({"fsdp": 16}, seq_len=512, global_batch=64, adapter_rank=RANK)
    whole, made = (
        simulate(MODEL, p, POD).flops.model for p in (plan.replace(adapter_rank=0), plan)
    )
    tokens, layers = 64 * 512, WEIGHTS - 7 * 1024 - 2048 * 1024
    assert whole - made == tokens * (2 * layers - 6 * ADAPTERS)
    assert prod((2, tokens, layers)) < whole / 3
