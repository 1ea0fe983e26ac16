"""Programs before compilation that other tools wrote: exports of JAX, and StableHLO.

All uses of JAX's private names for this are in this file, and those for GSPMD in `gspmd.py`.
"""

import re
from dataclasses import replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from tpusim.base.errors import CompileError, blame
from tpusim.base.text_files import read_bytes
from tpusim.compiler.bytecode import check_bytecode
from tpusim.compiler.gspmd import check_tiles, placed_over
from tpusim.compiler.refusals import explain_program_errors

ExportedProgram: TypeAlias = Any | str | bytes | Path
"""A `jax.export.Exported`, StableHLO as text or bytecode, or a file of either."""

_BYTECODE = b"ML\xefR"
"""How MLIR's bytecode begins."""
MAX_EXPORTED_BYTES = 2**31
"""Size of the largest exported program that is read: it may hold weights."""

EXPECTED = "StableHLO, as text or bytecode, or a serialised jax.export"

_CALLING_CONVENTION = 10
"""Version of JAX's calling convention: arguments and results as the module has them."""
_SHARDY, _GSPMD = "sdy.sharding", "mhlo.sharding"
_DONATED = ("jax.buffer_donor", "tf.aliasing_output")
_DEVICES = "mhlo.num_partitions", "mhlo.num_replicas"
"""Attributes of a module; the product is the number of its devices."""
_GZIP = b"\x1f\x8b"
"""How a gzipped file begins, which only HLO may be."""
_TEXT_SAMPLE = 4096
_TEXT_LINE = re.compile(r'"-":(\d+):\d+: ')
"""Where MLIR finds an error in a text that is not a file's."""


def is_program(given: object) -> bool:
    """Return whether this is an exported program, and no function."""
    return isinstance(given, str | bytes | bytearray | Path) or _is_exported(given)


def read_program(given: ExportedProgram, name: str = "") -> Any:
    """Return a program as a `jax.export.Exported` for TPUs.

    given: itself one; StableHLO as text, as bytecode or as a portable artifact; what
        `Exported.serialize` returns; or the path of a file with one of these.
    name: of StableHLO, in place of its module's.

    Raise CompileError for anything else, and FileError for a file that cannot be read.
    """
    if isinstance(given, Path):
        given = _contents(given)
    if _is_exported(given):
        return given
    data = given.encode() if isinstance(given, str) else bytes(given)
    if b"HloModule" in data[:_TEXT_SAMPLE] or data.startswith(_GZIP):
        raise CompileError(
            "this is HLO, which the compiler has made already, and no StableHLO; replay it "
            "(`tpusim replay FILE`, or ts.simulate(ts.xla.load(FILE)))"
        )
    if not data.startswith(_BYTECODE) and not _is_text(data):
        found = _deserialized(data)
        check_bytecode(found.mlir_module_serialized)
        return found
    if data.startswith(_BYTECODE):
        check_bytecode(data)
    return wrap_stablehlo(data, name)


def wrap_stablehlo(data: bytes, name: str = "") -> Any:
    """Return a StableHLO module as a `jax.export.Exported` whose arguments and results are flat.

    data: text, bytecode, or a portable artifact. The arguments of its `main` may have shardings of
        Shardy or GSPMD, and be marked as donated.
    name: in place of the module's.

    Raise CompileError for a module that is no StableHLO with static shapes.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client

    with mlir.make_ir_context(), explain_program_errors(name or "the StableHLO"):
        module = _parse(data)
        _check_shardings(module)
        main = _main(module)
        ins, outs = list(main.type.inputs), list(main.type.results)
        avals = tuple(map(abstract_array, ins)), tuple(map(abstract_array, outs))
        mesh = _shardy_mesh(module)
        marked = (
            _attributes(main, "arg_attrs", len(ins)),
            _attributes(main, "res_attrs", len(outs)),
        )
        named = [tuple(_named_sharding(each, mesh) for each in side) for side in marked]
        tiled = [
            tuple(
                xla_client.HloSharding.from_string(text) if mesh is None and text else None
                for text in (_string(each, _GSPMD) for each in side)
            )
            for side in marked
        ]
        artifact = _bytecode(module)
        devices = _device_count(module, mesh)
        name = name or _string(module.operation.attributes, "sym_name") or "main"
    flat = flat_exported(re.sub(r"\W", "_", name.removeprefix("jit_")), artifact, *avals, devices)
    return replace(
        flat,
        _has_named_shardings=mesh is not None,
        _in_named_shardings=named[0],
        _out_named_shardings=named[1],
        in_shardings_hlo=tiled[0],
        out_shardings_hlo=tiled[1],
    )


def flat_exported(
    name: str, artifact: bytes, inputs: tuple[Any, ...], outputs: tuple[Any, ...], devices: int
) -> Any:
    """Return StableHLO as a `jax.export.Exported` for TPUs, with flat arguments and results.

    artifact: bytecode, or a portable artifact, whose arguments have no shardings.
    inputs, outputs: shapes and dtypes, as `jax.core.ShapedArray`s.
    """
    import jax
    from jax.export import Exported

    places = (None,) * len(inputs), (None,) * len(outputs)
    return Exported(
        fun_name=name,
        in_tree=jax.tree.structure(((0,) * len(inputs), {})),
        out_tree=jax.tree.structure((0,) * len(outputs)),
        in_avals=inputs,
        out_avals=outputs,
        _has_named_shardings=False,
        _in_named_shardings=places[0],
        _out_named_shardings=places[1],
        in_shardings_hlo=places[0],
        out_shardings_hlo=places[1],
        nr_devices=devices,
        platforms=("tpu",),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=(),
        mlir_module_serialized=artifact,
        calling_convention_version=_CALLING_CONVENTION,
        module_kept_var_idx=tuple(range(len(inputs))),
        uses_global_constants=False,
        _get_vjp=None,
    )


def _is_exported(given: object) -> bool:
    """Return whether this is a `jax.export.Exported`, without importing JAX for it."""
    return type(given).__name__ == "Exported" and hasattr(given, "mlir_module_serialized")


def _contents(path: Path) -> bytes:
    with blame(str(path)):
        return read_bytes(path, "an exported program", EXPECTED, MAX_EXPORTED_BYTES)


def _is_text(data: bytes) -> bool:
    sample = data[:_TEXT_SAMPLE]
    return b"\0" not in sample and (b"module" in sample or b"func" in sample or b"#" in sample)


def _deserialized(data: bytes) -> Any:
    from jax import export

    try:
        return export.deserialize(bytearray(data))
    except ImportError as error:
        raise CompileError(
            "this is no StableHLO, as text or bytecode; to read a serialised jax.export, "
            "pip install flatbuffers"
        ) from error
    except Exception as error:
        raise CompileError(
            "this is no StableHLO, as text or bytecode, nor a serialised jax.export; write "
            "one with jax.export.export(fn, platforms=['tpu'])(*args).mlir_module()"
        ) from error


def read_module(data: bytes) -> None:
    """Read StableHLO, and raise CompileError if it is none."""
    from jax._src.interpreters import mlir

    with mlir.make_ir_context():
        _parse(data)


def _parse(data: bytes) -> Any:
    from jaxlib import _jax
    from jaxlib.mlir import ir, passmanager

    try:
        if data.startswith(_BYTECODE) and b"vhlo" in data:
            module = _jax.mlir.deserialize_portable_artifact(data)
        else:
            module = ir.Module.parse(data)
        # one mesh, at the module's head, wherever shardings hold their own
        passmanager.PassManager.parse("builtin.module(sdy-lift-inlined-meshes)").run(
            module.operation
        )
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        said = next((line for line in lines if "error:" in line), lines[0])
        raise CompileError(
            f"this is no StableHLO that this version of JAX reads: {_reason(said)[:250]}"
        ) from error
    return module


def _reason(said: str) -> str:
    """Return an error of MLIR with the line of the text, and without stacks of Python's frames."""
    said = said.rpartition("error: ")[2].strip()
    if found := _TEXT_LINE.match(said):
        return f"line {found[1]}: {said[found.end() :]}"
    if not said.startswith(('"', "callsite(")):
        return said.removeprefix("unknown: ")
    depth = 0
    for at, letter in enumerate(re.sub(r'"[^"]*"', lambda name: "_" * len(name[0]), said)):
        depth += (letter == "(") - (letter == ")")
        if not depth and letter == ")" and said[at + 1 :].startswith(": "):
            return said[at + 3 :]
    return said


def _check_shardings(module: Any) -> None:
    """Raise CompileError for shardings of GSPMD at which XLA would end the process."""
    from jaxlib.mlir import ir

    found: list[str] = []

    def note(op: Any) -> Any:
        keys = (key for key in (_GSPMD, "arg_attrs", "res_attrs") if key in op.attributes)
        found.extend(str(op.attributes[key]) for key in keys)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    for text in found:
        check_tiles(text)


def _main(module: Any) -> Any:
    functions = (op for op in module.body.operations if op.operation.name == "func.func")
    found = [op for op in functions if _string(op.attributes, "sym_name") == "main"]
    if not found:
        raise CompileError("the StableHLO has no function main; name the one to compile so")
    return found[0]


def abstract_array(kind: Any) -> Any:
    """Return the abstract array of a type of MLIR; raise CompileError if there is none."""
    import numpy as np
    from jax._src import core
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        raise CompileError(
            f"an argument or result of the StableHLO is {kind}, no array of static shape; export "
            "it with the shapes that it runs with"
        )
    known = {str(make()): dtype for dtype, make in mlir._dtype_to_ir_type.items()}
    known["i1"] = np.dtype(bool)
    element = str(kind.element_type)
    if element not in known:
        raise CompileError(f"an argument or result of the StableHLO is {kind}, which JAX lacks")
    return core.ShapedArray(tuple(kind.shape), known[element])


def _attributes(main: Any, side: str, count: int) -> list[Any]:
    """Return the attributes of each argument or result."""
    return list(main.attributes[side]) if side in main.attributes else [{}] * count


def _string(attributes: Any, key: str) -> str:
    from jaxlib.mlir import ir

    return ir.StringAttr(attributes[key]).value if key in attributes else ""


def _shardy_mesh(module: Any) -> Any:
    """Return the mesh of a module that Shardy partitions, as JAX's abstract one; None without."""
    from jax.sharding import AbstractMesh
    from jaxlib.mlir.dialects import sdy

    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            axes = list(map(sdy.MeshAxisAttr, sdy.MeshAttr(op.attributes["mesh"]).axes))
            if axes:
                names = tuple(axis.name for axis in axes)
                return AbstractMesh(tuple(axis.size for axis in axes), names)
    return None


def _named_sharding(attributes: Any, mesh: Any) -> Any:
    """Return the sharding of an argument or result over the mesh; None if it has none."""
    from jax.sharding import NamedSharding, PartitionSpec
    from jaxlib.mlir.dialects import sdy

    if mesh is None or _SHARDY not in attributes:
        return None
    spec = []
    for dim in sdy.TensorShardingAttr(attributes[_SHARDY]).dimension_shardings:
        axes = list(sdy.DimensionShardingAttr(dim).axes)
        if any(sdy.AxisRefAttr(axis).sub_axis_info is not None for axis in axes):
            raise CompileError(
                f"the sharding {attributes[_SHARDY]} is over a part of an axis; split that axis of "
                "the mesh into two"
            )
        spec.append(tuple(sdy.AxisRefAttr(axis).name for axis in axes) or None)
    return NamedSharding(mesh, PartitionSpec(*spec))


def _device_count(module: Any, mesh: Any) -> int:
    from jaxlib.mlir import ir

    attributes = module.operation.attributes
    counts = [ir.IntegerAttr(attributes[key]).value for key in _DEVICES if key in attributes]
    if min(counts, default=1) < 1:
        raise CompileError(
            f"the StableHLO is for {' x '.join(map(str, counts))} devices; write {_DEVICES[0]} = 1 "
            "or more"
        )
    return prod(counts) if mesh is None else int(mesh.size)


def _bytecode(module: Any) -> bytes:
    """Return the module as it is; a portable artifact would spell out operations such as ragged
    matmuls, at many times their work.
    """
    written = BytesIO()
    module.operation.write_bytecode(file=written)
    return written.getvalue()


def mesh_of(exported: Any) -> dict[str, int] | None:
    """Return the axes of the mesh that a program was exported over; None if it names none."""
    for each in (*exported._in_named_shardings, *exported._out_named_shardings):
        if each is not None and each.mesh.size == exported.nr_devices:
            return dict(each.mesh.shape)
    return None


def shardings_of(exported: Any, grid: Any) -> tuple[list[Any], list[Any]]:
    """Return the shardings of flat arguments and results over a mesh; None where it has none.

    Those of GSPMD name no axes: they are over the devices in the order of the mesh, whatever its
    axes are.
    """
    from jax.sharding import NamedSharding

    if not exported._has_named_shardings:
        sides = (
            ("argument", exported.in_shardings_hlo, exported.in_avals),
            ("result", exported.out_shardings_hlo, exported.out_avals),
        )
        inward, outward = (
            [
                placed_over(grid, sharding, array, f"{exported.fun_name}: {what} {at}")
                for at, (sharding, array) in enumerate(zip(shardings, arrays, strict=True))
            ]
            for what, shardings, arrays in sides
        )
        return inward, outward

    def over(given: Any) -> Any:
        return None if given is None or given.mesh.size == 1 else NamedSharding(grid, given.spec)

    inward, outward = exported._in_named_shardings, exported._out_named_shardings
    return list(map(over, inward)), list(map(over, outward))


def donated_leaves(exported: Any) -> frozenset[int]:
    """Return the numbers of the flat arguments whose memory the program's results may take."""
    from jax._src.interpreters import mlir

    with mlir.make_ir_context():
        module = exported.mlir_module(serialized=False)  # owns what is in it
        main = _main(module)
        marked = _attributes(main, "arg_attrs", len(main.type.inputs))
        extra = len(marked) - len(exported.module_kept_var_idx)  # tokens and the platform's index
        kept = zip(exported.module_kept_var_idx, marked[extra:], strict=True)
        return frozenset(at for at, each in kept if any(key in each for key in _DONATED))
