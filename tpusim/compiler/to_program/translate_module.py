"""From a compiled program to the program that the engine runs on a slice.

The groups of its collectives are placed on the torus first; the program then keeps the compiler's
order (`walk.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tpusim.base.errors import PlanError
from tpusim.base.phase import Phase
from tpusim.compiler.compiled import Compiled
from tpusim.compiler.hlo.attributes import op_name
from tpusim.compiler.hlo.module import HloModule
from tpusim.compiler.hlo.read import read_module
from tpusim.compiler.to_program.collectives import module_groups
from tpusim.compiler.to_program.device_ids import DeviceIds, check_device_count
from tpusim.compiler.to_program.heap import heap_bytes, output_bytes
from tpusim.compiler.to_program.infer_mesh import InferredMesh, infer_mesh, locate_devices
from tpusim.compiler.to_program.memory_profile import (
    OUTPUTS,
    TEMPORARIES,
    argument_allocs,
    buffer_changes,
)
from tpusim.compiler.to_program.op_metadata import is_training
from tpusim.compiler.to_program.sends import slice_pairs
from tpusim.compiler.to_program.walk import ModuleTranslation
from tpusim.compiler.work.instruction_work import Costs, has_estimates
from tpusim.hardware import Placement, Slice, check_mesh
from tpusim.program import Barrier, Program, Work

BEFORE_CODE = (
    "HLO of before code generation, such as *after_buffer_assignment.txt of a dump: it has no "
    "cycle estimates of the compiler, and its collectives run by their usual algorithms"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedModule:
    """A compiled module as a program, and the placement of its axes on the torus.

    pod: the slice that runs it.
    held: bytes of HBM that it needs by category: arguments, outputs with memory of their own, and
        the heap of its temporaries.
    notes: assumptions made.
    unknown: the reasons why operations are not understood, by name; these are costed by their
        bytes.
    estimated: the model's work and the compiler's cycles of operations that have both, by name.
    padding_flops: FLOPs of taps of convolutions on padding, on all devices, by the name of the
        operation; in its FLOPs if these were asked for.
    unnamed: axes of the program that are no axes of its mesh, named for what they are on.
    """

    program: Program
    pod: Slice
    placement: Placement
    held: Mapping[str, float]
    notes: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    estimated: Mapping[str, tuple[Work, int]] = field(default_factory=dict)
    padding_flops: Mapping[str, float] = field(default_factory=dict)
    unnamed: tuple[str, ...] = ()


def translate_compiled(
    compiled: Compiled,
    pod: Slice | None = None,
    mesh: Mapping[str, int] | None = None,
    costs: Costs = "model",
    padding_taps: bool = True,
) -> TranslatedModule:
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
    translated = translate_module(
        module, pod, devices, mesh, costs, noted=generated, padding_taps=padding_taps
    )
    if generated or compiled.until != "code":
        return translated
    return replace(translated, notes=(BEFORE_CODE, *translated.notes))


def translate_module(
    module: HloModule,
    pod: Slice,
    devices: DeviceIds,
    mesh: Mapping[str, int] | None = None,
    costs: Costs = "model",
    *,
    noted: bool = True,
    padding_taps: bool = True,
) -> TranslatedModule:
    """Return the program of a module that the `devices` of the pod run.

    mesh: the user's axes over the devices in row-major order; they name the groups.
    costs: `compiler` takes its estimates where it made one, `model` the shapes in fusions.
    noted: the algorithms of collectives are as noted; otherwise those that are usual.
    padding_taps: FLOPs count the taps of convolutions on padding.

    Raise PlanError for a module of other devices than the pod's.
    """
    check_device_count(module.devices, pod)
    inferred = infer_mesh(module_groups(module), devices, pod, mesh, slice_pairs(module))
    names = (op_name(each) for where in module.computations.values() for each in where.instructions)
    changes, resident = buffer_changes(module), argument_allocs(module)
    walk = ModuleTranslation(
        module,
        inferred,
        costs,
        is_training(names),
        changes,
        pod.chip.flops,
        None if noted else pod.chip.compiler_rules,
        padding_taps,
    )
    body = walk.body(module.entry, Phase.FORWARD)
    usual = () if noted else pod.chip.unsaid("collectives run by their usual algorithms")
    program = Program(
        name=module.name,
        axes=inferred.axes,
        body=(*body, *_slice_barrier(inferred)),
        resident=resident,
    )
    return TranslatedModule(
        program=program,
        pod=pod,
        placement=inferred.placement,
        held={
            "arguments": sum(float(alloc.bytes) for alloc in resident),
            OUTPUTS: output_bytes(changes),
            TEMPORARIES: float(heap_bytes(module, changes)),
        },
        notes=(*module.notes, *filter(None, (devices.note,)), *usual, *walk.notes),
        unknown=walk.unknown,
        estimated=walk.estimated,
        padding_flops=walk.padding_flops,
        unnamed=inferred.unnamed,
    )


def _slice_barrier(mesh: InferredMesh) -> tuple[Barrier, ...]:
    """Return the barrier at which the slices wait for the slowest of them, once per step."""
    across = mesh.axes_across(None)
    return (Barrier(name="slices", phase=Phase.BACKWARD, axes=across),) if across else ()
