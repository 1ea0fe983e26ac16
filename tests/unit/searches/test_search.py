"""The search finds what an exhaustive sweep finds, and simulates less."""

from functools import cache

import pytest
from extent import sample, thorough

from tpusim.base import PlanError, TpusimError
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Input, Plan
from tpusim.searches import OBJECTIVES, PlanSpace, search, slices_of
from tpusim.searches.plan_space import AGAIN
from tpusim.searches.report import search_text
from tpusim.simulation import simulate
from tpusim.training import Checkpoints, TrainingRun, train

MODEL = Transformer(layers=4, embed=512, mlp=2048, heads=4, vocab=1000)
BASE = Plan(mesh={"data": 1}, seq_len=128, global_batch=64)
SLICES = {
    "v5e": [Slice("v5e", "4x4")],
    "v4": [Slice("v4", "2x2x4")],
    "7x": [Slice("7x", "2x2x1")],
    "two": [Slice("v5e", "2x4"), Slice("v6e", "2x2")],
}
VARIED = [
    {"microbatches": [1, 4]},
    {"remat": ["full", "minimal", "none"]},
    {"dtype": ["bf16", "f32"], "style": ["plain", "maxtext"]},
    {"global_batch": [32, 64], "optimizer": ["adam", "sgd"]},
    {"schedule": ["1f1b", "gpipe"], "microbatches": [4]},
]
SPACES = [(slices, number) for number in range(len(VARIED)) for slices in SLICES]
"""Twenty spaces: slices, and the number of what varies."""


def small_space(slices: str, number: int) -> PlanSpace:
    axes = ("data", "fsdp", "tensor") if number < 4 else ("fsdp", "tensor", "stage")
    return PlanSpace(
        base=BASE, slices=SLICES[slices], axes=axes, vary=VARIED[number],
        most={"stage": 4} if number == 4 else {},
    )  # fmt: skip


@cache
def every_step(slices: str, number: int, given: Input | None = None) -> list[tuple[float, float]]:
    """Step time and seconds for each token and chip of all plans that fit."""
    found = []
    for block in small_space(slices, number).blocks:
        for at in range(len(block)):
            pod = block.pods[block.pod[at]]
            try:
                result = simulate(MODEL, block.plan(at), pod, input=given)
            except TpusimError:
                continue
            if result.fits:
                each = result.step_time_s * pod.chips / result.tokens
                found.append((result.step_time_s, each))
    return found


@pytest.mark.parametrize(("slices", "number"), sample(SPACES, 20))
def test_a_search_is_an_exhaustive_sweep(slices: str, number: int) -> None:
    space = small_space(slices, number)
    every = every_step(slices, number)
    found = search(MODEL, space, top=3, workers=1)
    assert found.proved
    assert found.gap == 0
    assert found.plans == len(space)
    assert [each.step_time_s for each in found.best] == sorted(step for step, _ in every)[:3]
    best = search(MODEL, space, "chip_time", workers=1).best[0]
    assert best.values[0] == pytest.approx(min(each for _, each in every), rel=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, thorough(4)])
def test_a_search_beside_hosts_is_an_exhaustive_sweep(number: int) -> None:
    """Some plans wait for their hosts and others do not, and two slices have other hosts."""
    space = small_space("two", number)
    hosts = Input(workers=4, decode_s=480e-6)
    every, alone = every_step("two", number, hosts), every_step("two", number)
    waits = [fed > step for (fed, _), (step, _) in zip(every, alone, strict=True)]
    assert 0 < sum(waits) < len(waits)
    found = search(MODEL, space, input=hosts, top=3, workers=1)
    assert found.proved
    assert [each.step_time_s for each in found.best] == sorted(step for step, _ in every)[:3]
    best = search(MODEL, space, "chip_time", input=hosts, workers=1).best[0]
    assert best.values[0] == pytest.approx(min(each for _, each in every), rel=1e-12)


def test_a_search_takes_an_input_pipeline_alone() -> None:
    with pytest.raises(PlanError, match=r"input is 3; write a ts\.Input"):
        search(MODEL, small_space("v5e", 0), input=3)  # type: ignore[arg-type]
    space = PlanSpace(base=BASE.replace(input_s=1.0), slices=SLICES["v5e"], axes=("data",))
    with pytest.raises(PlanError, match=r"plan\.input_s is 1, and there is an input pipeline"):
        search(MODEL, space, input=Input(workers=1))


@pytest.mark.thorough
def test_a_front_holds_what_no_other_plan_beats_in_both() -> None:
    space = small_space("two", 1)
    every = every_step("two", 1)
    front = search(MODEL, space, ("step_time", "chip_time"), workers=1).best
    apart = {
        one for one in every
        if not any(o[0] <= one[0] and o[1] <= one[1] and o != one for o in every)
    }  # fmt: skip
    assert {each.step_time_s for each in front} == {step for step, _ in apart}


def test_an_interrupted_search_has_a_gap() -> None:
    def stop(state: object) -> None:
        raise KeyboardInterrupt

    found = search(MODEL, small_space("v5e", 0), workers=1, progress=stop)
    assert not found.proved
    assert found.simulated == 1
    assert found.possible <= found.best[0].values[0]
    assert found.gap == found.best[0].values[0] / found.possible - 1


@pytest.mark.thorough
def test_two_processes_find_what_one_does() -> None:
    space = small_space("two", 1)
    one, two = (search(MODEL, space, "cost", top=3, workers=count) for count in (1, 2))
    assert one.best == two.best
    assert two.proved


@pytest.mark.thorough
def test_a_local_search_says_that_it_proves_nothing_and_finds_a_local_best() -> None:
    space = small_space("two", 1)
    proved = search(MODEL, space, workers=1).best[0]
    found, again = (
        search(MODEL, space, method="local", starts=2, seed=seed, workers=1) for seed in (0, 0)
    )
    assert not found.proved
    assert found.possible == 0
    assert found.gap == float("inf")
    assert found.best == again.best
    assert found.best[0].values == proved.values  # the sample holds all of so small a space


@pytest.mark.thorough
def test_limits_leave_out_what_is_above_them() -> None:
    space = small_space("two", 1)
    every = every_step("two", 1)
    limit = sorted(step for step, _ in every)[len(every) // 3]
    found = search(MODEL, space, "chip_time", at_most={"step_time": limit}, workers=1).best[0]
    within = min(each for step, each in every if step <= limit)
    assert found.values[0] == pytest.approx(within, rel=1e-12)
    few = search(MODEL, space, at_most={"chips": 4}, workers=1).best
    assert [each.pod.chips for each in few] == [4]
    assert not search(MODEL, space, at_most={"hbm": 1e-6}, workers=1).best


def test_a_space_is_printed_in_a_few_lines() -> None:
    space = PlanSpace(
        base=BASE, slices=slices_of(["v4", "v5p"], 2048, 6144), axes=("data", "fsdp", "tensor"),
        most={"tensor": 16}, vary={"remat": ["full", "none"], "global_batch": [2048]},
    )  # fmt: skip
    lines = repr(space).splitlines()
    assert lines[0] == f"PlanSpace of {len(space):,} plans"
    assert lines[2:] == ["  axes: data, fsdp, tensor", "  at most: tensor 16",
                         "  values: remat 2, global_batch 1"]  # fmt: skip
    assert len(lines) < 10
    assert max(map(len, lines)) < 110


def test_plans_of_a_space_count_once() -> None:
    once = PlanSpace(base=BASE, slices=SLICES["v4"], axes=("fsdp",), vary={"remat": ["full"]})
    again = PlanSpace(
        base=BASE, slices=[*SLICES["v4"], Slice("v4", "4x2x2")], axes=("fsdp",),
        vary={"remat": ["full", "full"], "microbatches": [1, 1]},
    )  # fmt: skip
    assert len(once) == len(again) == 1
    assert once.groups == again.groups == 1


def test_meshes_that_are_listed_are_on_slices_of_their_devices() -> None:
    meshes = [{"fsdp": 8}, {"data": 2, "fsdp": 2}, {"tensor": 3}]
    space = PlanSpace(base=BASE, slices=SLICES["two"], meshes=meshes)
    (block,) = space.blocks
    plans = [(block.plan(at), block.pods[block.pod[at]].chips) for at in range(len(block))]
    assert [(dict(plan.mesh), chips) for plan, chips in plans] == [
        ({"fsdp": 8, "data": 1, "tensor": 1}, 8), ({"fsdp": 2, "data": 2, "tensor": 1}, 4),
    ]  # fmt: skip


def test_values_of_a_pipeline_count_once_without_stages() -> None:
    space = small_space("v5e", 4)
    assert sum((block.stages == 1).sum() for block in space.blocks) == 5


def inner_space(**vary: list[object]) -> PlanSpace:
    return PlanSpace(base=BASE, slices=SLICES["v5e"], axes=("fsdp", "stage"), vary=vary).of(MODEL)


@pytest.mark.parametrize(
    "vary",
    [
        {"expert_tiles": [[512, 1024, 1024], [128, 128, 128]], "seed": [1, 2]},
        {"attention_block": [[512, 512], [128, 128]]},
        {"context_exchange": ["ring", "gather"], "context_balanced": [False, True]},
        {"gradient_reduction": ["per-step", "per-microbatch"]},
        {"gather_dtype": ["bf16", ""], "schedule": ["", "1f1b"]},
    ],
)
def test_values_that_change_nothing_count_once(vary: dict[str, list[object]]) -> None:
    unfused = MODEL.replace(attention="dot")
    space = inner_space(**vary).of(unfused)
    assert len(space) == len(inner_space())
    combinations = len(space.table[0]) * 2 ** len(vary)
    assert space.left_out[AGAIN] == combinations - len(space.table[0])


def test_tensors_that_are_saved_anyway_are_no_other_plan() -> None:
    """Without a checkpoint all are saved, and with `dots` the results of matmuls."""
    names = [[], ["v"], ["mlp_hidden"]]
    full, dots, none = (inner_space(remat=[policy], save=names) for policy in
                        ("full", "dots", "none"))  # fmt: skip
    assert len(full) == 3 * len(inner_space())
    assert len(none) == len(inner_space())
    unpiped = int((dots.table[1][:, 1] == 1).sum())
    assert len(full) - len(dots) == unpiped  # `v` is the result of a matmul


def test_combinations_that_contradict_each_other_are_counted() -> None:
    space = inner_space(schedule=["1f1b", "interleaved"], virtual_stages=[1, 2], microbatches=[4])
    assert {form.base.flat()["schedule"] for form in space.forms} == {"1f1b", "interleaved"}
    reasons = "\n".join(space.left_out)
    assert "plan.schedule is 'interleaved', but plan.virtual_stages is 1" in reasons
    assert "plan.virtual_stages is 2, but the schedule 1f1b has one part" in reasons
    assert len(space) + sum(space.left_out.values()) == 4 * len(space.table[0])
    found = search(MODEL, inner_space(vocab_blocks=[1, 3]), workers=1)
    assert found.plans - found.admitted == sum(found.left_out.values())
    assert any("3, which does not divide model.vocab, 1000" in why for why in found.left_out)
    assert "does not divide model.vocab" in search_text(found, inner_space(), "small")


@pytest.mark.parametrize(
    ("vary", "sentence"),
    [
        ({"remat": ["full", "ful"]}, r"search.vary.remat\[1\]: plan.remat is 'ful': did you mean"),
        ({"save": [[], ["mlp_hiden"]]}, r"search.vary.save\[1\]: plan.save .* mean 'mlp_hidden'"),
        ({"weight_update_axes": [["fdsp"]]}, r"axes\[0\]: .* no axis .* did you mean 'fsdp'"),
        ({"rules": [{"mlp": "fdsp"}]}, r"search.vary.rules\[0\]: .* did you mean 'fsdp'"),
        ({"without_passes": [["prefetsh"]]}, r"passes\[0\]: .* did you mean 'prefetch'"),
        ({"shedule": ["1f1b"]}, "unknown field 'shedule'; did you mean 'schedule'"),
        ({"schedule": ["interleaved"]}, "no values of search.vary go together; plan.schedule is"),
    ],
)
def test_a_value_that_no_plan_can_have_is_one_sentence(
    vary: dict[str, list[object]], sentence: str
) -> None:
    with pytest.raises(PlanError, match=sentence):
        inner_space(**vary)


def test_the_slices_of_a_range_are_all_legal_ones() -> None:
    assert [str(pod) for pod in slices_of(["v5e"], 16, 32)] == ["v5e:4x4", "v5e:4x8"]
    assert [str(pod) for pod in slices_of(["v5e"], 16, 16, num_slices=[1, 2])] == [
        "v5e:2x4 x 2 slices", "v5e:4x4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"slices": []}, "search.slices is empty"),
        ({"most": {"expert": 2}}, "search.most has 'expert'"),
        ({"vary": {"mesh": [{}]}}, "search.vary does not take 'mesh'"),
        ({"vary": {"remat": "full"}}, "search.vary.remat is 'full'; write a list"),
        ({"most": {"data": 1, "fsdp": 1}}, "no mesh of the axes"),
        ({"axes": ()}, "search.axes and search.meshes are both missing"),
        ({"meshes": [{"fsdp": 16}]}, "search.axes and search.meshes are both given"),
    ],
)
def test_a_space_that_cannot_be_is_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        PlanSpace(**{"base": BASE, "slices": SLICES["v5e"], "axes": ("data", "fsdp"), **given})


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(PlanError, match="did you mean 'step_time'"):
        search(MODEL, small_space("v5e", 0), "step_tim")
    for given, sentence in (
        ({"at_most": {"chip": 4}}, "at_most has an unknown key 'chip'; did you mean 'chips'"),
        ({"at_most": {"chips": 0}}, "search.at_most.chips is 0; write a number above 0"),
        ({"method": "locl"}, "did you mean 'local'"),
        ({"method": "local", "objective": ["cost", "energy"]}, "a local search has one objective"),
    ):
        with pytest.raises(PlanError, match=sentence):
            search(MODEL, small_space("v5e", 0), **given)
    assert set(OBJECTIVES) == {
        "step_time", "chip_time", "cost", "energy", "time_to_train", "cost_to_train",
    }  # fmt: skip


RUN = TrainingRun(
    tokens=3e8, compile_s=20.0, checkpoints=Checkpoints(every=500, mode="blocking"), price=99.0
)


@pytest.mark.parametrize("objective", ["time_to_train", "cost_to_train"])
def test_a_search_of_runs_finds_what_training_every_plan_finds(objective: str) -> None:
    """The batch differs, so a longer step can be the shorter run; so does the price of a second."""
    space = PlanSpace(
        base=BASE, slices=SLICES["two"], axes=("data", "fsdp"), vary={"global_batch": [32, 64]}
    )
    values = []
    for block in space.blocks:
        for at in range(len(block)):
            pod = block.pods[block.pod[at]]
            wall = train(MODEL, block.plan(at), pod, RUN).wall_s.value
            dollars = pod.chips * (pod.chip.price or 0.0) / 3600
            values.append(wall * (dollars if objective == "cost_to_train" else 1.0))
    found = search(MODEL, space, objective, run=RUN, workers=1)
    assert found.proved
    assert found.best[0].values[0] == pytest.approx(min(values), rel=1e-12)
    assert found.possible <= found.best[0].values[0]
    text = search_text(found, space, "small")
    assert f"  {objective.replace('_', ' ')} [" in text
    assert "/token" not in text


def test_an_objective_of_a_run_needs_one() -> None:
    space = small_space("v5e", 0)
    with pytest.raises(PlanError, match="is of a training run, and none is given; write run"):
        search(MODEL, space, "time_to_train")
    with pytest.raises(PlanError, match="step_time_s of its own; leave it out"):
        search(MODEL, space, "time_to_train", run=TrainingRun(steps=9, step_time_s=1.0))
