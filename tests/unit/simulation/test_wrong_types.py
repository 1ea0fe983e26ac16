"""Python's front doors, given what they do not take: one sentence each, whatever it is."""

from collections.abc import Callable
from pathlib import Path

import pytest

import tpusim as ts
from tpusim.base.errors import TpusimError

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
    assert said(lambda: ts.sweep(wrong, POD, space))
    assert said(lambda: ts.sweep(MODEL, wrong, space))
    assert said(lambda: ts.sweep(MODEL, POD, wrong))
    refused = said(lambda: ts.sweep(MODEL, POD, space, out=wrong))
    assert ("write a path" in refused) != (wrong is None or isinstance(wrong, str))
    for key in ("base", "axes", "meshes", "vary", "shapes", "placements", "extra_axes"):
        said(lambda key=key: ts.sweep(MODEL, POD, ts.Space(**{"base": PLAN, key: wrong})))


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
