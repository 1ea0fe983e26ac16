"""From a compiled module to the program that the engine runs.

The groups of its collectives are placed on the torus first; the program then keeps the compiler's
order (`walk.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpusim.base.phase import Phase
from tpusim.compiler.hlo.attributes import op_name
from tpusim.compiler.hlo.module import HloModule
from tpusim.compiler.lower.collectives import module_groups
from tpusim.compiler.lower.device_ids import DeviceIds, check_device_count
from tpusim.compiler.lower.heap import heap_bytes, output_bytes
from tpusim.compiler.lower.infer_mesh import InferredMesh, infer_mesh
from tpusim.compiler.lower.memory_profile import (
    OUTPUTS,
    TEMPORARIES,
    argument_allocs,
    buffer_changes,
)
from tpusim.compiler.lower.op_metadata import is_training
from tpusim.compiler.lower.sends import slice_pairs
from tpusim.compiler.lower.walk import ModuleLowering
from tpusim.compiler.work.instruction_work import Costs
from tpusim.hardware import DCN_PREFIX, Placement, Slice
from tpusim.program import Barrier, Program, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredModule:
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
    """

    program: Program
    pod: Slice
    placement: Placement
    held: Mapping[str, float]
    notes: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    estimated: Mapping[str, tuple[Work, int]] = field(default_factory=dict)
    padding_flops: Mapping[str, float] = field(default_factory=dict)


def lower_module(
    module: HloModule,
    pod: Slice,
    devices: DeviceIds,
    mesh: Mapping[str, int] | None = None,
    costs: Costs = "model",
    *,
    noted: bool = True,
    padding_taps: bool = True,
) -> LoweredModule:
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
    walk = ModuleLowering(
        module,
        inferred,
        costs,
        is_training(names),
        changes,
        pod.chip.flops,
        "" if noted else pod.chip.generation,
        padding_taps,
    )
    body = walk.body(module.entry, Phase.FORWARD)
    program = Program(
        name=module.name,
        axes=inferred.axes,
        body=(*body, *_slice_barrier(inferred)),
        resident=resident,
    )
    return LoweredModule(
        program=program,
        pod=pod,
        placement=inferred.placement,
        held={
            "arguments": sum(float(alloc.bytes) for alloc in resident),
            OUTPUTS: output_bytes(changes),
            TEMPORARIES: float(heap_bytes(module, changes)),
        },
        notes=(*module.notes, *filter(None, (devices.note,)), *walk.notes),
        unknown=walk.unknown,
        estimated=walk.estimated,
        padding_flops=walk.padding_flops,
    )


def _slice_barrier(mesh: InferredMesh) -> tuple[Barrier, ...]:
    """Return the barrier at which the slices wait for the slowest of them, once per step."""
    across = tuple(name for name, size in mesh.axes if name.startswith(DCN_PREFIX) and size > 1)
    return (Barrier(name="slices", phase=Phase.BACKWARD, axes=across),) if across else ()
