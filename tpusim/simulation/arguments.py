"""The arguments of a simulation, checked at one place: model, plan and slice, in this order."""

from pathlib import Path
from typing import Any

from tpusim import models
from tpusim.base.errors import HardwareError, PlanError
from tpusim.base.shown_value import cut, shown, with_article
from tpusim.hardware import Slice, parse_slice
from tpusim.models import Architecture
from tpusim.plan import Input, Plan

FILE_ENDINGS = (".toml", ".json", ".hlo", ".gz", ".txt", ".pb", ".yml", ".py")
"""Endings of a path that stands where a model does; no published model's name has one."""


def check_arguments(
    model: Any, plan: Any, pod: Any, call: str = "simulate", before: str = ""
) -> tuple[Architecture, Plan, Slice]:
    """Return a model, a plan and a slice, the first and the last loaded where they are names.

    call: the function that was called, for messages.
    before: its arguments before these, such as `path, `.

    Raise PlanError for arguments in another order or of another type, ModelError and HardwareError
    for names that no model and no slice has.
    """
    order = f"write {call}({before}model, plan, slice)"
    model = check_model(model, order, call)
    if plan is None or pod is None:
        raise PlanError(f"a model needs a plan and a slice; {order}")
    return model, _plan(plan, order), check_slice(pod, order)


def check_slice(pod: Any, order: str) -> Slice:
    """Return a slice, or that of a name such as `v5e-256` or `v5e:16x16`.

    order: the clause of a message that says what to write instead.
    """
    if isinstance(pod, str):
        return parse_slice(pod)
    if not isinstance(pod, Slice):
        raise PlanError(f"the slice is {described(pod)}; {order}, with a slice such as 'v5e-256'")
    return pod


def check_input(given: Any, input_s: float) -> None:
    """Raise PlanError for what is neither None nor an input pipeline, or is one beside `input_s`.

    input_s: of the plan that the hosts feed, or that the plans of a space vary.
    """
    if given is None:
        return
    if not isinstance(given, Input):
        raise PlanError(f"input is {shown(given)}; write a ts.Input(...), or leave it out")
    if input_s:
        raise PlanError(
            f"plan.input_s is {input_s:g}, and there is an input pipeline besides, which says "
            "how long a batch takes; leave one of them out"
        )


def check_model(model: Any, order: str, call: str) -> Architecture:
    """Return a model, loaded where it is a name.

    order: the clause of a message that says what to write instead. call: the function's name.
    """
    if isinstance(model, Architecture):
        return model
    if isinstance(model, Path) or (isinstance(model, str) and model.endswith(FILE_ENDINGS)):
        raise PlanError(
            f"the model is {str(model)!r}, a path; write ts.read_run(path) for a run file, "
            "ts.models.from_hf(path) for a config, or ts.xla.load(path) for a compiled program"
        )
    if isinstance(model, str):
        if models.architecture_of(model) is None and _names_a_slice(model):
            raise PlanError(f"the model is {model!r}, a slice; {order}")
        loaded: Architecture = models.load(model)
        return loaded
    _check_no_run(model, call)
    if isinstance(model, type):
        raise PlanError(
            f"the model is the class {model.__name__}; write {model.__name__}(...) with the "
            "model's dimensions"
        )
    if callable(model):
        raise PlanError(
            "the model is a function; compile it first: "
            "simulate(ts.xla.compile(fn, *args, slice=..., mesh=...))"
        )
    raise PlanError(f"the model is {described(model)}; {order}, with a model such as 'llama3-8b'")


def _names_a_slice(name: str) -> bool:
    try:
        parse_slice(name)
    except HardwareError:
        return False
    return True


def _plan(plan: Any, order: str) -> Plan:
    if isinstance(plan, dict):
        raise PlanError("the plan is a dict; write ts.Plan(**keys), which checks them")
    if not isinstance(plan, Plan):
        raise PlanError(f"the plan is {described(plan)}; {order}, with a plan of ts.Plan(...)")
    return plan


def _check_no_run(model: Any, call: str) -> None:
    """Raise PlanError for a run or a result, which has all three, in place of a model."""
    if all(hasattr(model, part) for part in ("model", "plan", "pod")):
        kind = type(model).__name__
        raise PlanError(
            f"the model is a {kind}, which has a model, a plan and a slice; write "
            f"{call}(run.model, run.plan, run.pod)"
        )


def described(value: Any) -> str:
    """Return the kind of a value with its article, and the value where it is short."""
    text = f" ({cut(str(value))})" if isinstance(value, (Plan, Slice, int, float, str)) else ""
    named = f" ({value.name})" if isinstance(value, Architecture) else text
    return f"{with_article(type(value).__name__)}{named}"
