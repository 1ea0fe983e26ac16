"""From a compiled program to the program that the engine runs on a slice."""

from collections.abc import Mapping
from dataclasses import replace

from tpusim.base.errors import PlanError
from tpusim.compiler.compiled import Compiled
from tpusim.compiler.hlo.read import read_module
from tpusim.compiler.lower.collectives import module_groups
from tpusim.compiler.lower.infer_mesh import locate_devices
from tpusim.compiler.lower.lower_module import LoweredModule, lower_module
from tpusim.compiler.work.instruction_work import Costs, has_estimates
from tpusim.hardware import Slice, check_mesh

BEFORE_CODE = (
    "HLO of before code generation, such as *after_buffer_assignment.txt of a dump: it has no "
    "cycle estimates of the compiler, and its collectives run by their usual algorithms"
)


def lower_compiled(
    compiled: Compiled,
    pod: Slice | None = None,
    mesh: Mapping[str, int] | None = None,
    costs: Costs = "model",
    padding_taps: bool = True,
) -> LoweredModule:
    """Return the program of `compiled` on `pod`, by default the slice that it was compiled for.

    mesh: axes and sizes that name the groups, in place of the compiled program's own.
    costs: `compiler` takes its estimates where it made one, `model` the shapes in fusions.
    padding_taps: FLOPs count the taps of convolutions on padding.

    Raise PlanError for a slice that is missing or has other devices, a mesh that does not have
    them, or the compiler's costs of a program without its estimates; and FileError for data that is
    not HLO of a TPU, or without jaxlib, which reads it.
    """
    module = read_module(compiled.data, compiled.name)
    pod = pod or compiled.slice
    if pod is None:
        raise PlanError(
            f"{compiled.name} is for {module.devices} devices and does not say of which slice; "
            "give the one that it was compiled for, such as v4:8x16x16 (--slice v4:8x16x16)"
        )
    if mesh is not None:
        check_mesh(pod, mesh)
    mesh = mesh or dict(compiled.mesh or ())
    rows = compiled.devices or ()
    devices = locate_devices(module_groups(module), module.devices, pod, rows, mesh)
    generated = compiled.until == "code" and has_estimates(module)
    if costs == "compiler" and not generated:
        raise PlanError(
            f"{compiled.name} has no cycle estimates of the compiler, as it is of before code "
            "generation; give the program that was compiled to the end (`compiled.as_text()`), or "
            "write costs='model' (--costs model)"
        )
    lowered = lower_module(
        module, pod, devices, mesh, costs, noted=generated, padding_taps=padding_taps
    )
    if generated or compiled.until != "code":
        return lowered
    return replace(lowered, notes=(BEFORE_CODE, *lowered.notes))
