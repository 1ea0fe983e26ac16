"""Exported programs as functions of JAX that `compile` takes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpusim.base.errors import CompileError
from tpusim.compiler.exported import donated_leaves, mesh_of, shardings_of
from tpusim.compiler.gspmd import tiled_sizes
from tpusim.compiler.topologies import some_mesh
from tpusim.hardware import Slice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class ExportedCall:
    """An exported program as a function of JAX, which runs no code of the user's.

    Named keyword arguments are its last argument, a dict.

    inputs: its arguments as `jax.ShapeDtypeStruct`s, with the shardings that it was exported with.
    out_shardings: pytree of shardings of its results, where None leaves them to the compiler.
    donate: numbers of the arguments that it was exported with as donated.
    mesh: the `jax.sharding.Mesh` of the shardings.
    keywords: True if it has keyword arguments.
    """

    inputs: tuple[Any, ...]
    out_shardings: Any
    donate: tuple[int, ...]
    mesh: Any
    keywords: bool
    _exported: Any = field(repr=False)

    @property
    def __name__(self) -> str:
        return str(self._exported.fun_name)

    def __call__(self, *inputs: Any) -> Any:
        """Return the program's results."""
        if self.keywords:
            return self._exported.call(*inputs[:-1], **inputs[-1])
        return self._exported.call(*inputs)


def check_exported(exported: Any, devices: int) -> None:
    """Raise CompileError unless a program was exported for TPUs, and for a slice of so many."""
    name, count = exported.fun_name, exported.nr_devices
    if "tpu" not in exported.platforms:
        raise CompileError(
            f"{name} was exported for {', '.join(exported.platforms)}; export it with "
            "jax.export.export(fn, platforms=['tpu'])"
        )
    if count not in (1, devices):
        raise CompileError(
            f"{name} was exported for {count} devices, and the slice has {devices}; give a slice "
            f"of {count}, or export it for {devices}"
        )


def check_axes(exported: Any, axes: Mapping[str, int]) -> None:
    """Raise CompileError for a program that was exported over another mesh than these axes."""
    own = mesh_of(exported)
    if own is not None and list(own.items()) != list(axes.items()):
        raise CompileError(
            f"{exported.fun_name} was exported over the mesh {_spell(own)}, and the mesh is "
            f"{_spell(axes)}; leave the mesh out, or export the program over this one"
        )


def check_named(exported: Any, pod: Slice) -> None:
    """Raise CompileError for a program of several devices whose shardings name no axes."""
    if exported.nr_devices == 1 or mesh_of(exported) is not None:
        return
    tiles = (*exported.in_shardings_hlo, *exported.out_shardings_hlo)
    sizes = tiled_sizes(tiles, exported.nr_devices)
    raise CompileError(
        f"{exported.fun_name} is for {exported.nr_devices} devices, and its shardings name no axes "
        f"of a mesh, which says where the devices are; write {some_mesh(pod, sizes)}"
    )


def exported_call(exported: Any, grid: Any) -> ExportedCall:
    """Return an exported program as a function over a mesh.

    grid: the `jax.sharding.Mesh` to compile for.

    Raise CompileError if its arguments have free dimensions, or dtypes that JAX is set not to have.
    """
    import jax

    for aval in exported.in_avals:
        if jax.dtypes.canonicalize_dtype(aval.dtype) != aval.dtype:
            raise CompileError(
                f"{exported.fun_name} has an argument of {aval.dtype}, which JAX has only after "
                "jax.config.update('jax_enable_x64', True), or with JAX_ENABLE_X64=1"
            )
    placed_in, placed_out = shardings_of(exported, grid)
    leaves = [
        jax.ShapeDtypeStruct(_shape(aval, exported.fun_name), aval.dtype, sharding=sharding)
        for aval, sharding in zip(exported.in_avals, placed_in, strict=True)
    ]
    plain, keywords = jax.tree.unflatten(exported.in_tree, leaves)
    inputs = (*plain, keywords) if keywords else tuple(plain)
    return ExportedCall(
        inputs=inputs,
        out_shardings=jax.tree.unflatten(exported.out_tree, placed_out),
        donate=tuple(_donated(inputs, donated_leaves(exported))),
        mesh=grid,
        keywords=bool(keywords),
        _exported=exported,
    )


def _donated(inputs: tuple[Any, ...], donors: frozenset[int]) -> Iterator[int]:
    """Yield the arguments that have donated leaves: `jax.jit` donates whole arguments."""
    import jax

    start = 0
    for number, each in enumerate(inputs):
        end = start + len(jax.tree.leaves(each))
        if donors & set(range(start, end)):
            yield number
        start = end


def _shape(aval: Any, name: str) -> tuple[int, ...]:
    if not all(isinstance(size, int) for size in aval.shape):
        raise CompileError(
            f"{name} was exported with the shape ({', '.join(map(str, aval.shape))}), which has "
            "free dimensions; export it with the shapes that it runs with"
        )
    return tuple(aval.shape)


def _spell(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in axes.items())
