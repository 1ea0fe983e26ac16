"""Compilation of an exported step for the slice and the placement of its plan."""

import builtins
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import Any

from tpusim.base.errors import CompileError
from tpusim.compiler import Compiled, RefusedError, compile, place_mesh
from tpusim.compiler import cache as program_cache
from tpusim.compiler.options import ENVIRONMENT, Option
from tpusim.compiler.topologies import INSTALL, versions
from tpusim.export.step_source import ExportedStep
from tpusim.results import PlanResult, ServedStep

OPTIMIZERS = "optax"
"""The package of the optimizers of exported steps."""

STEP_FILE = "step.py"
"""The name of an exported file in the source lines of its program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompilation:
    """What the compiler is asked for: an exported step, for the slice and placement of its plan.

    planned: the simulated plan.
    options: flags of the compiler for this program.
    full: code is generated too; otherwise the compiler is ended at the schedule.
    time_limit: seconds for the compiler; None for no limit.
    """

    step: ExportedStep
    planned: PlanResult
    options: Mapping[str, Option]
    full: bool = False
    time_limit: float | None = None

    @property
    def mesh(self) -> Mapping[str, int]:
        """The axes of the program, and their sizes."""
        plan = self.planned.plan
        return plan.active_axes or dict(plan.mesh)

    @property
    def until(self) -> str:
        """How far the compiler runs, as `ts.xla.compile` takes it."""
        return "code" if self.full else "schedule"


def step_versions(*, trains: bool = True) -> dict[str, str]:
    """Return the installed versions of all that compiles an exported step.

    trains: it has an optimizer.

    Raise CompileError if one is missing.
    """
    found = versions()
    if not trains:
        return found
    try:
        return {**found, OPTIMIZERS: version(OPTIMIZERS)}
    except PackageNotFoundError as error:
        raise CompileError(
            f"an exported step has its optimizer from {OPTIMIZERS}, which is not installed; "
            f"{INSTALL}"
        ) from error


def compile_step(asked: StepCompilation) -> Compiled:
    """Return the program of an exported step, from the cache if the same was compiled before.

    The compiler runs in a process of its own, where a time limit or Ctrl-C ends it. A cached
    program needs neither JAX nor the compiler. One that needs more HBM than there is is the last
    that the compiler tried, with its `refusal`; otherwise raise CompileError as `ts.xla.compile`.
    """
    facts, source = _facts(asked), asked.step.source.encode()
    extents = dict.fromkeys(("code", asked.until))
    entries = [program_cache.key(source, {**facts, "until": until}) for until in extents]
    for entry in entries:
        if (kept := program_cache.get(entry)) is not None:
            return replace(kept, slice=asked.planned.pod)
    try:
        made = _compile(asked)
    except RefusedError as error:
        if error.program is None:
            raise
        made = error.program
    program_cache.put(entries[-1], made)
    return made


def _facts(asked: StepCompilation) -> dict[str, Any]:
    """Return what decides the program of a source, but for how far it is compiled."""
    return {
        "slice": asked.planned.pod.machine,
        "mesh": dict(asked.mesh),
        "placement": asked.planned.placement.written,
        "versions": step_versions(trains=not isinstance(asked.planned, ServedStep)),
        "flags": [os.environ.get(variable, "") for variable in ENVIRONMENT],
        "options": dict(asked.options),
        "name": asked.planned.model.name,
    }


def _compile(asked: StepCompilation) -> Compiled:
    mesh = place_mesh(asked.planned.pod, asked.mesh, asked.planned.placement)
    space: dict[str, Any] = {"__name__": "step"}
    exec(builtins.compile(asked.step.source, STEP_FILE, "exec"), space)
    called = _training_call(space) if "train_step" in space else _server_call(space)
    return compile(
        called.step,
        *called.arguments,
        slice=asked.planned.pod,
        mesh=mesh,
        in_shardings=called.in_specs,
        out_shardings=called.out_specs,
        donate=called.donated,
        name=asked.planned.model.name,
        compiler_options=asked.options,
        cache=False,
        until=asked.until,
        time_limit=inf if asked.time_limit is None else asked.time_limit,
    )


@dataclass(frozen=True, slots=True)
class _StepCall:
    """A step, its arguments without values, its shardings, and the argument that it updates."""

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]
    donated: int


def _training_call(space: Mapping[str, Any]) -> _StepCall:
    """Return the training step among the names that an exported file defines."""
    import jax
    from jax.sharding import PartitionSpec

    state = jax.eval_shape(lambda: space["init"](jax.random.key(0)))
    specs = space["step_specs"]()
    given, given_specs = _batch(space)
    out = (specs, PartitionSpec())
    return _StepCall(space["train_step"], (state, *given), (specs, *given_specs), out, 0)


def _server_call(space: Mapping[str, Any]) -> _StepCall:
    """Return the step of a server among the names that an exported file defines."""
    out = (space["CACHE_SPECS"], space["INPUT_SPECS"]["last_tokens"])
    given, specs = space["step_arguments"](), space["argument_specs"]()
    return _StepCall(space["server_step"], given, specs, out, 1)


def _batch(space: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the arguments of a step after its state, without values, and their shardings.

    space: the names that the exported file defines.
    """
    from jax import ShapeDtypeStruct

    if "INPUTS" in space:
        batch = {name: ShapeDtypeStruct(*given) for name, given in space["INPUTS"].items()}
        return (batch,), (space["INPUT_SPECS"],)
    ids = ShapeDtypeStruct(space["BATCH_SHAPE"], "int32")
    targets = ShapeDtypeStruct(space.get("TARGETS_SHAPE", ids.shape), "int32")
    return (ids, targets), (space["BATCH_SPEC"], space.get("TARGETS_SPEC", space["BATCH_SPEC"]))
