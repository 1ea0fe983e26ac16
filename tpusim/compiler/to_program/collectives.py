"""Data movement of HLO instructions: between devices, or beside the core of one."""

import re
from collections.abc import Iterator
from dataclasses import replace

from tpusim.compiler.hlo.attributes import backend_config, call_target, called_computations
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.opcodes import COLLECTIVE_KINDS, FREE_TARGETS
from tpusim.compiler.hlo.replica_groups import ReplicaGroups, read_groups
from tpusim.compiler.hlo.shapes import HBM_SPACE, HOST_SPACE, Shape, flatten_shape
from tpusim.compiler.to_program.collective_metadata import (
    collective_algorithm,
    fusion_results,
    hbm_shares,
)
from tpusim.compiler.to_program.data_movement import (
    NO_MOVEMENT,
    AsyncRole,
    DataMovement,
    MovementKind,
    data_bytes,
    largest_dtype,
    largest_tensor,
    padding_share,
    total_bytes,
)
from tpusim.compiler.to_program.sends import send_movement
from tpusim.compiler.work.instruction_work import instruction_work, is_free
from tpusim.network import Algorithm
from tpusim.program import CollectiveKind


def movement_of(
    module: HloModule, where: Computation, instruction: Instruction
) -> DataMovement | None:
    """Return the data that an instruction moves; None if it computes, or is free.

    where: the computation that contains it.

    A fusion beside a transfer (`AsyncRole.STEP`) computes as well.
    """
    opcode = instruction.opcode
    if opcode.removesuffix("-start") in COLLECTIVE_KINDS:
        return _collective(module, where, instruction)
    if opcode == "fusion":
        return _fused_collective(module, instruction)
    if opcode in ("call-start", "async-start"):
        return _async_call(module, instruction)
    if opcode in ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"):
        return _async_copy(instruction)
    if opcode in ("send", "recv"):
        return send_movement(instruction)
    if opcode.endswith(("-done", "-update")):
        return _done(module, where, instruction)
    if opcode in ("infeed", "outfeed"):
        return _infeed_or_outfeed(where, instruction)
    if opcode in ("after-all", "add-dependency"):
        return NO_MOVEMENT
    return (
        NO_MOVEMENT
        if opcode == "custom-call" and call_target(instruction) in FREE_TARGETS
        else None
    )


def module_groups(module: HloModule) -> Iterator[ReplicaGroups]:
    """Yield the groups of all collectives of a module, once per occurrence."""
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.opcode.removesuffix("-start") in COLLECTIVE_KINDS:
                groups = _groups(module, instruction)
                if groups is not None:
                    yield groups


def _groups(module: HloModule, instruction: Instruction) -> ReplicaGroups | None:
    text, opcode = instruction.attributes, instruction.opcode
    return read_groups(text, opcode, module.devices, module.replicas)


def _collective(
    module: HloModule,
    where: Computation,
    instruction: Instruction,
    role: AsyncRole = AsyncRole.SYNC,
    fusion: Instruction | None = None,
) -> DataMovement:
    """Return a synchronous collective or a start; fusion: the one that it is part of, if any."""
    started = instruction.opcode.endswith("-start")
    kind = COLLECTIVE_KINDS[instruction.opcode.removesuffix("-start")]
    groups = _groups(module, instruction)
    made = _results(instruction)
    nbytes = total_bytes(made)
    if kind is CollectiveKind.REDUCE_SCATTER and groups is not None:
        nbytes *= groups.size
    if instruction.opcode == "ragged-all-to-all":
        nbytes = min(nbytes, total_bytes(_operands(where, instruction)[:1]) or nbytes)
    algorithm, note = collective_algorithm(kind, backend_config(instruction))
    found = _CHAIN_ID.search(instruction.attributes)
    return DataMovement(
        MovementKind.COLLECTIVE,
        AsyncRole.START if started else role,
        kind,
        nbytes,
        largest_dtype(made),
        groups,
        chain=f"chain {found[1]}" if found else "",
        algorithm=algorithm,
        hbm=hbm_shares(where, [instruction], fusion_results(made, fusion)),
        note="; ".join(filter(None, (note, groups.note if groups else "it names no groups"))),
        padded=nbytes * padding_share(made),
        tensor=largest_tensor(made),
    )


_CHAIN_ID = re.compile(r'chain_id="(\d+)"')


def _results(instruction: Instruction) -> tuple[Shape, ...]:
    """Return the arrays that a collective makes, without the operands and contexts of a start."""
    shape = instruction.shape
    if isinstance(shape, Shape) or not instruction.opcode.endswith("-start"):
        return instruction.arrays
    if instruction.opcode == "all-reduce-start":
        return instruction.arrays
    return flatten_shape(shape[1]) if len(shape) > 1 else instruction.arrays


def _operands(where: Computation, instruction: Instruction) -> tuple[Shape, ...]:
    return tuple(
        array for name in instruction.operands if name in where for array in where[name].arrays
    )


def _fused_collective(module: HloModule, fusion: Instruction) -> DataMovement | None:
    """Return the collective in a fusion: its start, a step of it, its done, or a reduce-scatter."""
    body = next(iter(called_computations(module, fusion, "calls")), None)
    found = [each for each in body.instructions if each.opcode in COLLECTIVE_KINDS] if body else []
    if body is None or not found:
        return None
    marks = {call_target(each) for each in body.instructions if each.opcode == "custom-call"}
    operand = fusion.operands[0] if fusion.operands else ""
    if "AsyncCollectiveDone" in marks:
        return replace(_collective(module, body, found[0], AsyncRole.DONE), operand=operand)
    if "AsyncCollectiveStart" in marks:
        return _collective(module, body, found[0], AsyncRole.START, fusion)
    if "kind=kCustom" not in fusion.attributes:
        return replace(_collective(module, body, found[0], AsyncRole.STEP), operand=operand)
    parts = [_collective(module, body, each) for each in found]
    kind = COLLECTIVE_KINDS[found[0].opcode]
    sliced = any(each.opcode in ("dynamic-slice", "slice") for each in body.instructions)
    if kind is CollectiveKind.ALL_REDUCE and sliced:
        kind = CollectiveKind.REDUCE_SCATTER
    algorithm, note = collective_algorithm(kind, backend_config(fusion))
    return replace(
        parts[0],
        collective=kind,
        bytes=sum(part.bytes for part in parts),
        padded=sum(part.padded for part in parts),
        algorithm=algorithm,
        note=note,
        hbm=hbm_shares(body, found, fusion.arrays),
    )


_SPARSECORE = 'async_execution_thread="sparsecore"'
"""An attribute of calls that the SparseCore runs."""


def _on_sparsecore(start: Instruction, moved: DataMovement) -> DataMovement:
    """Return a collective with the algorithm of the SparseCore, where no other is noted.

    It gathers over all dimensions of a group at once (see the lowering "SparseCore").
    """
    gathers = moved.collective is CollectiveKind.ALL_GATHER and not moved.algorithm
    if not gathers or _SPARSECORE not in start.attributes:
        return moved
    return replace(moved, algorithm=Algorithm.ND)


def _async_call(module: HloModule, start: Instruction) -> DataMovement:
    """Return the collective or the SparseCore work of an asynchronous call."""
    for where in _reachable(module, start):
        for each in where.instructions:
            if each.opcode.removesuffix("-start") in COLLECTIVE_KINDS:
                return _on_sparsecore(start, _collective(module, where, each, AsyncRole.START))
    shape = start.shape
    moved = start.arrays if isinstance(shape, Shape) else flatten_shape(shape[:2])
    if _SPARSECORE in start.attributes:
        kind = MovementKind.SPARSECORE
        nbytes = sum(_hbm_bytes(module, where) for where in _reachable(module, start))
    else:
        kind = MovementKind.DMA
        nbytes = total_bytes(array for array in moved if array.space == HBM_SPACE)
    return DataMovement(kind, AsyncRole.START, bytes=nbytes, dtype=largest_dtype(moved))


def _hbm_bytes(module: HloModule, where: Computation) -> float:
    """Return the bytes that a computation itself moves through HBM: of a gather, only the rows."""
    own = [e for e in where.instructions if not (is_free(e) or e.opcode.startswith("call"))]
    works = [instruction_work(module, where, each) for each in own]
    return sum(work.read_bytes + work.write_bytes for work in works)


def _reachable(module: HloModule, start: Instruction) -> Iterator[Computation]:
    """Yield the computations that a call reaches, through nested calls too."""
    for where in called_computations(module, start):
        yield where
        for each in where.instructions:
            if each.opcode in ("call", "call-start", "async-start"):
                yield from _reachable(module, each)


def _async_copy(start: Instruction) -> DataMovement:
    """Return a copy between HBM and on-chip memory, or with the host.

    Of a slice, or of an update in place, only that part crosses.
    """
    shape = start.shape
    if start.opcode == "copy-start" or isinstance(shape, Shape):
        sides = start.arrays[:2]
    elif start.opcode == "dynamic-update-slice-start":
        whole, update = flatten_shape(shape[0])[:2]
        sides = (replace(update, space=whole.space), update)
    else:
        made = flatten_shape(shape[1])
        sources = zip(made, flatten_shape(shape[0]), strict=False)
        sides = (*made, *(replace(array, space=source.space) for array, source in sources))
    if HOST_SPACE in {side.space for side in sides}:
        kind = MovementKind.TO_HOST if sides[0].space == HOST_SPACE else MovementKind.FROM_HOST
        return DataMovement(kind, AsyncRole.START, bytes=sides[0].bytes, dtype=sides[0].dtype)
    nbytes = total_bytes(side for side in sides if side.space == HBM_SPACE)
    return DataMovement(MovementKind.DMA, AsyncRole.START, bytes=nbytes, dtype=largest_dtype(sides))


def _infeed_or_outfeed(where: Computation, instruction: Instruction) -> DataMovement:
    if instruction.opcode == "infeed":
        moved, kind = instruction.arrays, MovementKind.FROM_HOST
    else:
        moved, kind = _operands(where, instruction), MovementKind.TO_HOST
    return DataMovement(kind, AsyncRole.SYNC, bytes=data_bytes(moved), dtype=largest_dtype(moved))


def _done(module: HloModule, where: Computation, instruction: Instruction) -> DataMovement:
    """Return the wait for a start, with the start's data if that is in the same computation."""
    operand = instruction.operands[0] if instruction.operands else ""
    if instruction.opcode.endswith("-update"):
        return DataMovement(MovementKind.NOTHING, AsyncRole.STEP, operand=operand)
    at = operand
    while at in where and where[at].opcode.endswith("-update") and where[at].operands:
        at = where[at].operands[0]
    started = movement_of(module, where, where[at]) if at in where else None
    if started is None:
        return DataMovement(MovementKind.NOTHING, AsyncRole.DONE, operand=operand)
    crosses = instruction.opcode == "send-done" and started.kind is MovementKind.COLLECTIVE
    if crosses and _has_receive(where, started.chain):
        return DataMovement(MovementKind.NOTHING, AsyncRole.DONE)
    return replace(started, role=AsyncRole.DONE, operand=at)


def _has_receive(where: Computation, chain: str) -> bool:
    """Return True if a transfer between slices is waited for where it arrives.

    The end of its send only says that the host has taken the data over; the network comes after.
    """
    received = (each for each in where.instructions if each.opcode == "recv")
    return any(send_movement(each).chain == chain for each in received)
