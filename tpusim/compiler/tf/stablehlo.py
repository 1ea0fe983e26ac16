"""HLO of TensorFlow as StableHLO for TPUs, with names and lines as JAX gives them.

All uses of JAX's private names for this are in this file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tpusim.base.errors import CompileError
from tpusim.base.phase import Phase
from tpusim.compiler.exported import abstract_array, flat_exported
from tpusim.compiler.hlo.module import SourceFrame
from tpusim.compiler.tf.traced import TracedOperation

_COPY = "mhlo.copy"
"""TensorFlow copies what it returns unchanged; StableHLO has no such operation, and needs none."""
_SHARDING = "mhlo.sharding"
_TILES = re.compile(r"devices=\[([\d,]+)\]")

_OP_NAMES = {
    Phase.FORWARD: "jit()/jvp()/{name}",
    Phase.RECOMPUTE: "jit()/transpose(jvp())/checkpoint/rematted_computation/{name}",
    Phase.BACKWARD: "jit()/transpose(jvp())/{name}",
    Phase.OPTIMIZER: "jit()/{name}",
}
"""How JAX names the operations of each pass (`tpusim.compiler.to_program.op_metadata`); that of the
function is in front of it where XLA inlines the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StableProgram:
    """A program as a portable StableHLO artifact.

    inputs, outputs: shapes and dtypes, as `jax.core.ShapedArray`s.
    devices: of its sharding annotations; 1 if it has none.
    """

    artifact: bytes
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    devices: int

    def exported(self, name: str) -> Any:
        """Return it as a `jax.export.Exported` for TPUs, with flat arguments and results."""
        return flat_exported(name, self.artifact, self.inputs, self.outputs, self.devices)


def stable_program(
    hlo: bytes, step: str, operations: Mapping[str, TracedOperation]
) -> StableProgram:
    """Return the program of a serialised HloModuleProto of TensorFlow.

    step: its name.
    operations: those of TensorFlow by name.

    Raise CompileError for operations that StableHLO lacks.
    """
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
        except Exception as error:
            raise CompileError(
                f"{step}: XLA cannot write TensorFlow's program as StableHLO: "
                f"{(str(error).splitlines() or [''])[0][:300]}"
            ) from error
        main = ir.SymbolTable(module.operation)["main"]
        _drop_copies(module)
        _check_known(module, step)
        _name(main, operations)
        version = stablehlo.get_version_from_compatibility_requirement(
            stablehlo.StablehloCompatibilityRequirement.WEEK_4
        )
        return StableProgram(
            artifact=_jax.mlir.serialize_portable_artifact(module, version, False),
            inputs=tuple(map(abstract_array, main.type.inputs)),
            outputs=tuple(map(abstract_array, main.type.results)),
            devices=_annotated_devices(module),
        )


def _walk(operation: Any) -> Iterator[Any]:
    """Yield all operations inside of one, in program order."""
    for region in operation.regions:
        for block in region:
            for each in list(block.operations):
                yield each.operation
                yield from _walk(each.operation)


def _drop_copies(module: Any) -> None:
    for each in list(_walk(module.operation)):
        if each.name == _COPY:
            each.results[0].replace_all_uses_with(each.operands[0])
            each.erase()


def _check_known(module: Any, step: str) -> None:
    """Raise CompileError for an operation that a portable artifact cannot hold."""
    for each in _walk(module.operation):
        if each.name.partition(".")[0] not in ("stablehlo", "chlo", "func"):
            raise CompileError(
                f"{step}: TensorFlow's program has the operation {each.name}, which StableHLO "
                "lacks; write that part of the step otherwise"
            )


def _annotated_devices(module: Any) -> int:
    """Return how many devices the sharding annotations are for; 1 if there are none."""
    annotated = (
        found
        for each in _walk(module.operation)
        if _SHARDING in each.attributes
        for found in _TILES.findall(str(each.attributes[_SHARDING]))
    )
    return max((prod(map(int, tiles.split(","))) for tiles in annotated), default=1)


def _name(main: Any, operations: Mapping[str, TracedOperation]) -> None:
    """Give each operation the name and the stack that JAX would give it."""
    top = [each.operation for each in main.regions[0].blocks[0].operations]
    traced = [operations.get(_own_name(each)) for each in top]
    for each, known, phase in zip(top, traced, _phases(top, traced), strict=True):
        for inner in (each, *_walk(each)):
            own = operations.get(_own_name(inner)) or known
            if own is not None:
                inner.location = _location(own, own.phase or phase, inner.name)


def _own_name(operation: Any) -> str:
    """Return TensorFlow's name of an operation, which stands in its location."""
    from jaxlib.mlir import ir

    at = operation.location
    parts = at.locations if isinstance(at, ir.FusedLoc) else (at,)
    return next((part.name_str for part in parts if isinstance(part, ir.NameLoc)), "")


def _phases(top: list[Any], traced: list[TracedOperation | None]) -> list[Phase]:
    """Return the passes of operations in program order.

    The optimizer's are those that depend on the backward pass without being of it, and those that
    only such operations read, such as a schedule of the learning rate. The last one returns.
    """
    told = [None if known is None else known.phase for known in traced]
    after: set[int] = set()
    gradient: set[int] = set()
    for at, each in enumerate(top[:-1]):
        sources = {_key(operand.owner) for operand in each.operands}
        if told[at] in (Phase.BACKWARD, Phase.RECOMPUTE):
            gradient.add(_key(each))
        elif sources & (gradient | after):
            after.add(_key(each))
    for each in reversed(top[:-1]):
        readers = {_key(use.owner) for result in each.results for use in result.uses}
        outward = {reader for reader in readers if reader not in after}
        if _key(each) not in gradient and readers and not outward:
            after.add(_key(each))
    return [
        phase or (Phase.OPTIMIZER if _key(each) in after else Phase.FORWARD)
        for phase, each in zip(told, top, strict=True)
    ]


def _key(owner: Any) -> int:
    """Return what identifies an operation or a block among others."""
    return hash(getattr(owner, "operation", owner))


def _location(known: TracedOperation, phase: Phase, opcode: str) -> Any:
    from jaxlib.mlir import ir

    name = _OP_NAMES[phase].format(name=known.name)
    kind = opcode.partition(".")[2]
    frames = [_frame(frame) for frame in known.frames]
    stack = None
    if frames:
        stack = ir.Location.callsite(frames[0], frames[1:]) if frames[1:] else frames[0]
    return ir.Location.name(f"{kind}:", ir.Location.name(name, stack))


def _frame(frame: SourceFrame) -> Any:
    from jaxlib.mlir import ir

    return ir.Location.name(frame.function, ir.Location.file(frame.file, frame.line, 0))
