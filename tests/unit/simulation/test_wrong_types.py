"""Python's front doors, given what they do not take: one sentence each, whatever it is."""

from collections.abc import Callable
from pathlib import Path

import pytest

import tpusim as ts
from tpusim.base import TpusimError

MODEL = ts.models.Transformer(layers=2, embed=128, mlp=256, heads=4, vocab=500, name="small")
PLAN = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=32)
POD = ts.Slice("v5e", "4x4")
KEYS = {"mesh": {"fsdp": 16}, "seq_len": 64, "global_batch": 32}
WRONG = (None, 1, 1.5, "x", b"x", [], {}, (1, 2), object(), True, float("nan"), {"a": "b"},
         ["fsdp"], len, set())  # fmt: skip
ANYTHING = pytest.mark.parametrize("wrong", WRONG, ids=lambda value: f"{type(value).__name__}")


def said(call: Callable[[], object]) -> str:
    """The sentence of a call that is refused; empty for one that goes. Nothing else is raised."""
    try:
        call()
    except TpusimError as error:
        return str(error)
    return ""


@ANYTHING
def test_a_simulation(wrong: object) -> None:
    assert said(lambda: ts.simulate(wrong, PLAN, POD))
    assert said(lambda: ts.simulate(MODEL, wrong, POD))
    assert said(lambda: ts.simulate(MODEL, PLAN, wrong))
    refused = said(lambda: ts.simulate(MODEL, PLAN, POD, placement=wrong))
    assert refused.startswith("a placement is ") or wrong is None
    refused = said(lambda: ts.simulate(MODEL, PLAN, POD, among=wrong))
    assert "placement" in refused or wrong is None or wrong == []


@ANYTHING
def test_files_and_names(wrong: object) -> None:
    for call in (ts.read_run, ts.xla.load, ts.models.load, ts.models.from_hf):
        assert said(lambda call=call: call(wrong))


@ANYTHING
def test_a_sweep(wrong: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = ts.Space(base=PLAN)
    assert said(lambda: ts.sweep(wrong, space, POD))
    assert said(lambda: ts.sweep(MODEL, space, wrong))
    assert said(lambda: ts.sweep(MODEL, wrong, POD))
    refused = said(lambda: ts.sweep(MODEL, space, POD, out=wrong))
    assert ("write a path" in refused) != (wrong is None or isinstance(wrong, str))
    for key in ("base", "axes", "meshes", "vary", "shapes", "placements", "extra_axes"):
        said(lambda key=key: ts.sweep(MODEL, ts.Space(**{"base": PLAN, key: wrong}), POD))


@ANYTHING
def test_a_search(wrong: object) -> None:
    space = ts.PlanSpace(base=PLAN, slices=[POD], axes=("data", "fsdp"))
    if wrong != "x":
        assert "model" in said(lambda: ts.search(wrong, space))  # type: ignore[arg-type]
    assert "write search(model, space)" in said(lambda: ts.search(MODEL, wrong))  # type: ignore[arg-type]
    for key in ("objective", "run", "top", "at_most", "method", "workers", "executor", "progress"):
        said(lambda key=key: ts.search(MODEL, space, **{"workers": 1, key: wrong}))
    for key in ("starts", "seed"):
        said(lambda key=key: ts.search(MODEL, space, method="local", workers=1, **{key: wrong}))
    for key in ("base", "slices", "axes", "meshes", "most", "vary"):
        keys = {"base": PLAN, "slices": [POD], "axes": ("fsdp",), key: wrong}
        said(lambda keys=keys: ts.PlanSpace(**keys))
    assert said(lambda: ts.PlanSpace(base=PLAN, slices=[wrong], axes=("fsdp",)))  # type: ignore[list-item]


@ANYTHING
def test_what_takes_a_result_or_a_path(
    wrong: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one that stands for a file name, or for an omission."""
    result = ts.simulate(MODEL, PLAN, POD)
    for call in (ts.explain_lines, ts.explain_collectives, ts.explain_pipeline):
        assert f"{call.__name__} is given" in said(lambda call=call: call(wrong))
    assert said(lambda: ts.write_report(wrong, tmp_path))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    assert said(lambda: ts.compare(result, wrong))  # type: ignore[arg-type]
    assert said(lambda: ts.with_measured(wrong))  # type: ignore[arg-type]
    said(lambda: ts.with_measured(ts.scaling(MODEL, PLAN, POD, chips=[16]), wrong))  # type: ignore[arg-type]
    said(lambda: ts.from_maxtext(wrong))  # type: ignore[arg-type]
    for call in (ts.load_chip, ts.validate, ts.slices_of):
        said(lambda call=call: call(wrong))


@ANYTHING
def test_a_training_run_and_curves(wrong: object) -> None:
    run = ts.TrainingRun(steps=10)
    assert said(lambda: ts.train(wrong, PLAN, POD, run))  # type: ignore[arg-type]
    assert said(lambda: ts.train(MODEL, wrong, POD, run))  # type: ignore[arg-type]
    assert said(lambda: ts.train(MODEL, PLAN, wrong, run))  # type: ignore[arg-type]
    assert said(lambda: ts.train(MODEL, PLAN, POD, wrong))  # type: ignore[arg-type]
    for call in (ts.simulate, ts.scaling):
        assert said(lambda call=call: call(wrong, PLAN, POD))
    refused = said(lambda: ts.simulate(MODEL, PLAN, POD, input=wrong))  # type: ignore[call-overload]
    assert "write a ts.Input" in refused or wrong is None
    for key in ("chips", "slices", "axis"):
        said(lambda key=key: ts.scaling(MODEL, PLAN, POD, **{key: wrong}))


@ANYTHING
def test_a_slice(wrong: object) -> None:
    assert said(lambda: ts.Slice(wrong, "4x4"))
    said(lambda: ts.Slice("v5e", wrong))
    said(lambda: ts.Slice("v5e", "4x4", wrong))
    for key in ("twisted", "dcn_oversubscription", "clock", "slow"):
        said(lambda key=key: ts.Slice("v5e", "4x4", **{key: wrong}))


@pytest.mark.parametrize("key", list(PLAN.flat()))
def test_each_key_of_a_plan(key: str) -> None:
    """Tables and lists stand where words do, too."""
    for wrong in WRONG:
        said(lambda wrong=wrong: ts.simulate(MODEL, ts.Plan(**{**KEYS, key: wrong}), POD))
