"""Devices of slices that need not exist, as libtpu describes them to JAX."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

from tpusim.base.errors import CompileError
from tpusim.compiler.compiled import TESTED, DevicePosition
from tpusim.hardware import DCN_PREFIX, DIE, Placement, Slice, check_mesh, parse_slice

INSTALL = "pip install 'tpusim[xla]'"
_LIBTPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
}
"""Variables that libtpu needs when it loads without a TPU: one process at a time may load it unless
the first allows others, and it complains about the others."""


def versions() -> dict[str, str]:
    """Return the installed versions of all that compiles. Raise CompileError if one is missing."""
    found = {}
    for name in TESTED:
        try:
            found[name] = version(name)
        except PackageNotFoundError as error:
            raise CompileError(
                f"compiling needs jax with the TPU compiler, and {name} is not installed; "
                f"{INSTALL} (about 1.5 GB, on Linux; no TPU is needed)"
            ) from error
    return found


def as_slice(pod: Slice | str) -> Slice:
    """Return the slice of a slice or its name. Raise CompileError for anything else."""
    if isinstance(pod, Slice):
        return pod
    if not isinstance(pod, str):
        raise CompileError(f"slice is {pod!r}; write a ts.Slice or a name such as 'v4:8x16x16'")
    return parse_slice(pod)


@lru_cache(maxsize=64)
def devices_of(pod: Slice) -> tuple[Any, ...]:
    """Return JAX's devices of a slice in libtpu's order, the same objects on every call.

    So a mesh that is made twice is one mesh, and shardings over it are of the program's devices.
    Raise CompileError for a slice that libtpu does not support.
    """
    from jax.experimental import topologies

    rules, topology = pod.chip.compiler_rules, pod.topology
    bounds = (min(2, topology.dims[0]), min(2, topology.dims[1]), 1)
    options: dict[str, Any] = {"chips_per_host_bounds": bounds}
    if rules.libtpu_config:
        options["chip_config_name"] = rules.libtpu_config
    if topology.twisted:
        options["wrap"] = (True, True, True)
    if pod.num_slices > 1:
        options["num_slices"] = pod.num_slices
    name = f"{rules.libtpu_name or pod.chip.generation}:{topology}"
    try:
        with _environment():
            made = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise CompileError(
            f"the TPU compiler cannot describe {pod}: {said}; {INSTALL} installs the version that "
            "is tested"
        ) from error
    devices = tuple(made.devices)
    if len(devices) != pod.devices:
        raise CompileError(f"libtpu says that {pod} has {len(devices)} devices, not {pod.devices}")
    return devices


def make_mesh(pod: Slice | str, axes: Mapping[str, int]) -> Any:
    """Return a `jax.sharding.Mesh` of these axes over the devices of a slice that need not exist.

    pod: a slice, or its name such as `v4:8x16x16`.
    axes: sizes by name, as in `ts.Plan`; those that begin with `dcn_` run across slices.

    JAX's own `mesh_utils` places them on the torus. Raise CompileError for axes that do not fill
    the slice.
    """
    pod = as_slice(pod)
    check_mesh(pod, axes, CompileError)
    versions()
    from jax.experimental import mesh_utils
    from jax.sharding import Mesh

    devices = devices_of(pod)
    outer = [size if name.startswith(DCN_PREFIX) else 1 for name, size in axes.items()]
    inner = [1 if name.startswith(DCN_PREFIX) else size for name, size in axes.items()]
    try:
        if pod.num_slices > 1:
            grid = mesh_utils.create_hybrid_device_mesh(
                inner, outer, devices, allow_split_physical_axes=True
            )
        else:
            grid = mesh_utils.create_device_mesh(inner, devices, allow_split_physical_axes=True)
    except (ValueError, NotImplementedError, AssertionError) as error:
        raise CompileError(
            f"JAX cannot place the mesh {_shown(axes)} on {pod}: {str(error).splitlines()[0]}; "
            "give a jax.sharding.Mesh of your own over its devices"
        ) from error
    return Mesh(grid, tuple(axes))


def some_mesh(pod: Slice, sizes: Sequence[int] = ()) -> str:
    """Return a mesh that fits a slice, as a user writes it.

    sizes: of its axes, where they multiply to the devices of one slice.
    """
    one = pod.devices // pod.num_slices
    sizes = sizes if sizes and prod(sizes) == one else (one,)
    names = ["data", "model", *(f"axis_{at}" for at in range(2, len(sizes)))]
    across = {f"{DCN_PREFIX}data": pod.num_slices} if pod.num_slices > 1 else {}
    axes = across | dict(zip(names, sizes, strict=False))
    return f"mesh={axes} (--mesh {','.join(f'{axis}={size}' for axis, size in axes.items())})"


def place_mesh(pod: Slice, axes: Mapping[str, int], placement: Placement) -> Any:
    """Return a `jax.sharding.Mesh` of these axes where a placement has them on the torus.

    Raise CompileError as `make_mesh` does.
    """
    check_mesh(pod, axes, CompileError)
    versions()
    import numpy as np
    from jax.sharding import Mesh

    devices = {device_position(device): device for device in devices_of(pod)}
    grid = np.empty(tuple(axes.values()), dtype=object)
    for index in np.ndindex(grid.shape):
        grid[index] = devices[_position(dict(zip(axes, index, strict=True)), axes, placement)]
    return Mesh(grid, tuple(axes))


def _position(
    index: Mapping[str, int], axes: Mapping[str, int], placement: Placement
) -> DevicePosition:
    """Return the position of one index of the mesh: each axis counts through its spans."""
    coordinates = {0: 0, 1: 0, 2: 0, DIE: 0}
    slice_index = 0
    for axis, count in index.items():
        if axis.startswith(DCN_PREFIX):
            slice_index = slice_index * axes[axis] + count
            continue
        left = count
        for span in reversed(placement.spans(axis)):
            left, digit = divmod(left, span.size)
            coordinates[span.dim] += digit * span.stride
    x, y, z, core = (coordinates[dim] for dim in (0, 1, 2, DIE))
    return slice_index, x, y, z, core


def device_position(device: Any) -> DevicePosition:
    """Return the position of a device: slice, x, y, z, core."""
    x, y, z = device.coords
    return getattr(device, "slice_index", None) or 0, x, y, z, device.core_on_chip


def _shown(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in axes.items()) or "without axes"


@contextmanager
def _environment() -> Iterator[None]:
    """Set the variables that libtpu needs, unless a TPU is there or the user has set them."""
    there = any(Path("/dev").glob("accel*")) or Path("/dev/vfio").exists()
    given = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"} if there else _LIBTPU_ENVIRONMENT
    mine = [name for name in given if name not in os.environ]
    os.environ.update({name: given[name] for name in mine})
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)
