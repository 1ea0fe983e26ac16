"""The slice and the mesh of a run, where its source may have counted chips, devices or cores.

A v2, v3 or 7x chip is two JAX devices, a TensorCore each, and papers of the time count cores. The
numbers mostly say which is meant; a note says what was taken for what.
"""

from collections.abc import Iterator, Mapping
from math import prod

from tpusim.errors import PlanError, nearest
from tpusim.hardware import Slice, load_chip
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.validation.measured import Measured

COUNTS = ("chip", "device", "core")
BATCH_AXES = ("fsdp", "data", "fsdp_transpose", "dcn_data", "dcn_fsdp")
"""Axes that shard the batch: those within a slice first, the usual one before the others."""


def pod_of(run: Measured) -> tuple[Slice, tuple[str, ...]]:
    """The slices of a run, and notes.

    The topology counts chips; a last dimension beside those of the torus is a chip's devices
    (`16x16x2` on v3). `num_chips` is checked, and may count devices.
    """
    chip = load_chip(run.chip)
    shape, _, last = run.topology.rpartition("x")
    with_devices = last == str(chip.devices) and shape.count("x") + 1 == chip.ici_dimensions
    pod = Slice(chip, shape if with_devices else run.topology, run.num_slices)
    if run.num_chips not in (0, pod.chips, pod.devices):
        raise PlanError(
            f"num_chips is {run.num_chips}, but {pod} has {_in_words(pod)}; correct one of them"
        )
    return pod, tuple(_pod_notes(run, pod, with_devices))


def _in_words(pod: Slice) -> str:
    each = f" chips ({pod.devices} devices)" if pod.chip.devices > 1 else ""
    return f"{pod.chips}{each}"


def _pod_notes(run: Measured, pod: Slice, with_devices: bool) -> Iterator[str]:
    if with_devices:
        yield f"the last 2 of the topology taken as the devices of a {run.chip} chip"
    if run.num_chips not in (0, pod.chips):
        yield f"num_chips taken as devices, two a {run.chip} chip"


def mesh_in_devices(
    run: Measured, mesh: Mapping[str, int], pod: Slice
) -> tuple[dict[str, int], tuple[str, ...]]:
    """The mesh over devices, and notes.

    A mesh of as many places as there are devices counts devices, whatever `mesh_counts` says. One
    of as many places as chips, on chips of two devices, counts chips, unless `mesh_counts` says
    otherwise: the two devices of a chip then share out its batch, or, where the batch does not
    divide, its heads and MLP.
    """
    counts = _counts(run)
    places = prod(size for axis, size in mesh.items() if not axis.startswith(DCN_PREFIX))
    each, devices = pod.chip.devices, pod.devices // pod.num_slices
    if each == 1 or places * each != devices or counts in ("device", "core"):
        wrong = counts == "chip" and each > 1 and places == devices
        return dict(mesh), ("mesh_counts is chip, but the mesh has the devices",) if wrong else ()
    axis = _shared(run, mesh, each)
    wide = {**mesh, axis: mesh.get(axis, 1) * each}
    return wide, (f"the mesh counts chips of {each} devices: {axis} taken as {wide[axis]}",)


def _counts(run: Measured) -> str:
    """What `mesh_counts` says: one of COUNTS, or nothing."""
    said = run.mesh_counts.lower().strip().removesuffix("s")
    if said and said not in COUNTS:
        raise PlanError(f"mesh_counts is {run.mesh_counts!r}; {nearest(said, COUNTS)}")
    return said


def _shared(run: Measured, mesh: Mapping[str, int], each: int) -> str:
    """The axis over which the devices of a chip divide its work."""
    shards = prod(mesh.get(axis, 1) for axis in BATCH_AXES)
    if run.global_batch % (shards * each):
        return "tensor"
    return next((axis for axis in BATCH_AXES[:3] if mesh.get(axis, 1) > 1), "fsdp")
