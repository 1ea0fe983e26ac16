"""Plans, and programs made of the plans' own operations, with a line for each graph operation."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from steps import replay_program

import tpusim as ts
from tpusim.base import Phase
from tpusim.compiler_check import TwinComparison, compare
from tpusim.compiler_check.step_names import StepNames, tensor_of
from tpusim.hardware import parse_slice
from tpusim.program import Call, Collective, CollectivePart, Loop, Op, Program, Single
from tpusim.results import PlanResult, ProgramOrigin, ReplayResult

FILE = "step.py"
DENSE = {"name": "small", "layers": 2, "embed": 512, "mlp": 2048, "heads": 8, "vocab": 4096}
EXPERTS = {"experts": 8, "experts_per_token": 2}
MESHES = {
    "rings": ("v6e:4x4", {"fsdp": 16}),
    "asynchronous": ("v5e:4x4", {"fsdp": 4, "tensor": 4}),
    "merged": ("v5p:2x2x4", {"data": 4, "fsdp": 4}),
    "tensor": ("v6e:4x4", {"tensor": 8, "data": 2}),
    "keys": ("v5e:4x4", {"fsdp": 4, "context": 4}),
    "experts": ("v5e:4x4", {"fsdp": 4, "expert": 4}),
    "slices": ("v5e:4x4 x 2", {"dcn_data": 2, "fsdp": 16}),
}

Change = Callable[[Single], Single]


@cache
def planned(kind: str) -> PlanResult:
    pod, mesh = MESHES[kind]
    plan = ts.Plan(mesh=mesh, seq_len=1024, global_batch=32)
    model = ts.models.Transformer(**DENSE, **(EXPERTS if kind == "experts" else {}))
    return ts.simulate(model, plan, parse_slice(pod))


def lines_of(plan: PlanResult) -> dict[int, str]:
    """A line for each operation of the graph, from 100 on."""
    return dict(enumerate(StepNames.of(plan).operations, start=100))


def place(plan: PlanResult, operation: str) -> str:
    """The place of an operation of the graph; empty for none."""
    found = {name: line for line, name in lines_of(plan).items()}
    return f"{FILE}:{found[operation]}" if operation in found else ""


def as_program(plan: PlanResult, change: Change = lambda op: op) -> ReplayResult:
    """The replay of a program that does what the plan does, but for what `change` changes."""
    names = StepNames.of(plan)
    places = {name: f"{FILE}:{line}" for line, name in lines_of(plan).items()}

    def at(scope: str) -> str:
        tensor, gradient = tensor_of(scope)
        if gradient or tensor in names.weights:
            readers = (name for name, op in names.operations.items() if tensor in _read(op))
            return places.get(next(readers, ""), "")
        return places.get(names.makers.get(tensor) or names.planned(tensor), "")

    def compiled(op: Single) -> Single:
        if isinstance(op, Collective):
            parts = tuple(CollectivePart(p.scope, p.bytes, at(p.scope)) for p in op.parts)
            return change(replace(op, source=at(op.scope), parts=parts))
        known = names.planned(op.scope) if op.phase is not Phase.OPTIMIZER else ""
        return change(replace(op, source=places.get(known, "")) if hasattr(op, "source") else op)

    return replayed(replace(plan.program, body=_mapped(plan.program.body, compiled)), plan)


def replayed(program: Program, plan: PlanResult) -> ReplayResult:
    """The replay of a program on the plan's slice and placement."""
    return replay_program(program, plan.pod, plan.placement, origin=ProgramOrigin(name="step"))


def compared(kind: str, change: Change = lambda op: op) -> TwinComparison:
    """A plan beside its own operations, but for what `change` changes."""
    plan = planned(kind)
    return compare(plan, as_program(plan, change), lines_of(plan))


def _read(op: object) -> set[str]:
    return {tensor.name for tensor in getattr(op, "inputs", ())}


def _mapped(body: tuple[Op, ...], change: Change) -> tuple[Op, ...]:
    assert not any(isinstance(op, Call) for op in body)
    return tuple(
        replace(op, body=_mapped(op.body, change)) if isinstance(op, Loop) else change(op)
        for op in body
    )


def is_named(op: Single, pattern: str) -> bool:
    """True for a collective whose name matches."""
    return isinstance(op, Collective) and re.search(pattern, op.name) is not None
