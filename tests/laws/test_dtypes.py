"""Each dtype apart: the bytes that it names follow it, nothing else does, and precision costs."""

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from extent import seeds
from plans import any_program_of, flat, holders, partitioned_of, plan_of, sizes_of, small
from test_any_plan import PODS, SEVERAL, obeys_folded_and_not, random_model, random_plan

from tpusim.base import Phase, PlanError
from tpusim.hardware import Slice
from tpusim.lowering import lower_body
from tpusim.lowering.passes import fuse_collectives, merge_gradients
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Collective, Compute, Loop, MatmulWork, Op, Program, dumps, loads
from tpusim.simulation import simulate
from tpusim.sweeps import Space, sweep

NEAR = [pod for pod in (*PODS, *SEVERAL) if pod[1] not in ("8x8x16", "16x16")]
INT8 = {"matmul_dtype": "int8"}
POD = Slice("v6e", "4x4")
FSDP = plan_of({"fsdp": 16})


@pytest.fixture(autouse=True)
def nothing_on_the_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which buffers stay on the chip follows from their bytes, and so from their dtype."""
    monkeypatch.setattr(lower_body, "on_chip_room", lambda chip, compiler: 0.0)


def drawn(seed: int, **changes: Any) -> tuple[Transformer, Plan, Slice]:
    rng = random.Random(seed)
    pod = Slice(*rng.choice(NEAR))
    model, plan = random_model(rng), random_plan(rng, pod)
    return model, plan.replace(param_dtype="f32", **changes), pod


def moved(program: Program, weights: set[str]) -> Counter[str]:
    """Bytes of collectives over a step, by what they move; Muon's of matrices are others."""
    found: Counter[str] = Counter()
    for op, times in flat(program.body):
        if isinstance(op, Collective):
            gradient = re.fullmatch(r"d\(([^()]*)\).*", op.scope)
            of = "gradient" if gradient and gradient[1] in weights else "other"
            whole = op.scope in weights and op.phase is not Phase.OPTIMIZER
            found[op.scope if whole else of] += float(op.bytes) * times
    return found


def held(program: Program) -> Counter[str]:
    """Bytes that a step takes, by category; what is resident too."""
    found: Counter[str] = Counter()
    for op, times in holders(program.body):
        for alloc in op.allocs:
            found[alloc.category] += float(alloc.bytes) * times
    for alloc in program.resident:
        found[alloc.category] += float(alloc.bytes)
    return found


def works(program: Program, *without: str) -> dict[str, object]:
    return {
        op.name: op.work
        for op, _ in flat(program.body)
        if isinstance(op, Compute) and not re.search("|".join(without) or "$^", op.name)
    }


def both(seed: int, key: str, **changes: Any) -> tuple[Program, Program, set[str]]:
    """The programs with f32 and with bf16 under a key, and the names of the weights."""
    model, plan, pod = drawn(seed, **changes)
    wide, narrow = (
        any_program_of(model, plan.replace(**{key: dtype}), pod) for dtype in ("f32", "bf16")
    )
    return wide, narrow, {weight.name for weight in partitioned_of(model, plan).weights}


def steps_of(ops: tuple[Op, ...], name: str) -> int:
    """The steps of a collective matmul, over which its epilogue is spread; 1 of other matmuls."""
    for op in ops:
        if isinstance(op, Loop):
            chunks = [one for one in op.body if isinstance(getattr(one, "work", None), MatmulWork)]
            if any(one.name == name for one in chunks):
                return op.trips * len(chunks)
            if (found := steps_of(op.body, name)) > 1:
                return found
    return 1


def same_but(wide: Counter[str], narrow: Counter[str], *named: str) -> None:
    """Twice the bytes of what is named, and as many of everything else."""
    assert wide == {key: nbytes * (2 if key in named else 1) for key, nbytes in narrow.items()}


@pytest.mark.parametrize("seed", seeds(30))
def test_gathers_of_half_the_size_move_and_hold_half(seed: int) -> None:
    """Only casts are other work: of shards before bf16 gathers, of copies after f32 ones."""
    wide, narrow, weights = both(seed, "gather_dtype")
    same_but(moved(wide, weights), moved(narrow, weights), *weights)
    without = [held(program) for program in (wide, narrow)]
    for found in without:
        del found["cast weights"]
    same_but(*without, "gathered weights")
    assert works(wide, "cast") == works(narrow, "cast")


@pytest.mark.parametrize("seed", seeds(30))
def test_reductions_of_half_the_size_move_and_hold_half(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward pass and the optimizer are the same; small gradients merge by their bytes.

    A group writes over an operand of the same size, so a vector's gradient may take no room.
    """
    monkeypatch.setattr(merge_gradients, "SMALL_GRADIENT", 0)
    wide, narrow, weights = both(seed, "reduce_dtype")
    same_but(moved(wide, weights), moved(narrow, weights), "gradient")
    more, fewer = held(wide), held(narrow)
    gradients = [found.pop("unreduced gradients", 0) for found in (more, fewer)]
    assert more == fewer
    assert gradients[0] == pytest.approx(2 * gradients[1], rel=1e-4)
    backward = ("/d", "terms")
    assert works(wide, *backward) == works(narrow, *backward)


def test_a_weight_gradient_is_written_as_it_is_reduced() -> None:
    """By eight matmuls and the scatter to the table; they read what they read. No ring on v5e."""
    plans = [FSDP.replace(reduce_dtype=dtype, style="maxtext") for dtype in ("f32", "bf16")]
    wide, narrow = (works(any_program_of(small(), plan, Slice("v5e", "4x4"))) for plan in plans)
    found: dict[str, Any] = {name: work for name, work in narrow.items() if name.endswith("/dw")}
    assert len(found) == 9
    for name, work in found.items():
        assert wide[name] == replace(work, write_bytes=2 * work.write_bytes)


@pytest.mark.parametrize(("optimizer", "share"), [("adam", 3 / 4), ("adafactor", 1 / 2)])
@pytest.mark.parametrize("mesh", [{"fsdp": 16}, {"data": 4, "tensor": 4}])
def test_second_moments_of_half_the_size(
    mesh: dict[str, int], optimizer: str, share: float
) -> None:
    """Half of Adam's state is second moments, all of Adafactor's; the update alone is other.

    Adafactor reads the moment of each element again for the update, which its norm clips.
    """
    wide, narrow = (
        any_program_of(small(), plan_of(mesh, optimizer=optimizer, second_moment_dtype=dtype), POD)
        for dtype in ("f32", "bf16")
    )
    assert held(narrow).pop("optimizer state") == share * held(wide).pop("optimizer state")
    assert works(wide, "update", "moments/") == works(narrow, "update", "moments/")
    saved = [wide.body, narrow.body]
    reads, writes = (
        [sum(float(getattr(op.work, of)) for op, _ in flat(body) if isinstance(op, Compute))
         for body in saved]
        for of in ("read_bytes", "write_bytes")
    )  # fmt: skip
    state = (1 - share) * held(wide)["optimizer state"]
    times = 2 if optimizer == "adafactor" else 1
    assert writes[0] - writes[1] == state
    assert reads[0] - reads[1] == times * state


def test_an_empty_second_moment_follows_the_first() -> None:
    narrow, mixed, wide = (
        held(any_program_of(small(), FSDP.replace(**changes), POD))["optimizer state"]
        for changes in (
            {"moment_dtype": "bf16"}, {"moment_dtype": "bf16", "second_moment_dtype": "f32"}, {},
        )
    )  # fmt: skip
    assert (narrow, mixed) == (wide / 2, 3 * wide / 4)


@pytest.mark.parametrize("seed", seeds(20))
def test_accumulators_of_half_the_size(seed: int) -> None:
    """What is added to them, what they are given and what the optimizer reads of them is other."""
    wide, narrow, weights = both(seed, "accumulator_dtype")
    assert moved(wide, weights) == moved(narrow, weights)
    same_but(held(wide), held(narrow), "gradient accumulators")
    own = ("accumulat", "update/", "momentum/", "gradient_norm")
    assert works(wide, *own) == works(narrow, *own)
    assert (wide == narrow) == ("gradient accumulators" not in held(wide))


def test_an_addition_reads_both_and_writes_the_sum() -> None:
    plan = plan_of({"fsdp": 16}, microbatches=2, grad_dtype="bf16", accumulator_dtype="f32")
    (weight,) = (w for w in partitioned_of(small(), plan).weights if w.name == "layer/wq")
    elements = 3 * sizes_of(small(), plan).elements(weight.local)
    found: Any = works(any_program_of(small(), plan, POD))
    addition, update = found["accumulate/layer/wq"], found["update/layer/wq"]
    assert (addition.read_bytes, addition.write_bytes) == (6 * elements, 4 * elements)
    assert addition.flops == 2 * elements
    assert update.read_bytes == (4 + 8 + 4) * elements


@pytest.mark.parametrize("seed", seeds(20))
def test_logits_of_half_the_size(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by one matmul, read by the loss, its gradient by two; f32 ones are converted there.

    The gradient of bf16 ones may be computed in both matmuls, where that of f32 ones is a pass.
    """
    monkeypatch.setattr(fuse_collectives, "fusion_pays", lambda *_: False)
    wide, narrow, weights = both(seed, "logits_dtype", lowering="xla")
    own = ("logits", "loss")
    assert works(wide, *own) == works(narrow, *own)
    passes = works(narrow).get("loss/d"), works(wide).get("loss/d")
    inside, apart = (getattr(work, "flops", 0) for work in passes)
    for name, work in works(narrow).items():
        other = works(wide)[name]
        if name.startswith("logits/d") and apart and not inside:
            assert work.epilogue_flops - other.epilogue_flops >= apart
        elif name.startswith("logits") and isinstance(work, MatmulWork):
            assert isinstance(other, MatmulWork)
            assert (other.dtype, other.m, other.n) == (work.dtype, work.m, work.n)
            logits = {"logits": work.m * work.n}.get(name, work.m * work.k)
            assert other.read_bytes + other.write_bytes >= work.read_bytes + work.write_bytes
            more = other.epilogue_flops - work.epilogue_flops
            assert {more, more * steps_of(wide.body, name)} & {0, logits, work.k * work.n}
    for category in held(wide).keys() | held(narrow).keys():
        assert held(wide)[category] >= held(narrow)[category]
        assert category == "activations" or held(wide)[category] == held(narrow)[category]
    more, fewer = moved(wide, weights), moved(narrow, weights)
    assert more.pop("other", 0) >= fewer.pop("other", 0)
    assert more == fewer


@pytest.mark.parametrize("seed", seeds(30))
def test_int8_gathers_are_half_of_bf16_ones(seed: int) -> None:
    """Of the layers' weights; what the vocabulary multiplies comes as before.

    Activations for these matmuls are gathered in int8 too (test_gather_quantised.py).
    """
    model, plan, pod = drawn(seed, **INT8)
    if "int8" not in pod.chip.flops:
        return
    weights = {weight.name for weight in partitioned_of(model, plan).weights}
    narrow, wide = (any_program_of(model, plan.replace(gather_dtype=dtype), pod)
                    for dtype in ("int8", "bf16"))  # fmt: skip
    quantised = {
        name for name in weights if re.search(r"layer/(\d/)?(layer_embed_)?(w|gate)", name)
    }
    more, fewer = moved(wide, weights), moved(narrow, weights)
    assert fewer.pop("other", 0) <= more.pop("other", 0)
    same_but(more, fewer, *quantised)
    assert works(wide, "quantise", "cast") == works(narrow, "quantise", "cast")
    passes = [name for name in works(narrow) if "quantise/" in name and "@" in name]
    assert not [name for name in passes if re.search(r"layer/w[^ ]*@", name)]


def test_an_int8_gather_is_quantised_once_for_forward_and_once_for_backward() -> None:
    """The pass reads the stored shard; no other copy of it is made."""
    plan = plan_of({"fsdp": 16}, gather_dtype="int8", style="maxtext", **INT8)
    program = any_program_of(small(), plan, POD)
    passes = [op for op, _ in flat(program.body) if isinstance(op, Compute)
              and op.name.endswith("layer/wq int8")]  # fmt: skip
    local = 64 * 8 * 32 / 16
    assert [op.name.split("/", 1)[1] for op in passes] == ["layer/wq int8", "bwd/layer/wq int8"]
    assert {(op.work.read_bytes, op.work.write_bytes) for op in passes} == {(4 * local, local)}
    (cast,) = (op for op, _ in flat(program.body) if op.name == "cast_weights")
    norms = (2 * 3 + 1) * 64
    assert cast.work.read_bytes == 4 * (2 * 512 * 64 / 16 + norms)  # type: ignore[union-attr]


@pytest.mark.parametrize("mesh", [{"data": 16}, {"tensor": 16}])
def test_gathers_that_are_not_made_have_no_dtype(mesh: dict[str, int]) -> None:
    default, *others = (
        any_program_of(small(), plan_of(mesh, **changes, **INT8), POD)
        for changes in ({}, {"gather_dtype": "f32"}, {"gather_dtype": "int8"})
    )
    assert others == [default, default]


@pytest.mark.parametrize("changes", [{}, {"matmul_dtype": "bf16", "dtype": "f32"}])
def test_what_is_written_out_changes_nothing(changes: dict[str, Any]) -> None:
    plan = FSDP.replace(**changes)
    written = plan.replace(
        gather_dtype=plan.dtypes.compute, reduce_dtype=plan.dtypes.compute,
        accumulator_dtype=plan.dtypes.grad,
        second_moment_dtype=plan.dtypes.moment, logits_dtype=plan.dtypes.compute,
    )  # fmt: skip
    assert any_program_of(small(), plan, POD) == any_program_of(small(), written, POD)


def test_a_gather_over_slices_travels_in_one_dtype() -> None:
    """The shard is quantised once, before it crosses; what arrives is multiplied as it is."""
    plan = plan_of({"dcn_fsdp": 2, "fsdp": 16}, style="maxtext", gather_dtype="int8", **INT8)
    program = any_program_of(small(), plan, Slice("v6e", "4x4", 2))
    steps = {op.axes: op for op, _ in flat(program.body)
             if isinstance(op, Collective) and op.scope == "layer/wo"}  # fmt: skip
    assert {axes: op.dtype for axes, op in steps.items()} == {
        ("dcn_fsdp",): "int8", ("fsdp",): "int8",
    }  # fmt: skip
    passes = [name for name in works(program) if re.search("quantise/.*layer/wo( |@)", name)]
    assert passes == ["quantise/layer/wo int8", "quantise/bwd/layer/wo int8"]


@pytest.mark.parametrize("style", ["plain", "maxtext"])
def test_where_weights_are_large_narrower_gathers_are_faster(style: str) -> None:
    """A pass costs launch time wherever it stands; in a tiny model it hides a gather's as well."""
    wide = small(embed=4096, mlp=16384, heads=32, head_dim=128)
    plan = plan_of({"fsdp": 16}, seq_len=1024, style=style, **INT8)
    times = [simulate(wide, plan.replace(gather_dtype=dtype), POD).step_time_s
             for dtype in ("int8", "bf16", "f32")]  # fmt: skip
    assert times == sorted(set(times))


PRECISE: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"gather_dtype": "bf16"}, {"gather_dtype": "f32"}),
    ({"reduce_dtype": "bf16"}, {"reduce_dtype": "f32"}),
    ({"second_moment_dtype": "bf16"}, {"second_moment_dtype": "f32"}),
    ({"accumulator_dtype": "bf16"}, {"accumulator_dtype": "f32"}),
    ({"logits_dtype": "bf16"}, {"logits_dtype": "f32"}),
    ({"grad_dtype": "bf16"}, {"grad_dtype": "f32"}),
    ({"moment_dtype": "bf16"}, {"moment_dtype": "f32"}),
]


@pytest.mark.parametrize(("coarse", "precise"), PRECISE, ids=lambda c: next(iter(c)))
@pytest.mark.parametrize("seed", seeds(8))
def test_more_precise_is_never_faster(
    seed: int, coarse: dict[str, str], precise: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no bound in bytes changes the lowering, and conversions of narrow elements are free."""
    monkeypatch.setattr(merge_gradients, "SMALL_GRADIENT", 0)
    monkeypatch.setattr(fuse_collectives, "fusion_pays", lambda *_: False)
    model, plan, pod = drawn(100 + seed)
    free = Slice(pod.chip.replace(vpu_flops=1e18), str(pod.topology), pod.num_slices)
    first, second = (plan.replace(**changes) for changes in (coarse, precise))
    fast = simulate(model, first, free)
    slow = simulate(model, second, free, placement=fast.placement)
    assert slow.step_time_s >= fast.step_time_s


@pytest.mark.parametrize("seed", seeds(40))
def test_mixed_precision_obeys_the_laws_of_all_plans(seed: int) -> None:
    rng = random.Random(1000 + seed)
    model, plan, pod = drawn(seed)
    plan = plan.replace(param_dtype=rng.choice(["f32", "bf16"]))
    quantised = "int8" in pod.chip.flops and rng.random() < 0.4
    gathers = ["", "bf16", plan.dtypes.param, *(["int8"] if quantised else [])]
    both = ("", "bf16", "f32")
    obeys_folded_and_not(
        model,
        plan.replace(
            matmul_dtype="int8" if quantised else "", gather_dtype=rng.choice(gathers),
            reduce_dtype=rng.choice(both), accumulator_dtype=rng.choice(both),
            second_moment_dtype=rng.choice(both), logits_dtype=rng.choice(both),
            offload_optimizer=rng.random() < 0.2,
        ),
        pod,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gather_dtype": "int9"}, "plan.gather_dtype is 'int9': did you mean 'int8'?"),
        ({"reduce_dtype": "bf61"}, "plan.reduce_dtype is 'bf61': did you mean 'bf16'?"),
        ({"reduce_dtype": "int8"}, "plan.reduce_dtype is 'int8': valid are bf16, f32"),
        ({"accumulator_dtype": "f23"}, "plan.accumulator_dtype is 'f23': did you mean 'f32'?"),
        ({"second_moment_dtype": "fp32"}, "plan.second_moment_dtype is 'fp32': tpusim calls it"),
        ({"loss_dtype": "float"}, "plan.loss_dtype is 'float': valid are bf16, f32"),
        (
            {"gather_dtype": "int8"},
            "plan.gather_dtype is 'int8', but plan.matmul_dtype is 'bf16': weights that arrive in "
            "int8 are multiplied in it, forward and for input gradients; write matmul_dtype = "
            "'int8', or leave gather_dtype out",
        ),
        (
            {"gather_dtype": "int8", "matmul_dtype": "int8", "matmul_dtype_dx": "bf16"},
            "plan.gather_dtype is 'int8', but plan.matmul_dtype_dx is 'bf16'",
        ),
        (
            {"gather_dtype": "f32", "param_dtype": "bf16"},
            "plan.gather_dtype is 'f32', but weights are stored in bf16 and used in bf16; write "
            "one of those",
        ),
        (
            {"loss_dtype": "bf16", "dtype": "f32"},
            "plan.loss_dtype is 'bf16', but plan.dtype is 'f32': logits are no less precise than "
            "the activations that they are made of; leave it out",
        ),
    ],
)  # fmt: skip
def test_a_dtype_that_cannot_be_gets_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError) as raised:
        simulate(small(), FSDP.replace(**changes), POD)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_sweep_refuses_what_contradicts_and_runs_the_rest() -> None:
    vary = {"matmul_dtype": ["", "int8"], "gather_dtype": ["", "int8", "f32"]}
    table = sweep(small(), Space(base=FSDP, vary=vary), POD, workers=1)
    assert list(table["status"]) == ["ok", "refused", "ok", "ok", "ok", "ok"]
    assert "plan.gather_dtype is 'int8', but plan.matmul_dtype is 'bf16'" in table["reason"][1]
    with pytest.raises(
        PlanError, match=r"sweep.vary.reduce_dtype\[1\]: plan.reduce_dtype is 'f64'"
    ):
        Space(base=FSDP, vary={"reduce_dtype": ["", "f64"]})


def test_a_chip_without_int8_gathers_none() -> None:
    plan = plan_of({"fsdp": 8}, gather_dtype="int8", **INT8)
    with pytest.raises(PlanError, match="v3 has no int8 matmul"):
        simulate(small(), plan, Slice("v3", "2x2"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, ", bf16, adam"),
        (
            {"gather_dtype": "bf16", "reduce_dtype": "f32"},
            ", bf16 (reductions f32), ",
        ),
        (
            {"moment_dtype": "bf16", "second_moment_dtype": "f32", "param_dtype": "bf16"},
            ", bf16 (weights bf16, moments bf16, second moments f32), ",
        ),
        ({**INT8, "gather_dtype": "int8"}, ", bf16 with int8 matmuls (gathers int8), "),
        (
            {"grad_dtype": "f32", "accumulator_dtype": "bf16", "logits_dtype": "f32"},
            ", bf16 (gradients f32, accumulators bf16, logits f32), ",
        ),
    ],
)
def test_a_plan_names_the_dtypes_that_are_not_the_default(
    changes: dict[str, Any], text: str
) -> None:
    assert text in str(FSDP.replace(**changes))


@pytest.mark.parametrize("style", ["plain", "maxtext"])
@pytest.mark.parametrize("gathers", ["f32", "int8"])
def test_the_program_survives_json(style: str, gathers: str) -> None:
    plan = plan_of({"fsdp": 16}, style=style, gather_dtype=gathers, reduce_dtype="f32", **INT8)
    program = any_program_of(small(), plan, POD)
    assert loads(dumps(program)) == program
    assert gathers in {op.dtype for op, _ in flat(program.body) if isinstance(op, Collective)}
