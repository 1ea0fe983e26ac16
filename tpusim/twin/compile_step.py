"""Compilation of an exported step for the slice and the placement of its plan."""

from collections.abc import Mapping
from typing import Any

from tpusim.compiler import Compiled, compile, place_mesh
from tpusim.hardware import Placement, Slice
from tpusim.plan import Plan
from tpusim.twin.step_source import ExportedStep

STEP_FILE = "step.py"
"""The name of an exported file in the source lines of its program."""


def compile_step(
    step: ExportedStep,
    plan: Plan,
    pod: Slice,
    placement: Placement,
    *,
    name: str,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Return the program that the TPU compiler makes of an exported step.

    Raise CompileError as `ts.xla.compile` does.
    """
    axes = plan.active_axes or dict(plan.mesh)
    mesh = place_mesh(pod, axes, placement)
    import jax
    from jax.sharding import PartitionSpec

    space: dict[str, Any] = {"__name__": "step"}
    exec(compile_source(step.source), space)
    state = jax.eval_shape(lambda: space["init"](jax.random.key(0)))
    specs = space["step_specs"]()
    batch = jax.ShapeDtypeStruct(space["BATCH_SHAPE"], "int32")
    spec = space["BATCH_SPEC"]
    return compile(
        space["train_step"],
        state,
        batch,
        batch,
        slice=pod,
        mesh=mesh,
        in_shardings=(specs, spec, spec),
        out_shardings=(specs, PartitionSpec()),
        donate=0,
        name=name,
        compiler_options=options,
    )


def compile_source(source: str) -> Any:
    """Return the code of a file."""
    import builtins

    return builtins.compile(source, STEP_FILE, "exec")
