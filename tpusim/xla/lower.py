"""From a compiled module to the program that the engine runs.

The program keeps the compiler's order (`walk.py`); its groups are laid on the torus first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpusim.hardware import Placement, Slice
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.phase import Phase
from tpusim.program import Barrier, Program
from tpusim.xla.attributes import op_name
from tpusim.xla.collectives import module_groups
from tpusim.xla.devices import Devices, check_count
from tpusim.xla.laying import Laid, laid
from tpusim.xla.memory import arguments, changes
from tpusim.xla.module import Module
from tpusim.xla.passes import is_training
from tpusim.xla.sends import sent_pairs
from tpusim.xla.walk import Walk
from tpusim.xla.work import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A compiled module as a program, and where its groups lie on the torus.

    notes: what was assumed. unknown: why operations are not understood, by name; they are costed by
    their bytes.
    """

    program: Program
    placement: Placement
    notes: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)


def lowered(
    module: Module, pod: Slice, devices: Devices, mesh: Mapping[str, int] | None = None,
    costs: Costs = "model",
) -> Lowered:  # fmt: skip
    """The program of a module that the `devices` of the pod run.

    mesh: the user's axes, whose places in order are the devices; they name the groups.
    costs: `compiler` takes its estimates where it made one, `model` the shapes inside fusions.
    Raises PlanError for a module of other devices than the pod's.
    """
    check_count(module.devices, pod)
    places = laid(module_groups(module), devices, pod, mesh, sent_pairs(module))
    names = (op_name(each) for where in module.computations.values() for each in where.instructions)
    walk = Walk(module, places, costs, is_training(names), changes(module), pod.chip.flops)
    body = walk.body(module.entry, Phase.FORWARD)
    program = Program(
        name=module.name,
        axes=places.axes,
        body=(*body, *_slices_meet(places)),
        resident=arguments(module),
    )
    notes = (*module.notes, *filter(None, (devices.note,)), *walk.notes)
    return Lowered(program=program, placement=places.placement, notes=notes, unknown=walk.unknown)


def _slices_meet(places: Laid) -> tuple[Barrier, ...]:
    """The slices wait for the slowest of them, once a step."""
    across = tuple(name for name, size in places.axes if name.startswith(DCN_PREFIX) and size > 1)
    return (Barrier(name="slices", phase=Phase.BACKWARD, axes=across),) if across else ()
