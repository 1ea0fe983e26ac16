"""A user's JAX function, compiled by the TPU compiler for a slice that is not there."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from tpusim.errors import CompileError
from tpusim.hardware import Slice
from tpusim.xla import cache as kept
from tpusim.xla.compiled import Compiled, check_flops
from tpusim.xla.jaxpr import count_flops
from tpusim.xla.options import ENVIRONMENT, Option, check_options, flags_of, own_options
from tpusim.xla.progress import progress
from tpusim.xla.refusals import misfit, refusal
from tpusim.xla.report import memory_report
from tpusim.xla.topology import INSTALL, as_slice, devices_of, make_mesh, place, versions


def compile(
    fn: Callable[..., Any],
    *args: Any,
    slice: Slice | str,
    mesh: Mapping[str, int] | Any = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate: int | Sequence[int] = (),
    static: int | Sequence[int] = (),
    name: str = "",
    model_flops: float | None = None,
    without_remat: Callable[..., Any] | None = None,
    compiler_options: Mapping[str, Option] | None = None,
    cache: bool = True,
) -> Compiled:
    """What the TPU compiler makes of `fn(*args)` on a slice. No TPU is needed, and none is used.

    fn: a function as `jax.jit` takes it, or one that is jitted already; then its own shardings and
        donation hold. In it, a bare `PartitionSpec` is over the axes of `mesh`.
    args: arrays, `jax.ShapeDtypeStruct`s (nothing is allocated for them), or pytrees of them; their
        own shardings hold where `in_shardings` says nothing.
    slice: a `ts.Slice`, or its name, such as `v4:8x16x16` or `v5e:16x16 x 2`.
    mesh: sizes of axes by name, as in `ts.Plan`, those across slices beginning with `dcn_`; or what
        `ts.xla.make_mesh` made. On a slice of one device it may be left out.
    in_shardings, out_shardings: pytrees (or prefixes of them) of `PartitionSpec`s; None is whatever
        the compiler finds best.
    donate, static: numbers of the arguments that are given away, and of those that are constants.
    model_flops: FLOPs of a step on all devices without recomputation; or without_remat: the same
        function without `jax.checkpoint`, of which they are counted. With neither they are counted
        of `fn`, without what its `jax.checkpoint`s recompute.
    compiler_options: flags of XLA and libtpu for this program alone, as `jax.jit` takes them:
        `{"xla_tpu_scoped_vmem_limit_kib": 98304}`. Those of `LIBTPU_INIT_ARGS` hold too, and those
        that a jitted `fn` has.
    cache: whether a program that was compiled before is read from disk (`tpusim.xla.cache`).

    Raises CompileError: jax or libtpu is missing, the mesh does not fill the slice, a sharding does
    not fit its argument, the compiler does not know an option, or the program does not fit into
    HBM. Errors of `fn` itself pass through.
    """
    for role, given in (("fn", fn), ("without_remat", without_remat or fn)):
        if not callable(given):
            raise CompileError(
                f"{role} is {given!r}; give a function of arrays, as jax.jit takes it"
            )
    found = versions()
    if model_flops is not None:
        check_flops(model_flops)
    chosen = check_options(compiler_options or {})
    pod = as_slice(slice)
    import jax

    grid = _mesh(pod, mesh)
    constant = {} if static == () else {"static_argnums": static}
    options = {
        **constant,
        **({} if donate == () else {"donate_argnums": donate}),
        **({} if in_shardings is None else {"in_shardings": in_shardings}),
        **({} if out_shardings is None else {"out_shardings": out_shardings}),
    }
    abstract = _abstract(args, static, grid)
    name = name or getattr(fn, "__name__", "") or type(fn).__name__
    with jax.set_mesh(grid), misfit(name):
        jitted = fn if hasattr(fn, "trace") and not options else jax.jit(fn, **options)
        traced = jitted.trace(*abstract)
        lowered = traced.lower()
        plain = jax.jit(without_remat, **constant).trace(*abstract) if without_remat else None
    made = _made(lowered, name, pod, grid, found, {**own_options(traced), **chosen}, cache)
    if model_flops is None:
        model_flops = count_flops((plain or traced).jaxpr)
    return replace(made, name=name, slice=pod, model_flops=model_flops)


def _made(
    lowered: Any, name: str, pod: Slice, grid: Any, found: Mapping[str, str],
    options: Mapping[str, Option], cache: bool,
) -> Compiled:  # fmt: skip
    """The program from the cache, or compiled and kept there. found: versions of what compiles."""
    places = tuple(place(device) for device in grid.devices.flat)
    facts = {
        "slice": str(pod),
        "devices": places,
        "versions": found,
        "mesh": dict(grid.shape),
        "flags": [os.environ.get(variable, "") for variable in ENVIRONMENT],
        **({"options": options} if options else {}),
    }
    entry = kept.key(_program(lowered), facts) if cache else ""
    made = kept.get(entry) if cache else None
    if made is not None:
        return made
    made = replace(
        _compile(lowered, name, pod, options),
        devices=places,
        mesh=tuple((str(axis), int(size)) for axis, size in grid.shape.items()),
        versions=tuple(found.items()),
        flags=flags_of(options),
    )
    if cache:
        kept.put(entry, made)
    return made


def _compile(lowered: Any, name: str, pod: Slice, options: Mapping[str, Option]) -> Compiled:
    """Run the compiler; its report of memory goes through a folder that is gone afterwards."""
    start = monotonic()
    with TemporaryDirectory(prefix="tpusim-") as dump:
        given = {**options, "xla_dump_to": dump, "xla_dump_hlo_as_text": True}
        what = f"compiling {name} for {pod} ({pod.devices} devices)"
        with refusal(name, pod), progress(what):
            executable = lowered.compile(compiler_options=given)
        memory = memory_report(Path(dump), executable.memory_analysis())
    seconds = monotonic() - start
    try:
        text = executable.as_text()
    except Exception as error:
        raise CompileError(
            f"{name} was compiled for {pod}, but this version of libtpu cannot print the program "
            f"({str(error).splitlines()[0][:200]}); {INSTALL} installs one that can"
        ) from error
    return Compiled(name=name, data=text.encode(), memory=memory, seconds=seconds)


def _program(lowered: Any) -> bytes:
    """The program before compilation: StableHLO, with its shardings and the user's lines of code.

    The lines that lead to `compile` are left out: it is the same program wherever it is compiled.
    """
    text: str = lowered.as_text(debug_info=True)
    for file, line in _callers():
        text = re.sub(rf'"{re.escape(file)}":{line}:\d+ to [\d:]+', '""', text)
    return text.encode()


def _callers() -> set[tuple[str, int]]:
    """File and line of all that is being called now."""
    found, frame = set(), sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        found.add((frame.f_code.co_filename, frame.f_lineno))
    return found


def _mesh(pod: Slice, mesh: Any) -> Any:
    """The mesh that is meant, of jax."""
    from jax.sharding import Mesh

    if mesh is None and pod.devices == 1:
        mesh = {"one": 1}
    if mesh is None:
        raise CompileError(
            f"{pod} has {pod.devices} devices and no mesh is given; write mesh={{'data': "
            f"{pod.devices}}} or the axes that your shardings name"
        )
    if not isinstance(mesh, Mesh):
        return make_mesh(pod, mesh)
    if set(map(_known, mesh.devices.flat)) != set(map(_known, devices_of(pod))):
        axes = dict(mesh.shape) if mesh.size == pod.devices else {"data": pod.devices}
        raise CompileError(
            f"the mesh has other devices than {pod}; make it with ts.xla.make_mesh({str(pod)!r}, "
            f"{axes})"
        )
    return mesh


def _known(device: Any) -> tuple[Any, ...]:
    """What tells a device of one slice from that of another, of another chip too."""
    return device.id, device.device_kind, place(device) if hasattr(device, "coords") else None


def _abstract(args: Sequence[Any], static: int | Sequence[int], grid: Any) -> list[Any]:
    """The arguments without values; shardings that are named for axes are over the mesh."""
    import jax
    from jax.sharding import NamedSharding

    constant = {static} if isinstance(static, int) else set(static)

    def one(leaf: Any) -> Any:
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            return leaf
        given = getattr(leaf, "sharding", None)
        kind = getattr(given, "memory_kind", None)
        sharding = None
        if isinstance(given, NamedSharding) and set(given.mesh.axis_names) <= set(grid.shape):
            sharding = NamedSharding(grid, given.spec, memory_kind=_kind(kind))
        weak = bool(getattr(leaf, "weak_type", False))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)

    return [arg if n in constant else jax.tree.map(one, arg) for n, arg in enumerate(args)]


def _kind(kind: str | None) -> str | None:
    """A memory that a TPU has: those of arrays on the host's CPU are called otherwise."""
    return kind if kind in ("device", "pinned_host", "unpinned_host") else None
