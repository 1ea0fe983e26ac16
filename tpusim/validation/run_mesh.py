"""The slice and the device mesh of a measured run.

A source may count chips, devices or cores: a v2, v3 or 7x chip is two JAX devices, one TensorCore
each, and papers of the time count cores. The numbers usually show which; a note records the choice.
"""

import re
from collections.abc import Iterator, Mapping
from math import prod

from tpusim.base.errors import PlanError, nearest
from tpusim.hardware import DCN_PREFIX, Slice, load_chip
from tpusim.validation.measured_runs import MeasuredRun

MESH_UNITS = ("chip", "device", "core")
BATCH_AXES = ("fsdp", "data", "fsdp_transpose", "dcn_data", "dcn_fsdp")
"""Axes that shard the batch: those within a slice first, the most common one leading."""


def slice_of(run: MeasuredRun) -> tuple[Slice, tuple[str, ...]]:
    """Return the slices of a run, and notes.

    The topology counts chips; one dimension more than the torus has is the devices of a chip
    (`16x16x2` on v3). `num_chips` is checked, and may count devices.
    """
    chip = load_chip(run.chip)
    shape, _, last = run.topology.rpartition("x")
    with_devices = last == str(chip.devices) and shape.count("x") + 1 == chip.ici_dimensions
    pod = Slice(chip, shape if with_devices else run.topology, run.num_slices)
    if run.num_chips not in (0, pod.chips, pod.devices):
        devices = f" chips ({pod.devices} devices)" if chip.devices > 1 else ""
        raise PlanError(
            f"num_chips is {run.num_chips}, but {pod} has {pod.chips}{devices}; correct one of them"
        )
    return pod, tuple(_slice_notes(run, pod, with_devices))


def _slice_notes(run: MeasuredRun, pod: Slice, with_devices: bool) -> Iterator[str]:
    if with_devices:
        yield f"the last 2 of the topology taken as the devices of a {run.chip} chip"
    if run.num_chips not in (0, pod.chips):
        yield f"num_chips taken as devices, two per {run.chip} chip"


def parse_mesh(run: MeasuredRun) -> dict[str, int]:
    """Return the axes of the mesh column with their sizes."""
    mesh: dict[str, int] = {}
    for part in filter(None, run.mesh.split(";")):
        found = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]{1,9})\s*", part)
        if not found or found[1] in mesh:
            raise PlanError(f"the mesh is {run.mesh!r}; write each axis once, as fsdp=64;tensor=4")
        mesh[found[1]] = int(found[2])
    return mesh


def device_mesh(run: MeasuredRun, pod: Slice) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the mesh over devices, and notes.

    A mesh whose size is the number of devices counts devices, whatever `mesh_counts` says. One
    whose size is the number of chips, on chips of two devices, counts chips unless `mesh_counts`
    says otherwise; the two devices of a chip then split its batch or, if the batch does not divide,
    its heads and MLP.
    """
    mesh, unit = parse_mesh(run), _mesh_unit(run)
    size = prod(size for axis, size in mesh.items() if not axis.startswith(DCN_PREFIX))
    per_chip, devices = pod.chip.devices, pod.devices // pod.num_slices
    if per_chip == 1 or size * per_chip != devices or unit in ("device", "core"):
        wrong = unit == "chip" and per_chip > 1 and size == devices
        return mesh, ("mesh_counts is chip, but the mesh has the devices",) if wrong else ()
    axis = _axis_within_chip(run, mesh, per_chip)
    wide = {**mesh, axis: mesh.get(axis, 1) * per_chip}
    return wide, (f"the mesh counts chips of {per_chip} devices: {axis} taken as {wide[axis]}",)


def _mesh_unit(run: MeasuredRun) -> str:
    """Return the unit that `mesh_counts` names, one of MESH_UNITS, or "" if it is empty."""
    unit = run.mesh_counts.lower().strip().removesuffix("s")
    if unit and unit not in MESH_UNITS:
        raise PlanError(f"mesh_counts is {run.mesh_counts!r}; {nearest(unit, MESH_UNITS)}")
    return unit


def _axis_within_chip(run: MeasuredRun, mesh: Mapping[str, int], per_chip: int) -> str:
    """Return the axis over which the devices of a chip split its work."""
    shards = prod(mesh.get(axis, 1) for axis in BATCH_AXES)
    if run.global_batch % (shards * per_chip):
        return "tensor"
    return next((axis for axis in BATCH_AXES[:3] if mesh.get(axis, 1) > 1), "fsdp")
