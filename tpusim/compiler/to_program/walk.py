"""Translation of a compiled module's computations, in the order of issue.

A `while` becomes a loop, a start an asynchronous operation, and its done the point at which the
core waits. A fusion is one operation on the core.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tpusim.base.phase import Phase
from tpusim.compiler.hlo.attributes import callees, op_name
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.opcodes import COLLECTIVE_KINDS
from tpusim.compiler.to_program.branches import costliest_branch
from tpusim.compiler.to_program.collective_metadata import unnoted_algorithm
from tpusim.compiler.to_program.collectives import movement_of
from tpusim.compiler.to_program.data_movement import (
    AsyncRole,
    DataMovement,
    MovementKind,
    padding_share,
    total_bytes,
)
from tpusim.compiler.to_program.infer_mesh import InferredMesh
from tpusim.compiler.to_program.memory_profile import BufferChange
from tpusim.compiler.to_program.op_metadata import before_forward, name_bearer, phase_of, scope_of
from tpusim.compiler.to_program.source_locations import SourceLocations, name_and_line
from tpusim.compiler.to_program.trip_counts import trip_count
from tpusim.compiler.work.instruction_work import Costs, InstructionWork, instruction_work, is_free
from tpusim.hardware import DTYPES, CompilerRules
from tpusim.network import dimension_sizes
from tpusim.program import (
    Alloc,
    Collective,
    CollectivePart,
    Compute,
    Dep,
    Flops,
    Loop,
    Mode,
    Op,
    Transfer,
    TransferKind,
    WaitOp,
    Work,
)

TRANSFER_KINDS = {
    MovementKind.DMA: TransferKind.DMA,
    MovementKind.TO_HOST: TransferKind.TO_HOST,
    MovementKind.FROM_HOST: TransferKind.FROM_HOST,
    MovementKind.SPARSECORE: TransferKind.SPARSECORE,
}


@dataclass(slots=True)
class ModuleTranslation:
    """State that the computations of one module share while they are translated.

    costs: the compiler's or the model's.
    buffers: HBM that instructions allocate and free.
    dtypes: those that the chip multiplies.
    unnoted: the chip's rules if no code was generated, so that algorithms are not noted.
    padding_taps: True if FLOPs count the taps of convolutions on padding.
    notes: assumptions made.
    unknown: the reasons why operations are not understood, by name.
    estimated: the model's work and the compiler's cycles of operations that have both, by name.
    padding_flops: FLOPs of taps on padding, on all devices, by the name of the operation.
    """

    module: HloModule
    mesh: InferredMesh
    costs: Costs
    training: bool
    buffers: Mapping[str, BufferChange]
    dtypes: Collection[str] = DTYPES
    unnoted: CompilerRules | None = None
    padding_taps: bool = True
    notes: dict[str, None] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    estimated: dict[str, tuple[Work, int]] = field(default_factory=dict)
    padding_flops: dict[str, float] = field(default_factory=dict)
    locations: SourceLocations = field(init=False)
    _names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.locations = SourceLocations(self.module.frames)

    def body(self, name: str, phase: Phase, around: Instruction | None = None) -> tuple[Op, ...]:
        """Return a computation's operations in order; around: the loop or call that runs it."""
        return _ComputationTranslation(
            self, self.module.computations[name], phase, around
        ).translate()

    def unique(self, name: str) -> str:
        """Return a unique name for an operation: a computation may be called twice."""
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name} ({count})"

    def note(self, text: str) -> None:
        """Add a note once."""
        self.notes[text] = None


@dataclass(slots=True)
class _ComputationTranslation:
    """One computation while it is translated.

    phase: that of the last instruction whose name has one.
    around: the loop or call that runs the computation, whose name those without one take.
    started: the operation of each start, and of each chain of instructions that are one collective.
    received: chains of which a receive is here, with or without its send.
    deps: dependencies that the core must wait for.
    allocs, frees: of instructions that are no operation.
    early: instructions from which the forward pass is computed.
    """

    walk: ModuleTranslation
    computation: Computation
    phase: Phase
    around: Instruction | None
    ops: list[Op] = field(default_factory=list)
    started: dict[str, str] = field(default_factory=dict)
    received: set[str] = field(default_factory=set)
    deps: dict[Dep, None] = field(default_factory=dict)
    allocs: list[Alloc] = field(default_factory=list)
    frees: list[str] = field(default_factory=list)
    early: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.early = before_forward(self.computation) if self.walk.training else frozenset()

    def translate(self) -> tuple[Op, ...]:
        """Return all operations of the computation."""
        for instruction in self.computation.instructions:
            self.phase = self._named_phase(instruction, instruction) or self.phase
            change = self.walk.buffers.get(instruction.name, BufferChange())
            before = len(self.ops)
            self.allocs += change.allocs
            self._enter(instruction)
            self._free(change.frees, before)
        self._wait(f"end of {self.computation.name}")
        return tuple(self.ops)

    def _free(self, tensors: tuple[str, ...], before: int) -> None:
        """Free tensors with the operation that reads them last, if new; otherwise with the next."""
        last = self.ops[-1] if len(self.ops) > before else None
        if isinstance(last, Compute) and tensors:
            self.ops[-1] = replace(last, frees=(*last.frees, *tensors))
        else:
            self.frees += tensors

    def _enter(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode == "while":
            self._loop(instruction)
        elif opcode == "conditional":
            self._call(instruction, costliest_branch(self.walk.module, instruction, self.walk.note))
        elif opcode == "call":
            self._call(instruction, callees(instruction, "to_apply"))
        else:
            movement = movement_of(self.walk.module, self.computation, instruction)
            if movement is not None:
                self._move(instruction, movement)
            elif not is_free(instruction):
                self._compute(instruction)

    def _move(self, instruction: Instruction, movement: DataMovement) -> None:
        if movement.note:
            self.walk.note(movement.note)
        moves = movement.kind is not MovementKind.NOTHING
        if movement.role is AsyncRole.STEP and moves:
            self.started[instruction.name] = self._start_of(movement)
            self._compute(instruction)
        elif movement.role is AsyncRole.DONE:
            if start := self._start_of(movement):
                self.deps[Dep(start)] = None
            elif movement.operand:
                name = instruction.name
                self.walk.note(
                    f"{name} ends a transfer that starts elsewhere: nothing waits for it"
                )
        elif moves:
            self._transfer(instruction, movement)
        elif movement.chain:
            self.started[instruction.name] = movement.chain
            self.received.add(movement.chain)

    def _loop(self, loop: Instruction) -> None:
        count = trip_count(self.walk.module, self.computation, loop)
        if count is None:
            label = name_and_line(self.walk.module.frames, loop)
            self.walk.note(f"the trip count of loop {label} cannot be read: it is counted once")
        self._wait(f"before {loop.name}")
        for body in callees(loop, "body") if count != 0 else ():
            ops = self.walk.body(body, self.phase, self._name_bearer(loop))
            if ops:
                name = self.walk.unique(loop.name)
                self.ops.append(Loop(name=name, trips=1 if count is None else count, body=ops))

    def _call(self, call: Instruction, names: tuple[str, ...]) -> None:
        for name in names[:1]:
            self._wait(f"before {name}")
            self.ops += self.walk.body(name, self.phase, self._name_bearer(call))

    def _transfer(self, instruction: Instruction, movement: DataMovement) -> None:
        """Add a transfer that the core waits for, or that runs beside it until its done."""
        named, sync = self._identity(instruction), movement.role is AsyncRole.SYNC
        if not sync:
            self.started[instruction.name] = named["name"]
            if movement.chain:
                self.started[movement.chain] = named["name"]
        if movement.kind is not MovementKind.COLLECTIVE or movement.collective is None:
            kind = TRANSFER_KINDS[movement.kind]
            self.ops.append(
                Transfer(**named, deps=tuple(self.deps), kind=kind, bytes=movement.bytes)
            )
            if sync:
                self.deps[Dep(named["name"])] = None
            return
        life = self._take_life() if sync else {"deps": tuple(self.deps)}
        axes = self._axes(movement)
        self.ops.append(
            Collective(
                **named,
                **life,
                kind=movement.collective,
                axes=axes,
                bytes=movement.bytes,
                padded=movement.padded,
                dtype=movement.dtype,
                tensor=movement.tensor,
                mode=Mode.SYNC if sync else Mode.ASYNC,
                algorithm=movement.algorithm or (self._unnoted(movement, axes) if sync else ""),
                hbm=movement.hbm,
                parts=self._parts(instruction, movement.bytes),
            )
        )

    def _unnoted(self, movement: DataMovement, axes: tuple[str, ...]) -> str:
        """Return the algorithm that generating code would have noted; empty for the default."""
        mesh, rules = self.walk.mesh, self.walk.unnoted
        within = axes and not set(axes) & set(mesh.axes_across(None))
        if rules is None or not within or mesh.placement.listed_as(axes):
            return ""
        spans = tuple(span for axis in axes for span in mesh.placement.spans(axis))
        assert movement.collective is not None
        sides = dimension_sizes(spans).values()
        devices = prod(span.size for span in spans)
        return unnoted_algorithm(rules, movement.collective, sides, devices, movement.bytes)

    def _parts(self, instruction: Instruction, nbytes: float) -> tuple[CollectivePart, ...]:
        """Return the tensors that a collective moves together, if they are several.

        Each has the name and the line of the instruction that made it. Those in a fusion, whose
        makers are outside of it, are not told apart.
        """
        if instruction.opcode.removesuffix("-start") not in COLLECTIVE_KINDS:
            return ()
        known = (name for name in instruction.operands if name in self.computation)
        operands = [self.computation[name] for name in known]
        sizes = [total_bytes(operand.arrays) for operand in operands]
        if len(operands) < 2 or not all(sizes):
            return ()
        return tuple(
            self._part(operand, nbytes * size / sum(sizes))
            for operand, size in zip(operands, sizes, strict=True)
        )

    def _part(self, operand: Instruction, nbytes: float) -> CollectivePart:
        bearer = self._name_bearer(operand)
        at = self.walk.locations.origin(bearer, self.around)
        return CollectivePart(
            scope=scope_of(op_name(bearer)),
            bytes=nbytes,
            source=at.source,
            callers=at.callers,
            padded=nbytes * padding_share(operand.arrays),
        )

    def _axes(self, movement: DataMovement) -> tuple[str, ...]:
        """Return the axes of its groups; for pure DCN transfers, those that run across slices."""
        if movement.groups is not None:
            return self.walk.mesh.axes_of(movement.groups)
        return self.walk.mesh.axes_across(movement.slices)

    def _start_of(self, movement: DataMovement) -> str:
        """Return the operation of a done or a step: by its chain, or by its operands."""
        if movement.chain in self.started:
            return self.started[movement.chain]
        at, seen = movement.operand, set()
        while at not in self.started and at in self.computation and at not in seen:
            seen.add(at)
            operands = self.computation[at].operands
            at = operands[0] if operands else ""
        start = self.started.get(at, "")
        found = self.started.get(start, start)
        return "" if found in self.received else found

    def _compute(self, instruction: Instruction) -> None:
        found = instruction_work(self.walk.module, self.computation, instruction)
        named = self._identity(instruction, multiplies=found.flops > 0)
        if not found.understood:
            self.walk.unknown[named["name"]] = found.note
        elif found.note:
            self.walk.note(found.note)
        model = found.costed_by("model", self.walk.dtypes)
        if found.cycles is not None and found.understood:
            self.walk.estimated[named["name"]] = model, found.cycles
        again = named["phase"] is Phase.RECOMPUTE
        flops = self._flops(named["name"], found)
        self.ops.append(
            Compute(
                **named,
                **self._take_life(),
                work=found.costed_by(self.walk.costs, self.walk.dtypes),
                flops=Flops(recompute=flops) if again else Flops(model=flops),
            )
        )

    def _flops(self, name: str, found: InstructionWork) -> float:
        """Return the FLOPs of an operation on all devices, and note those of taps on padding."""
        devices = self.walk.mesh.devices
        if found.padding_flops:
            self.walk.padding_flops[name] = devices * found.padding_flops
        counted = found.flops if self.walk.padding_taps else found.flops - found.padding_flops
        return devices * counted

    def _identity(self, instruction: Instruction, multiplies: bool = False) -> dict[str, Any]:
        """Return name, phase, scope and source lines of an operation.

        The phase is that of the instruction whose name it takes, if that is its own or of the same
        computation. It also is for a dot without a name, which the compiler does not move as it
        moves copies.
        """
        bearer = self._name_bearer(instruction)
        own = bearer is instruction or bearer.name not in self.computation or multiplies
        phase = self._named_phase(instruction, bearer) if own else None
        return {
            "name": self.walk.unique(instruction.name),
            "phase": phase or self.phase,
            "scope": scope_of(op_name(bearer)),
            **self.walk.locations.origin(bearer, self.around)._asdict(),
        }

    def _named_phase(self, instruction: Instruction, bearer: Instruction) -> Phase | None:
        """Return the phase of a name; that of the loop around for what needs no gradient in it.

        Sines of positions, for example, are outside the differentiated function by their name, and
        in the loop over layers all the same.
        """
        found = phase_of(op_name(bearer), self.walk.training)
        if found is not Phase.OPTIMIZER:
            return found
        around = op_name(self.around) if self.around is not None else ""
        inside = phase_of(around, self.walk.training)
        if inside not in (None, Phase.OPTIMIZER):
            return inside
        return Phase.FORWARD if instruction.name in self.early else found

    def _name_bearer(self, instruction: Instruction) -> Instruction:
        found = name_bearer(self.walk.module, self.computation, instruction)
        return found if op_name(found) or self.around is None else self.around

    def _wait(self, name: str) -> None:
        """Let the core wait for open dependencies before a boundary without an operation."""
        if self.deps or self.allocs or self.frees:
            op = WaitOp(name=self.walk.unique(name), phase=self.phase, **self._take_life())
            self.ops.append(op)

    def _take_life(self) -> dict[str, Any]:
        """Return dependencies, allocations and frees of the next core operation, and clear them."""
        life = {"deps": tuple(self.deps), "allocs": tuple(self.allocs), "frees": tuple(self.frees)}
        self.deps, self.allocs, self.frees = {}, [], []
        return life
