"""Compilation of a JAX function by the TPU compiler for a slice that need not exist."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic
from typing import Any

from tpusim.base.errors import CompileError
from tpusim.base.plain_text import plain
from tpusim.compiler import cache as program_cache
from tpusim.compiler.compile_apart import check_time_limit, compile_apart
from tpusim.compiler.compile_request import CalledBackError
from tpusim.compiler.compiled import Compiled, Until, check_flops, check_until
from tpusim.compiler.exported import ExportedProgram, is_program, mesh_of, read_program
from tpusim.compiler.exported_call import (
    ExportedCall,
    check_axes,
    check_exported,
    check_named,
    exported_call,
)
from tpusim.compiler.flops import lowered_flops
from tpusim.compiler.memory_report import memory_report
from tpusim.compiler.options import (
    ENVIRONMENT,
    Option,
    check_options,
    flags_of,
    own_options,
    with_dump,
)
from tpusim.compiler.refusals import explain_misfits, explain_program_errors, explain_refusals
from tpusim.compiler.tf import TensorFlowStep
from tpusim.compiler.topologies import (
    INSTALL,
    as_slice,
    device_position,
    devices_of,
    make_mesh,
    some_mesh,
    versions,
)
from tpusim.hardware import Slice


class RefusedError(CompileError):
    """A program that needs more HBM than there is.

    program: the last that the compiler tried, with its `refusal`.
    """

    def __init__(self, text: str = "", program: Compiled | None = None) -> None:
        super().__init__(text)
        self.program = program


def compile(
    fn: Callable[..., Any] | ExportedProgram,
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
    until: str = "code",
    time_limit: float | None = None,
) -> Compiled:
    """Compile `fn(*args)` for a slice with the TPU compiler. No TPU is needed, and none is used.

    fn: a function as `jax.jit` takes it, or one that is jitted already; then its own shardings and
        donation hold. In it, a bare `PartitionSpec` is over the axes of `mesh`. Or a step of
        TensorFlow, as `ts.xla.tensorflow` returns it. Or a program that was exported: a
        `jax.export.Exported`, StableHLO as text or bytecode, or a `pathlib.Path` of a file of
        either; it brings its arguments, its mesh, its shardings and its donation.
    args: arrays, `jax.ShapeDtypeStruct`s (nothing is allocated for them), or pytrees of them; their
        own shardings hold where `in_shardings` says nothing.
    slice: a `ts.Slice`, or its name, such as `v4:8x16x16` or `v5e:16x16 x 2`.
    mesh: sizes of axes by name, as in `ts.Plan`, those across slices beginning with `dcn_`; or the
        result of `ts.xla.make_mesh`. On a slice of one device it may be left out.
    in_shardings, out_shardings: pytrees (or prefixes of them) of `PartitionSpec`s; None leaves the
        choice to the compiler.
    donate, static: numbers of the arguments that are donated, and of those that are constants.
    model_flops: FLOPs of a step on all devices without recomputation; or without_remat: the same
        function without `jax.checkpoint`, in which they are counted. With neither they are counted
        in `fn`, without what its `jax.checkpoint`s recompute.
    compiler_options: flags of XLA and libtpu for this program alone, as `jax.jit` takes them:
        `{"xla_tpu_scoped_vmem_limit_kib": 98304}`. Those in `LIBTPU_INIT_ARGS` hold too, and those
        of a jitted `fn`.
    cache: read a program that was compiled before from disk (`tpusim.compiler.cache`).
    until: `code`, or `schedule` to end the compiler, in a process of its own, once the program is
        scheduled and has its memory: in seconds instead of minutes. Such a program has the same
        operations, order and memory, but no cycle estimates of the compiler, nor its notes on the
        algorithms of collectives; and what only code generation refuses is not found.
    time_limit: seconds after which the compiler is ended; by default it has all it takes.

    The compiler runs in a process of its own, which Ctrl-C ends, and which alone ends where a
    program crashes libtpu. Only a program with `jax.experimental.custom_partitioning`, of which the
    compiler calls functions back, is compiled in this process.

    Raise CompileError if jax or libtpu is missing, the mesh does not fill the slice, a sharding
    does not fit its argument, the compiler does not know an option, the program does not fit
    into HBM, the compiler crashes, or the time limit is over. Errors of `fn` itself pass through.
    """
    if is_program(fn):
        if args or static != () or without_remat is not None:
            raise CompileError(
                "an exported program has its arguments and its FLOPs in itself; leave out further "
                "arguments, static and without_remat"
            )
        step = _exported_call(fn, name, slice, mesh)
        return compile(
            step,
            *step.inputs,
            slice=slice,
            mesh=step.mesh,
            in_shardings=in_shardings,
            out_shardings=step.out_shardings if out_shardings is None else out_shardings,
            donate=step.donate if donate == () else donate,
            name=name,
            model_flops=model_flops,
            compiler_options=compiler_options,
            cache=cache,
            until=until,
            time_limit=time_limit,
        )
    for role, given in (("fn", fn), ("without_remat", without_remat or fn)):
        if not callable(given):
            raise CompileError(
                f"{role} is {given!r}; give a function of arrays, as jax.jit takes it"
            )
    found = versions()
    if model_flops is not None:
        check_flops(model_flops)
    extent = check_until(until)
    check_time_limit(time_limit)
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
    wide = jax.enable_x64(True) if isinstance(fn, TensorFlowStep) and fn.x64 else nullcontext()
    foreign = isinstance(fn, ExportedCall | TensorFlowStep)
    explained = explain_program_errors(name) if foreign else nullcontext()
    with jax.set_mesh(grid), wide, explained, explain_misfits(name):
        jitted = fn if hasattr(fn, "trace") and not options else jax.jit(fn, **options)
        traced = jitted.trace(*abstract)
        lowered = traced.lower()
        plain = jax.jit(without_remat, **constant).lower(*abstract) if without_remat else None
    flags = {**own_options(traced), **chosen}

    def run() -> Compiled:
        try:
            with progress(_what(name, pod)):
                return compile_apart(lowered, name, pod, flags, extent, time_limit)
        except CalledBackError:
            if extent == "schedule" or time_limit is not None:
                raise
            return _compile(lowered, name, pod, flags)

    made = _compile_or_load(run, lowered, pod, grid, found, flags, cache, extent)
    made = replace(made, name=name, slice=pod)
    if made.refusal:
        raise RefusedError(f"{name} does not fit {pod}: {made.refusal}", made)
    padding = 0.0
    if model_flops is None and isinstance(fn, TensorFlowStep) and plain is None:
        model_flops, padding = fn.model_flops or None, fn.padding_flops
    elif model_flops is None:
        model_flops, padding = lowered_flops(plain or lowered) or (None, 0.0)
    return replace(made, model_flops=model_flops, padding_flops=padding)


def _exported_call(
    program: ExportedProgram, name: str, slice: Slice | str, mesh: Any
) -> ExportedCall:
    """Return an exported program as a function over the mesh, or over its own where that is None.

    Raise CompileError if it was exported for another platform, number of devices, or mesh, or does
    not say which mesh.
    """
    versions()
    pod, exported = as_slice(slice), read_program(program, name)
    check_exported(exported, pod.devices)
    if mesh is None:
        check_named(exported, pod)
    grid = _mesh(pod, mesh_of(exported) if mesh is None else mesh)
    check_axes(exported, grid.shape)
    with explain_program_errors(exported.fun_name):
        return exported_call(exported, grid)


def _compile_or_load(
    run: Callable[[], Compiled],
    lowered: Any,
    pod: Slice,
    grid: Any,
    found: Mapping[str, str],
    options: Mapping[str, Option],
    cache: bool,
    until: Until,
) -> Compiled:
    """Return the program from the cache, or compile and cache it.

    run: compiles it. found: installed versions.

    A program that was compiled to the end serves for one of its schedule alone.
    """
    positions = tuple(device_position(device) for device in grid.devices.flat)
    facts = {
        "slice": pod.machine,
        "devices": positions,
        "versions": found,
        "mesh": list(grid.shape.items()),
        "flags": [os.environ.get(variable, "") for variable in ENVIRONMENT],
        **({"options": options} if options else {}),
    }
    wanted = [facts] if until == "code" else [facts, {**facts, "until": until}]
    text = _stablehlo(lowered) if cache else b""
    entries = [program_cache.key(text, each) for each in wanted] if cache else []
    for entry in entries:
        if (kept := program_cache.get(entry)) is not None:
            return kept
    made = replace(
        run(),
        devices=positions,
        mesh=tuple((str(axis), int(size)) for axis, size in grid.shape.items()),
        versions=tuple(found.items()),
        flags=flags_of(options),
    )
    if cache:
        program_cache.put(entries[-1], made)
    return made


def _compile(lowered: Any, name: str, pod: Slice, options: Mapping[str, Option]) -> Compiled:
    """Run the compiler to the end in this process, for what it calls back."""
    start = monotonic()
    with TemporaryDirectory(prefix="tpusim-") as dump:
        with explain_refusals(name, pod), progress(_what(name, pod)):
            executable = lowered.compile(compiler_options=with_dump(options, dump))
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


def _what(name: str, pod: Slice) -> str:
    return f"compiling {name} for {pod} ({pod.devices} devices)"


def _stablehlo(lowered: Any) -> bytes:
    """Return the program before compilation: StableHLO, with shardings and source lines.

    The lines that lead to `compile` are left out: the program is the same wherever it is compiled.
    """
    text: str = lowered.as_text(debug_info=True)
    for file, line in _callers():
        text = re.sub(rf'"{re.escape(file)}":{line}:\d+ to [\d:]+', '""', text)
    return text.encode()


def _callers() -> set[tuple[str, int]]:
    found, frame = set(), sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        found.add((frame.f_code.co_filename, frame.f_lineno))
    return found


def _mesh(pod: Slice, mesh: Any) -> Any:
    from jax.sharding import Mesh

    if mesh is None and pod.devices == 1:
        mesh = {"one": 1}
    if mesh is None:
        raise CompileError(
            f"{pod} has {pod.devices} devices and no mesh is given; write {some_mesh(pod)}, or the "
            "axes that your shardings name"
        )
    if not isinstance(mesh, Mesh):
        return make_mesh(pod, mesh)
    if set(map(_device_key, mesh.devices.flat)) != set(map(_device_key, devices_of(pod))):
        axes = dict(mesh.shape) if mesh.size == pod.devices else {"data": pod.devices}
        raise CompileError(
            f"the mesh has other devices than {pod}; make it with ts.xla.make_mesh({str(pod)!r}, "
            f"{axes})"
        )
    return mesh


def _device_key(device: Any) -> tuple[Any, ...]:
    """Return a key that distinguishes devices of different slices and chips."""
    return (
        device.id,
        device.device_kind,
        device_position(device) if hasattr(device, "coords") else None,
    )


def _abstract(args: Sequence[Any], static: int | Sequence[int], grid: Any) -> list[Any]:
    """Return the arguments without values; shardings over named axes are moved to the mesh."""
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
            sharding = NamedSharding(grid, given.spec, memory_kind=_tpu_memory_kind(kind))
        weak = bool(getattr(leaf, "weak_type", False))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)

    return [arg if n in constant else jax.tree.map(one, arg) for n, arg in enumerate(args)]


def _tpu_memory_kind(kind: str | None) -> str | None:
    """Return a memory kind of a TPU, or None: arrays on the host's CPU have others."""
    return kind if kind in ("device", "pinned_host", "unpinned_host") else None


PROGRESS_DELAY = 1.0
"""Seconds until the progress line appears; faster work prints nothing."""


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Print `what`... to standard error while the body runs, with the seconds that it takes."""
    done, start = Event(), monotonic()
    thread = Thread(target=_report_progress, args=(what, done, start), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _report_progress(what: str, done: Event, start: float) -> None:
    terminal, what = sys.stderr.isatty(), plain(what)
    if done.wait(PROGRESS_DELAY):
        return
    if not terminal:
        print(f"{what}...", file=sys.stderr, flush=True)
    while not done.wait(1.0):
        if terminal:
            print(f"\r{what}... {monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True)
    again = "\r" if terminal else ""
    print(f"{again}{what}... {monotonic() - start:.1f} s", file=sys.stderr, flush=True)
