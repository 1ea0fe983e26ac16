"""What an instruction of compiled HLO moves between devices, or beside the core on one."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tpusim.program import CollectiveKind
from tpusim.xla.attributes import backend_config, called, target
from tpusim.xla.emitters import algorithm_of
from tpusim.xla.groups import Groups, read_groups
from tpusim.xla.lying import leaving, shares_in_hbm
from tpusim.xla.module import Computation, Instruction, Module
from tpusim.xla.opcodes import FREE_TARGETS, KINDS
from tpusim.xla.sends import sent
from tpusim.xla.shapes import HBM, HOST, Shape, arrays
from tpusim.xla.uses import NOTHING, Role, Use, What, bytes_of, dtype_of
from tpusim.xla.work import instruction_work, is_free


def use_of(module: Module, where: Computation, instruction: Instruction) -> Use | None:
    """What an instruction moves; None where it computes, or is free.

    where: the computation that it stands in. A fusion that a transfer goes on beside (`Role.STEP`)
    computes as well.
    """
    opcode = instruction.opcode
    if opcode.removesuffix("-start") in KINDS:
        return _collective(module, where, instruction)
    if opcode == "fusion":
        return _fused(module, instruction)
    if opcode in ("call-start", "async-start"):
        return _called(module, instruction)
    if opcode in ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"):
        return _copied(instruction)
    if opcode in ("send", "recv"):
        return sent(instruction)
    if opcode.endswith(("-done", "-update")):
        return _done(module, where, instruction)
    if opcode in ("infeed", "outfeed"):
        return _fed(where, instruction)
    if opcode in ("after-all", "add-dependency"):
        return NOTHING
    return NOTHING if opcode == "custom-call" and target(instruction) in FREE_TARGETS else None


def module_groups(module: Module) -> Iterator[Groups]:
    """The groups of all collectives of a module, each as often as it stands there."""
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.opcode.removesuffix("-start") in KINDS:
                groups = _groups(module, instruction)
                if groups is not None:
                    yield groups


def _groups(module: Module, instruction: Instruction) -> Groups | None:
    return read_groups(
        instruction.attributes, instruction.opcode, module.devices, module.replicas
    )  # fmt: skip


def _collective(
    module: Module, where: Computation, instruction: Instruction, role: Role = Role.SYNC,
    fusion: Instruction | None = None,
) -> Use:  # fmt: skip
    """A collective that stands alone, or its start; `fusion` is what it is a part of, if any."""
    started = instruction.opcode.endswith("-start")
    kind = KINDS[instruction.opcode.removesuffix("-start")]
    groups = _groups(module, instruction)
    made = _results(instruction)
    nbytes = bytes_of(made)
    if kind is CollectiveKind.REDUCE_SCATTER and groups is not None:
        nbytes *= groups.size
    if instruction.opcode == "ragged-all-to-all":
        nbytes = min(nbytes, bytes_of(_operands(where, instruction)[:1]) or nbytes)
    how, note = algorithm_of(kind, backend_config(instruction))
    found = _FOUND_CHAIN.search(instruction.attributes)
    return Use(
        What.COLLECTIVE, Role.START if started else role, kind, nbytes, dtype_of(made), groups,
        chain=f"chain {found[1]}" if found else "", algorithm=how,
        hbm=shares_in_hbm(where, [instruction], leaving(made, fusion)),
        note="; ".join(filter(None, (note, groups.note if groups else "it names no groups"))),
    )  # fmt: skip


_FOUND_CHAIN = re.compile(r'chain_id="(\d+)"')


def _results(instruction: Instruction) -> tuple[Shape, ...]:
    """The arrays that a collective makes: a start has its operands and contexts beside them."""
    shape = instruction.shape
    if isinstance(shape, Shape) or not instruction.opcode.endswith("-start"):
        return instruction.arrays
    if instruction.opcode == "all-reduce-start":
        return instruction.arrays
    return arrays(shape[1]) if len(shape) > 1 else instruction.arrays


def _operands(where: Computation, instruction: Instruction) -> tuple[Shape, ...]:
    return tuple(
        array for name in instruction.operands if name in where for array in where[name].arrays
    )


def _fused(module: Module, fusion: Instruction) -> Use | None:
    """A collective within a fusion: what starts, goes on or ends there, or a reduce-scatter."""
    inside = _first(module.computations.get(name) for name in called(fusion, "calls"))
    if inside is None:
        return None
    found = [each for each in inside.instructions if each.opcode in KINDS]
    if not found:
        return None
    marks = {target(each) for each in inside.instructions if each.opcode == "custom-call"}
    if "AsyncCollectiveDone" in marks:
        whole = _collective(module, inside, found[0], Role.DONE)
        return replace(whole, operand=fusion.operands[0])
    if "AsyncCollectiveStart" in marks:
        return _collective(module, inside, found[0], Role.START, fusion)
    if "kind=kCustom" not in fusion.attributes:
        whole = _collective(module, inside, found[0], Role.STEP)
        return replace(whole, operand=fusion.operands[0] if fusion.operands else "")
    uses = [_collective(module, inside, each) for each in found]
    scattered = {CollectiveKind.ALL_REDUCE: CollectiveKind.REDUCE_SCATTER}
    kind = uses[0].kind
    cut = any(each.opcode in ("dynamic-slice", "slice") for each in inside.instructions)
    kind = scattered.get(kind, kind) if cut and kind is not None else kind
    how, note = algorithm_of(kind, backend_config(fusion)) if kind is not None else ("", "")
    return replace(
        uses[0],
        kind=kind,
        bytes=sum(use.bytes for use in uses),
        algorithm=how,
        note=note,
        hbm=shares_in_hbm(inside, found, fusion.arrays),
    )


def _first(found: Iterable[Computation | None]) -> Computation | None:
    return next((each for each in found if each is not None), None)


def _called(module: Module, start: Instruction) -> Use:
    """What an asynchronous call does: a collective, or work of a SparseCore."""
    for where in _reached(module, start):
        for each in where.instructions:
            if each.opcode.removesuffix("-start") in KINDS:
                return _collective(module, where, each, Role.START)
    shape = start.shape
    moved = start.arrays if isinstance(shape, Shape) else arrays(shape[:2])
    if 'async_execution_thread="sparsecore"' in start.attributes:
        nbytes = sum(_touched(module, where) for where in _reached(module, start))
        return Use(What.SPARSECORE, Role.START, bytes=nbytes, dtype=dtype_of(moved))
    nbytes = bytes_of(array for array in moved if array.space == HBM)
    return Use(What.DMA, Role.START, bytes=nbytes, dtype=dtype_of(moved))


def _touched(module: Module, where: Computation) -> float:
    """What a computation reads and writes of HBM itself: of a gather the rows, not the table."""
    own = [e for e in where.instructions if not (is_free(e) or e.opcode.startswith("call"))]
    works = [instruction_work(module, where, each) for each in own]
    return sum(work.read_bytes + work.write_bytes for work in works)


def _reached(module: Module, start: Instruction) -> Iterator[Computation]:
    """The computations that a call leads to, through calls within them."""
    for name in called(start):
        where = module.computations.get(name)
        if where is None:
            continue
        yield where
        for each in where.instructions:
            if each.opcode in ("call", "call-start", "async-start"):
                yield from _reached(module, each)


def _copied(start: Instruction) -> Use:
    """A copy between two memories: of HBM with the chip's own, or with the host.

    Of a slice and of an update in place only that part crosses.
    """
    shape = start.shape
    if start.opcode == "copy-start" or isinstance(shape, Shape):
        sides = start.arrays[:2]
    elif start.opcode == "dynamic-update-slice-start":
        whole, update = arrays(shape[0])[:2]
        sides = (replace(update, space=whole.space), update)
    else:
        made = arrays(shape[1])
        sides = (*made, *(replace(array, space=made_of.space) for array, made_of
                          in zip(made, arrays(shape[0]), strict=False)))  # fmt: skip
    if HOST in {side.space for side in sides}:
        what = What.TO_HOST if sides[0].space == HOST else What.FROM_HOST
        return Use(what, Role.START, bytes=sides[0].bytes, dtype=sides[0].dtype)
    nbytes = bytes_of(side for side in sides if side.space == HBM)
    return Use(What.DMA, Role.START, bytes=nbytes, dtype=dtype_of(sides))


def _fed(where: Computation, instruction: Instruction) -> Use:
    """What the host sends in, or takes out."""
    if instruction.opcode == "infeed":
        moved, what = instruction.arrays, What.FROM_HOST
    else:
        moved, what = _operands(where, instruction), What.TO_HOST
    return Use(what, Role.SYNC, bytes=bytes_of(moved), dtype=dtype_of(moved))


def _done(module: Module, where: Computation, instruction: Instruction) -> Use | None:
    """The wait for a start; its data are those of the start where that stands in sight."""
    operand = instruction.operands[0] if instruction.operands else ""
    if instruction.opcode.endswith("-update"):
        return Use(What.NOTHING, Role.STEP, operand=operand)
    at = operand
    while at in where and where[at].opcode.endswith("-update") and where[at].operands:
        at = where[at].operands[0]
    started = use_of(module, where, where[at]) if at in where else None
    if started is None:
        return Use(What.NOTHING, Role.DONE, operand=operand)
    crosses = instruction.opcode == "send-done" and started.what is What.COLLECTIVE
    if crosses and _received(where, started.chain):
        return Use(What.NOTHING, Role.DONE)
    return replace(started, role=Role.DONE, operand=at)


def _received(where: Computation, chain: str) -> bool:
    """Whether what crosses slices is waited for where it arrives.

    The end of its send only says that the host has taken the data over; the network comes after.
    """
    received = (each for each in where.instructions if each.opcode == "recv")
    return any(sent(each).chain == chain for each in received)
