"""Calls whose arguments do not fit: one sentence, which is also Python's TypeError."""

from collections.abc import Callable
from typing import Any

import pytest

import tpusim as ts
from tpusim.base.checked_call import checked_call

PLAN = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=32)
MODEL = ts.models.Transformer(layers=2, embed=128, mlp=256, heads=4, vocab=500)
POD = ts.Slice("v5e", "4x4")
MESH = {"fsdp": 1}

CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: ts.Plan(mesh=MESH), "Plan needs global_batch; write Plan(mesh=..., global_batch=...)"),
    (lambda: ts.Plan(mesh=MESH, global_batch=1, global_bach=1), "did you mean 'global_batch'?"),
    (lambda: ts.Plan(mesh=MESH, batch_size=8), "Plan has no key 'batch_size'; tpusim calls it "),
    (lambda: ts.Plan(MESH, 8), "Plan takes no values without a name, and 2 are given; write Plan("),
    (lambda: PLAN.replace(remta="full"), "Plan has no key 'remta'; did you mean 'remat'?"),
    (lambda: ts.models.Transformer(layer=1), "Transformer has no key 'layer'; did you mean 'lay"),
    (lambda: ts.models.Transformer(layers=1, embed=8, mlp=8), "Transformer needs heads and vocab;"),
    (lambda: ts.models.ResNet(stagse=(1,)), "ResNet has no key 'stagse'"),
    (lambda: ts.Slice(), "Slice needs chip; write Slice(chip)"),
    (lambda: ts.Slice("v5e", "4x4", shap="4x4"), "Slice has no key 'shap'; did you mean 'shape'?"),
    (lambda: ts.Slice("v5e", "4x4", shape="4x4"), "Slice has 'shape' twice, by its place and by"),
    (lambda: ts.Space(bas=PLAN), "Space has no key 'bas'; did you mean 'base'?"),
    (lambda: ts.PlanSpace(base=PLAN, slice=[POD]), "no key 'slice'; did you mean 'slices'?"),
    (lambda: ts.TrainingRun(step=1), "TrainingRun has no key 'step'; did you mean 'steps'"),
    (lambda: ts.Checkpoints(), "Checkpoints needs every; write Checkpoints(every=...)"),
    (lambda: ts.Input(kinds="tokens"), "Input has no key 'kinds'; did you mean 'kind'?"),
    (lambda: ts.simulate(MODEL, PLAN, POD, placements=1), "simulate has no argument 'placements'"),
    (lambda: ts.simulate(), "simulate needs model; write simulate(model)"),
    (lambda: ts.sweep(MODEL, POD), "sweep needs pod; write sweep(model, space, pod)"),
    (lambda: ts.search(MODEL), "search needs space; write search(model, space)"),
    (lambda: ts.train(MODEL, PLAN, POD), "train needs run; write train(model, plan, pod, run)"),
    (lambda: ts.bound(MODEL, PLAN, POD, 1), "bound takes 3 values (model, plan, pod) without a "),
]  # type: ignore[call-arg, call-overload]  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), CALLS)
def test_arguments_that_do_not_fit_are_a_sentence(
    call: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(ts.TpusimError) as caught:
        call()
    assert sentence in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert "\n" not in str(caught.value)


def test_errors_from_inside_a_function_are_its_own() -> None:
    @checked_call
    def adds(one: Any, other: Any) -> Any:
        return one + other

    assert adds(1, other=2) == 3
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        adds(1, "x")
    assert not isinstance(caught.value, ts.TpusimError)


def test_a_checked_class_is_itself() -> None:
    assert ts.Slice("v5e", "4x4") == POD
    assert PLAN.replace(global_batch=64).global_batch == 64
    assert ts.Plan.__init__.__doc__ == type(PLAN).__init__.__doc__
