"""Exported programs as functions of JAX that `compile` takes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import CompileError
from tpusim.compiler.exported import donated_leaves, mesh_of, shardings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedCall:
    """An exported program as `jax.jit` takes a function.

    fn: calls it; named keyword arguments are its last argument, a dict.
    inputs: its arguments as `jax.ShapeDtypeStruct`s, with the shardings that it was exported with.
    out_shardings: pytree of shardings of its results, where None leaves them to the compiler.
    donate: numbers of the arguments that it was exported with as donated.
    mesh: the `jax.sharding.Mesh` of the shardings.
    """

    fn: Callable[..., Any]
    inputs: tuple[Any, ...]
    out_shardings: Any
    donate: tuple[int, ...]
    mesh: Any


def check_exported(exported: Any, axes: Mapping[str, int] | None, devices: int) -> None:
    """Raise CompileError unless a program was exported for TPUs, and for this mesh.

    axes: sizes of the mesh by name; None for the program's own.
    devices: of the slice.
    """
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
    own = mesh_of(exported)
    if own is not None and axes is not None and list(own.items()) != list(axes.items()):
        raise CompileError(
            f"{name} was exported over the mesh {_spell(own)}, and the mesh is {_spell(axes)}; "
            "leave the mesh out, or export the program over this one"
        )


def exported_call(exported: Any, grid: Any) -> ExportedCall:
    """Return an exported program as a function over a mesh.

    grid: the `jax.sharding.Mesh` to compile for, which `check_exported` accepts.

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

    def call(*given: Any) -> Any:
        named = given[-1] if keywords else {}
        return exported.call(*(given[:-1] if keywords else given), **named)

    call.__name__ = exported.fun_name
    return ExportedCall(
        fn=call,
        inputs=inputs,
        out_shardings=jax.tree.unflatten(exported.out_tree, placed_out),
        donate=tuple(_donated(inputs, donated_leaves(exported))),
        mesh=grid,
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
