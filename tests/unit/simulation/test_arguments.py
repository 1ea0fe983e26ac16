"""Model, plan and slice in one order: names are loaded, and everything else is a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tpusim as ts

MODEL = ts.models.load("llama3-8b", layers=2)
PLAN = ts.Plan(mesh={"fsdp": 16}, seq_len=512, global_batch=32)
POD = ts.Slice("v5e", "4x4")
CALLS: tuple[Callable[..., Any], ...] = (
    ts.simulate, ts.explain_placement, ts.bound, ts.scaling, ts.check, ts.export_jax,
)  # fmt: skip


def test_names_are_the_model_and_the_slice() -> None:
    plan = PLAN.replace(remat="full")
    for model, pod in (("bert-base", "v5e-16"), ("bert-base", "v5e:4x4")):
        named = ts.simulate(model, plan, pod)
        loaded = ts.simulate(ts.models.load("bert-base"), plan, POD)
        assert named.step_time_s == loaded.step_time_s
        assert named.pod == POD
    assert ts.bound("bert-base", plan, "v5e-16") <= named.step_time_s
    assert str(ts.explain_placement("bert-base", plan, "v5e-16")).startswith("placements")


WRONG = [
    ((PLAN, MODEL, POD), "the model is a Plan (mesh fsdp=16, batch 32 x 512 tokens"),
    ((MODEL, POD, PLAN), "the plan is a Slice (v5e:4x4); write {call}(model, plan, slice)"),
    ((POD, PLAN, MODEL), "the model is a Slice (v5e:4x4); write {call}(model, plan, slice)"),
    ((MODEL, PLAN, 256), "the slice is an int (256); write {call}(model, plan, slice)"),
    ((MODEL, PLAN, MODEL), "the slice is a Transformer (llama3-8b with layers=2); write {call}("),
    ((MODEL, {"mesh": {"fsdp": 16}}, POD), "the plan is a dict; write ts.Plan(**keys)"),
    ((MODEL, PLAN, None), "a model needs a plan and a slice; write {call}(model, plan, slice)"),
    ((type(MODEL), PLAN, POD), "the model is the class Transformer; write Transformer(...)"),
    ((print, PLAN, POD), "the model is a function; compile it first"),
    ((Path("run.toml"), PLAN, POD), "the model is 'run.toml', a path; write ts.read_run(path)"),
    (("config.json", PLAN, POD), "or ts.xla.load(path) for a compiled program"),
    (("lama3-8b", PLAN, POD), "no model 'lama3-8b' in the zoo; did you mean 'llama3-8b'"),
    (("v5e-16", PLAN, MODEL), "the model is 'v5e-16', a slice; write {call}(model, plan, slice)"),
    (("nemo", PLAN, POD), "no model 'nemo' in the zoo; `tpusim models` lists the "),
    ((MODEL, PLAN, "v5e:4x5"), "v5e has no slice 4x5"),
    ((MODEL, PLAN, "v5x-16"), "no generation is called 'v5x'; valid are"),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize(("given", "sentence"), WRONG)
def test_what_is_wrong_is_one_sentence(
    call: Callable[..., Any], given: tuple[Any, ...], sentence: str
) -> None:
    with pytest.raises(ts.TpusimError) as caught:
        call(*given)
    assert sentence.format(call=call.__name__) in str(caught.value)
    assert "\n" not in str(caught.value)


SPACE = ts.Space(base=PLAN)
PLANS = ts.PlanSpace(base=PLAN, slices=[POD], axes=("fsdp",))
SWAPPED = [
    (ts.sweep, (MODEL, POD, SPACE), "the space is a Slice (v5e:4x4); write sweep(model, space, "),
    (ts.sweep, (SPACE, MODEL, POD), "the model is a Space; write sweep(model, space, slice)"),
    (ts.sweep, (MODEL, SPACE, PLAN), "the slice is a Plan (mesh fsdp=16, batch 32 x 512 tokens"),
    (ts.sweep, (MODEL, PLANS, POD), "the space is a PlanSpace; write sweep(model, space, slice), "),
    (ts.search, (PLANS, MODEL), "the model is a PlanSpace; write search(model, space)"),
    (ts.search, (MODEL, SPACE), "the space is a Space; write search(model, space), with a space"),
    (ts.train, (PLAN, MODEL, POD, ts.TrainingRun(steps=1)), "the model is a Plan (mesh fsdp=16"),
    (ts.train, (MODEL, PLAN, ts.TrainingRun(steps=1), POD), "the slice is a TrainingRun; write "),
    (ts.compare, (PLAN, POD), "which is no step; give a result"),
    (ts.write_report, ("folder", MODEL), "write_report is given 'folder'; write write_report("),
]  # fmt: skip


@pytest.mark.parametrize(("call", "given", "sentence"), SWAPPED)
def test_what_is_swapped_is_one_sentence(
    call: Callable[..., Any], given: tuple[Any, ...], sentence: str
) -> None:
    with pytest.raises(ts.TpusimError) as caught:
        call(*given)
    assert sentence in str(caught.value)


def test_a_run_in_place_of_its_parts_is_taken_apart_in_words() -> None:
    result = ts.simulate(MODEL, PLAN, POD)
    for given in ((result,), (result, PLAN, POD)):
        with pytest.raises(ts.TpusimError, match=r"is a PlanResult, .*simulate\(run\.model, run"):
            ts.simulate(*given)


@pytest.mark.parametrize("shape", [256, 4.0, ["4", "4"]])
def test_a_shape_of_a_wrong_type_is_a_sentence(shape: Any) -> None:
    with pytest.raises(ts.TpusimError, match="write chips along each dimension, such as '16x16'"):
        ts.Slice("v5e", shape)


def test_a_chip_without_a_shape_is_the_name_of_no_slice() -> None:
    with pytest.raises(ts.TpusimError, match="it says the chip, v5e, but no size; write for"):
        ts.Slice("v5e")


def test_a_chip_of_a_wrong_type_is_a_sentence() -> None:
    with pytest.raises(ts.TpusimError, match="the chip is 5; write a name"):
        ts.Slice(5, "4x4")  # type: ignore[arg-type]
