"""What an instruction of compiled HLO moves between devices, or beside the core on one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tpusim.network import Algorithm
from tpusim.program import CollectiveKind
from tpusim.xla.attributes import backend_config, called, target
from tpusim.xla.groups import Groups, read_groups
from tpusim.xla.module import Computation, Instruction, Module
from tpusim.xla.shapes import HBM, HOST, Shape, arrays
from tpusim.xla.work import instruction_work, is_free

KINDS: Mapping[str, CollectiveKind] = {
    "all-gather": CollectiveKind.ALL_GATHER,
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
    "ragged-all-to-all": CollectiveKind.ALL_TO_ALL,
    "collective-permute": CollectiveKind.PERMUTE,
    "collective-broadcast": CollectiveKind.BROADCAST,
}
"""The collectives of HLO by opcode."""

PLUMBING = ("AllocateBuffer", "PrepareAsyncCallStart", "PrepareAsyncCallDone", "SliceId")
"""Custom calls of the TPU compiler that neither compute nor move anything."""


class What(StrEnum):
    """What moves: between devices, on or off the chip's memory, to the host, on a SparseCore."""

    COLLECTIVE = "collective"
    DMA = "dma"
    TO_HOST = "to-host"
    FROM_HOST = "from-host"
    SPARSECORE = "sparsecore"
    NOTHING = "nothing"


class Role(StrEnum):
    """Which part of it an instruction is.

    sync: all of it, and the core waits. start: its start. step: a fusion that computes while the
    transfer goes on. done: the wait for its end; `Use.operand` leads to its start.
    """

    SYNC = "sync"
    START = "start"
    STEP = "step"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Use:
    """What an instruction moves.

    bytes: of a collective as `program.Collective` counts them; of a DMA, what it reads and writes
    of HBM; of a SparseCore, what it reads and writes; with the host, what passes. groups: device
    ids, of collectives. slices: groups or pairs of slices, of what crosses DCN alone.
    operand: what a done or a step takes the transfer from: its start, or the tuple, loop or step
    that hands it on. chain: the same for all instructions of a collective that is woven into
    fusions, and for a send and its recv. algorithm: what the compiler names, else nothing.
    note: what is not known of it.
    """

    what: What
    role: Role
    kind: CollectiveKind | None = None
    bytes: float = 0.0
    dtype: str = ""
    groups: Groups | None = None
    slices: tuple[tuple[int, ...], ...] = ()
    operand: str = ""
    chain: str = ""
    algorithm: str = ""
    note: str = ""


NOTHING = Use(What.NOTHING, Role.SYNC)


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
        return _sent(instruction)
    if opcode.endswith(("-done", "-update")):
        return _done(module, where, instruction)
    if opcode in ("infeed", "outfeed"):
        return _fed(where, instruction)
    if opcode in ("after-all", "add-dependency"):
        return NOTHING
    return NOTHING if opcode == "custom-call" and target(instruction) in PLUMBING else None


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
    module: Module, where: Computation, instruction: Instruction, role: Role = Role.SYNC
) -> Use:  # fmt: skip
    """A collective that stands alone, or its start."""
    started = instruction.opcode.endswith("-start")
    kind = KINDS[instruction.opcode.removesuffix("-start")]
    groups = _groups(module, instruction)
    made = _results(instruction)
    nbytes = _bytes(made)
    if kind is CollectiveKind.REDUCE_SCATTER and groups is not None:
        nbytes *= groups.size
    if instruction.opcode == "ragged-all-to-all":
        nbytes = min(nbytes, _bytes(_operands(where, instruction)[:1]) or nbytes)
    how, note = algorithm_of(kind, backend_config(instruction))
    found = _FOUND_CHAIN.search(instruction.attributes)
    return Use(
        What.COLLECTIVE, Role.START if started else role, kind, nbytes, _dtype(made), groups,
        chain=f"chain {found[1]}" if found else "", algorithm=how,
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


def _bytes(shapes: Iterable[Shape]) -> float:
    return sum(shape.bytes for shape in shapes)


def _dtype(shapes: Iterable[Shape]) -> str:
    """The dtype of the largest array."""
    largest = max(shapes, key=lambda shape: shape.bytes, default=None)
    return largest.dtype if largest else ""


def algorithm_of(kind: CollectiveKind, config: Mapping[str, Any]) -> tuple[str, str]:
    """The algorithm of `network.Algorithm` that the compiler's configuration names, and a note.

    Empty for what the kind's own is. The emitters are those of libtpu 0.0.42.1: gathers of one
    dimension run on one ring, of two and three on all of the group's, and so does the router that
    takes a whole v5e slice. Reductions are a ring, or have a phase for each dimension.
    """
    said = config.get("collective_algorithm_config")
    if not isinstance(said, dict) or not said.get("emitter"):
        return "", ""
    emitter, strategy = str(said["emitter"]), str(said.get("strategy", ""))
    if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE, CollectiveKind.BROADCAST):
        return "", "" if emitter in _PAIRS else f"emitter {emitter} is not known"
    if found := re.search(r"(\d)DAllGather", emitter):
        return (Algorithm.RING if found[1] == "1" else Algorithm.ND), ""
    if "NetRouter" in emitter:
        return Algorithm.ND, ""
    if "Ring" in emitter or strategy:
        phases = re.search(r"phases:(\d+)", str(said.get("debug", "")))
        many = "ND" in strategy and (phases is None or phases[1] != "1")
        return (Algorithm.ND if many else Algorithm.RING), ""
    return "", f"emitter {emitter} is not known"


_PAIRS = ("AllToAllEmitter", "NetRouterEmitter", "RaggedAllToAllEmitter")
"""Emitters of all-to-alls."""


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
        return _collective(module, inside, found[0], Role.START)
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
        uses[0], kind=kind, bytes=sum(use.bytes for use in uses), algorithm=how, note=note
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
        return Use(What.SPARSECORE, Role.START, bytes=nbytes, dtype=_dtype(moved))
    nbytes = _bytes(array for array in moved if array.space == HBM)
    return Use(What.DMA, Role.START, bytes=nbytes, dtype=_dtype(moved))


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
    nbytes = _bytes(side for side in sides if side.space == HBM)
    return Use(What.DMA, Role.START, bytes=nbytes, dtype=_dtype(sides))


_TARGETS = re.compile(r"(\d+)->(\d+)")
_SLICE_GROUPS = re.compile(r'_xla_megascale_target="?((?:\{[\d,]+\})+)x')
_TYPE = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_PER_SLICE = 100_000
"""Devices of slice n have the runtime's ids from n x 100,000 on; the first slice is 1."""


def _sent(instruction: Instruction) -> Use:
    """A send, with all that it moves, or the recv of the same name, which only ends with it.

    Over DCN (`xla_megascale_runtime`), to the host, or to another device of the slice.
    """
    text = instruction.attributes
    found = _RENDEZVOUS.search(text)
    chain = found[1] if found else re.sub(r".*?channel_id=(\d+).*", r"channel \1", text)
    if instruction.opcode == "recv" and (found or "is_host_transfer=true" not in text):
        return Use(What.NOTHING, Role.START, chain=chain)
    sent = instruction.arrays[:1]
    nbytes, dtype = _bytes(sent), _dtype(sent)
    if "_xla_megascale_target" not in text:
        what = What.TO_HOST if instruction.opcode == "send" else What.FROM_HOST
        return Use(what, Role.START, bytes=nbytes, dtype=dtype, chain=chain)
    slices = _slices(text)
    type_ = _TYPE.search(text)
    kind = _MEGASCALE.get(type_[1] if type_ else "")
    note = "" if kind else "the kind of transfer between slices is not known"
    if kind is CollectiveKind.ALL_GATHER:
        nbytes *= max((len(group) for group in slices), default=1)
    return Use(
        What.COLLECTIVE, Role.START, kind or CollectiveKind.PERMUTE, nbytes, dtype,
        slices=slices, chain=chain, note=note,
    )  # fmt: skip


def _slices(text: str) -> tuple[tuple[int, ...], ...]:
    """Groups or pairs of slices, from 0, that a transfer over DCN is between."""
    if listed := _SLICE_GROUPS.search(text):
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        return tuple(tuple(int(each) - 1 for each in group.split(",")) for group in groups)
    ends = ((int(a), int(b)) for a, b in _TARGETS.findall(text))
    return tuple(sorted({(a // _PER_SLICE - 1, b // _PER_SLICE - 1) for a, b in ends}))


_MEGASCALE = {
    "ONE_TO_ONE": CollectiveKind.PERMUTE,
    "ALL_REDUCE": CollectiveKind.ALL_REDUCE,
    "REDUCE_SCATTER": CollectiveKind.REDUCE_SCATTER,
    "ALL_GATHER": CollectiveKind.ALL_GATHER,
    "ALL_TO_ALL": CollectiveKind.ALL_TO_ALL,
}


def _fed(where: Computation, instruction: Instruction) -> Use:
    """What the host sends in, or takes out."""
    if instruction.opcode == "infeed":
        moved, what = instruction.arrays, What.FROM_HOST
    else:
        moved, what = _operands(where, instruction), What.TO_HOST
    return Use(what, Role.SYNC, bytes=_bytes(moved), dtype=_dtype(moved))


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
    return any(_sent(each).chain == chain for each in received)
