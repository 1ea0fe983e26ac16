"""The slice and the mesh of a measured system, from words such as `2d sharding`, `32 replicas`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import gcd, isqrt
from typing import Any, TypeAlias

from tpusim.base.errors import PlanError
from tpusim.hardware import Slice, default_shape, format_shape, legal_shapes, parse_shape
from tpusim.validation.systems.system_rows import SystemRow

BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments in f32."""

_TWO_D: Mapping[str, str] = {"act_embed": "tensor"}
"""Rules of GSPMD's finalized 2-D sharding: activations between layers are sharded by embed too."""


@dataclass(frozen=True, slots=True)
class SystemMesh:
    """How a system is divided.

    mesh: axis -> size, over devices.
    keys: other keys of the plan.
    notes: what was assumed.
    """

    mesh: Mapping[str, int]
    keys: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def slice_of_row(row: SystemRow) -> tuple[Slice, tuple[str, ...]]:
    """Return the slices of a system; a shape that is not given is the most cubic one."""
    if not row.chips:
        text = row.cells.get("num_chips", "")
        raise PlanError(f"num_chips is {text!r}; write the number of chips of the run")
    pods = 2 if re.search(r"\btwo (?:v\d\w* )?(?:pods|islands)", row.words) else 1
    chips = row.chips // pods
    if row.topology:
        shape = parse_shape(row.topology)
        if shape in legal_shapes(row.chip, chips):
            return Slice(row.chip, format_shape(shape), pods), ()
    shape = default_shape(row.chip, chips)
    return (
        Slice(row.chip, format_shape(shape), pods),
        (f"the topology is taken as {format_shape(shape)}",),
    )


def mesh_of_row(
    row: SystemRow, pod: Slice, batch: int, experts: int, parameters: int
) -> SystemMesh:
    """Return the mesh of a system. Raise PlanError for words that no rule reads.

    Where a row says nothing, a model that one device cannot hold is sharded in two dimensions.
    """
    devices, text = pod.devices, row.sharding
    if not text or text.startswith("not stated"):
        too_large = parameters * BYTES_PER_PARAMETER > pod.chip.device.hbm_usable_bytes
        return (_two_d if too_large else _data)((), devices, batch, experts)
    for pattern, make in _PATTERNS:
        if found := re.search(pattern, text):
            sizes = tuple(int(one) for one in found.groups())
            made = make(sizes, devices, batch, experts) if all(sizes) else None
            if made is not None:
                return made
    raise PlanError(f"mesh_sharding is {text[:80]!r}, which names no mesh that is known here")


_Make: TypeAlias = Callable[[tuple[int, ...], int, int, int], SystemMesh | None]
"""From the numbers in the words, devices, batch and experts; None if they do not go together."""


def _pair(sizes: tuple[int, ...], devices: int, batch: int, experts: int) -> SystemMesh | None:
    """Return a 2-D mesh of given sizes, if they are those of the devices."""
    first, second = sizes
    if first * second != devices:
        return None
    return SystemMesh({"fsdp": first, "tensor": second}, {"rules": dict(_TWO_D)})


def _two_d(sizes: tuple[int, ...], devices: int, batch: int, experts: int) -> SystemMesh:
    """Return the nearly square mesh, the smaller side for the batch, as Lingvo's systems have."""
    first = 1 << (isqrt(devices).bit_length() - 1)
    while devices % first:
        first //= 2
    note = f"the 2-D mesh is taken as {first} x {devices // first}"
    mesh = {"fsdp": first, "tensor": devices // first}
    return SystemMesh(mesh, {"rules": dict(_TWO_D)}, (note,))


def _model_by_data(sizes: tuple[int, ...], devices: int, batch: int, experts: int) -> SystemMesh:
    tensor, fsdp = sizes
    across = devices // (tensor * fsdp)
    mesh = {"fsdp": fsdp, "tensor": tensor} | ({"dcn_data": across} if across > 1 else {})
    return SystemMesh(mesh, {"rules": dict(_TWO_D)})


def _spatial(sizes: tuple[int, ...], devices: int, batch: int, experts: int) -> SystemMesh | None:
    replicas, parts = sizes
    if devices % (replicas * parts):
        return None
    return SystemMesh({"data": devices // parts, "spatial": parts}, {"rules": _height()})


def _height() -> dict[str, str]:
    return {"act_height": "spatial"}


def _stages(sizes: tuple[int, ...], devices: int, batch: int, experts: int) -> SystemMesh | None:
    stages, each = sizes
    if stages * each != devices:
        return None
    return SystemMesh({"stage": stages, "fsdp": each}, {"schedule": "gpipe"})


def _stages_by_data(
    sizes: tuple[int, ...], devices: int, batch: int, experts: int
) -> SystemMesh | None:
    stages, data = sizes
    return SystemMesh({"stage": stages, "data": data}) if stages * data == devices else None


def _experts(sizes: tuple[int, ...], devices: int, batch: int, experts: int) -> SystemMesh | None:
    """Return one axis for experts, which the batch has outside of them, and data for the rest."""
    if not experts:
        return None
    over = gcd(experts, devices)
    mesh = {"expert": over} | ({"data": devices // over} if over < devices else {})
    return SystemMesh(mesh, {"rules": {"embed": []}})


def _data(sizes: tuple[int, ...], devices: int, batch: int, experts: int) -> SystemMesh:
    """Return data parallelism; devices that the batch is too small for divide examples."""
    data = gcd(devices, batch)
    if data == devices:
        return SystemMesh({"data": devices})
    note = f"{devices // data} devices divide an example by its height, as the batch is {batch}"
    return SystemMesh({"data": data, "spatial": devices // data}, {"rules": _height()}, (note,))


def _fsdp(sizes: tuple[int, ...], devices: int, batch: int, experts: int) -> SystemMesh:
    return SystemMesh({"fsdp": devices})


_PATTERNS: tuple[tuple[str, _Make], ...] = (
    (r"x=(\d+),\s*y=(\d+)", _pair),
    (r"mesh \[(\d+),\s*(\d+)\]", _pair),
    (r"mesh \((\d+),\s*(\d+)\)", _pair),
    (r"(\d+)-way model x (\d+)-way fully", _model_by_data),
    (r"(\d+) replicas x (\d+)-way spatial", _spatial),
    (r"(\d+) stages x (\d+)", _stages),
    (r"(\d+)-stage\D*(\d+)-way data", _stages_by_data),
    (r"expert", _experts),
    (r"2-?d\b|gshard-like", _two_d),
    (r"fsdp|fully sharded", _fsdp),
    (r"data", _data),
)
"""Words of a sharding, and the mesh that they mean, tried in this order."""
