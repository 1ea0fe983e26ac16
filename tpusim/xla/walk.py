"""The walk over a compiled module in its order, which is the order of issue.

A `while` becomes a loop, a start an asynchronous operation, and its done the point at which the
core waits. What the compiler fused is one operation on the core.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tpusim.hardware.chip import DTYPES
from tpusim.phase import Phase
from tpusim.program import (
    Alloc,
    Collective,
    Compute,
    Dep,
    Flops,
    Loop,
    Mode,
    Op,
    Transfer,
    TransferKind,
    Wait,
)
from tpusim.xla.attributes import called, op_name
from tpusim.xla.branches import costliest
from tpusim.xla.collectives import use_of
from tpusim.xla.laying import Laid
from tpusim.xla.memory import Change
from tpusim.xla.module import Computation, Instruction, Module
from tpusim.xla.naming import bearer
from tpusim.xla.passes import before_forward, phase_of, scope_of
from tpusim.xla.places import Places, name_and_line
from tpusim.xla.trips import trips
from tpusim.xla.uses import Role, Use, What
from tpusim.xla.work import Costs, instruction_work, is_free

NO_CHANGE = Change()
TRANSFERS = {
    What.DMA: TransferKind.DMA,
    What.TO_HOST: TransferKind.TO_HOST,
    What.FROM_HOST: TransferKind.FROM_HOST,
    What.SPARSECORE: TransferKind.SPARSECORE,
}


@dataclass(slots=True)
class Walk:
    """What the computations of one module share while they are lowered.

    held: what instructions take of HBM and free. costs: whose they are. dtypes: what the chip
    multiplies. notes, unknown: what was assumed, and why operations are not understood. places:
    whose code it is.
    """

    module: Module
    laid: Laid
    costs: Costs
    training: bool
    held: Mapping[str, Change]
    dtypes: Collection[str] = DTYPES
    notes: dict[str, None] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    places: Places = field(init=False)
    _names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = Places(self.module.frames)

    def body(self, name: str, phase: Phase, around: Instruction | None = None) -> tuple[Op, ...]:
        """The operations of a computation, in its order; around: the loop or call that runs it."""
        return _Body(self, self.module.computations[name], phase, around).lowered()

    def unique(self, name: str) -> str:
        """A name for an operation; a computation that is called twice gives two."""
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name} ({count})"

    def note(self, text: str) -> None:
        """Say something once."""
        self.notes[text] = None


@dataclass(slots=True)
class _Body:
    """One computation while it is lowered.

    phase: of the last instruction whose name says it. around: the loop or call that runs it, whose
    name those bear that have none. started: the operation of each start, and of
    each chain of instructions that are one collective. hoped: chains of which an end stands here.
    waiting: what is done before the core goes on. taken, freed: what instructions that are no
    operation take and free. early: what the forward pass is made from.
    """

    walk: Walk
    computation: Computation
    phase: Phase
    around: Instruction | None
    ops: list[Op] = field(default_factory=list)
    started: dict[str, str] = field(default_factory=dict)
    hoped: set[str] = field(default_factory=set)
    waiting: dict[Dep, None] = field(default_factory=dict)
    taken: list[Alloc] = field(default_factory=list)
    freed: list[str] = field(default_factory=list)
    early: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.early = before_forward(self.computation) if self.walk.training else frozenset()

    def lowered(self) -> tuple[Op, ...]:
        """All operations of the computation."""
        for instruction in self.computation.instructions:
            self.phase = self._phase(instruction, instruction) or self.phase
            change, before = self.walk.held.get(instruction.name, NO_CHANGE), len(self.ops)
            self.taken += change.allocs
            self._enter(instruction)
            self._free(change.frees, before)
        self._settle(f"end of {self.computation.name}")
        return tuple(self.ops)

    def _free(self, tensors: tuple[str, ...], before: int) -> None:
        """An operation of the core frees what it reads last; else the next one does."""
        last = self.ops[-1] if len(self.ops) > before else None
        if isinstance(last, Compute) and tensors:
            self.ops[-1] = replace(last, frees=(*last.frees, *tensors))
        else:
            self.freed += tensors

    def _enter(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode == "while":
            self._loop(instruction)
        elif opcode == "conditional":
            self._call(instruction, costliest(self.walk.module, instruction, self.walk.note))
        elif opcode == "call":
            self._call(instruction, called(instruction, "to_apply"))
        elif (use := use_of(self.walk.module, self.computation, instruction)) is not None:
            self._moves(instruction, use)
        elif not is_free(instruction):
            self._compute(instruction)

    def _moves(self, instruction: Instruction, use: Use) -> None:
        if use.note:
            self.walk.note(use.note)
        if use.role is Role.STEP and use.what is not What.NOTHING:
            self.started[instruction.name] = self._begun(use)
            self._compute(instruction)
        elif use.role is Role.DONE:
            if begun := self._begun(use):
                self.waiting[Dep(begun)] = None
            elif use.operand:
                self.walk.note(
                    f"{instruction.name} ends what begins elsewhere: nothing waits for it"
                )
        elif use.what is not What.NOTHING:
            self._transfer(instruction, use)
        elif use.chain:
            self.started[instruction.name] = use.chain
            self.hoped.add(use.chain)

    def _loop(self, loop: Instruction) -> None:
        count = trips(self.walk.module, self.computation, loop)
        if count is None:
            called_so = name_and_line(self.walk.module.frames, loop)
            self.walk.note(f"the trips of loop {called_so} cannot be read: it is counted once")
        self._settle(f"before {loop.name}")
        bodies = called(loop, "body") if count != 0 else ()
        for body in bodies:
            ops = self.walk.body(body, self.phase, self._bears(loop))
            if ops:
                name = self.walk.unique(loop.name)
                self.ops.append(Loop(name=name, trips=1 if count is None else count, body=ops))

    def _call(self, call: Instruction, names: tuple[str, ...]) -> None:
        """What a called computation does is done here."""
        for name in names[:1]:
            self._settle(f"before {name}")
            self.ops += self.walk.body(name, self.phase, self._bears(call))

    def _transfer(self, instruction: Instruction, use: Use) -> None:
        """A transfer that the core waits for, or that runs beside it to its done."""
        named, sync = self._named(instruction), use.role is Role.SYNC
        if not sync:
            self.started[instruction.name] = named["name"]
            if use.chain:
                self.started[use.chain] = named["name"]
        if use.what is not What.COLLECTIVE or use.kind is None:
            op = Transfer(
                **named, deps=tuple(self.waiting), kind=TRANSFERS[use.what], bytes=use.bytes
            )
            self.ops.append(op)
            if sync:
                self.waiting[Dep(op.name)] = None
            return
        life = self._life() if sync else {"deps": tuple(self.waiting)}
        self.ops.append(
            Collective(
                **named, **life, kind=use.kind, axes=self._axes(use), bytes=use.bytes,
                dtype=use.dtype, mode=Mode.SYNC if sync else Mode.ASYNC, algorithm=use.algorithm,
                hbm=use.hbm,
            )
        )  # fmt: skip

    def _axes(self, use: Use) -> tuple[str, ...]:
        """The axes of its groups; of what crosses slices alone, those that run across them."""
        laid = self.walk.laid
        if use.groups is not None:
            return laid.of(use.groups)
        return laid.between(use.slices)

    def _begun(self, use: Use) -> str:
        """The operation that a done or a step belongs to: by its chain, or by what it reads."""
        if use.chain in self.started:
            return self.started[use.chain]
        at, seen = use.operand, set()
        while at not in self.started and at in self.computation and at not in seen:
            seen.add(at)
            operands = self.computation[at].operands
            at = operands[0] if operands else ""
        begun = self.started.get(at, "")
        found = self.started.get(begun, begun)
        return "" if found in self.hoped else found

    def _compute(self, instruction: Instruction) -> None:
        found = instruction_work(self.walk.module, self.computation, instruction)
        named = self._named(instruction, multiplies=found.flops > 0)
        if not found.understood:
            self.walk.unknown[named["name"]] = found.note
        elif found.note:
            self.walk.note(found.note)
        flops = found.flops * self.walk.laid.devices
        again = named["phase"] is Phase.RECOMPUTE
        self.ops.append(
            Compute(
                **named, **self._life(), work=found.by(self.walk.costs, self.walk.dtypes),
                flops=Flops(recompute=flops) if again else Flops(model=flops),
            )
        )  # fmt: skip

    def _named(self, instruction: Instruction, multiplies: bool = False) -> dict[str, Any]:
        """Name, pass, scope and lines of an operation.

        What bears a name of its own, or is made around what does, is of that one's pass; so is a
        product without a name, as the compiler does not move it like a copy.
        """
        bears = self._bears(instruction)
        own = bears is instruction or bears.name not in self.computation or multiplies
        phase = self._phase(instruction, bears) if own else None
        return {
            "name": self.walk.unique(instruction.name),
            "phase": phase or self.phase,
            "scope": scope_of(op_name(bears)),
            **self.walk.places.origin(bears, self.around)._asdict(),
        }

    def _phase(self, instruction: Instruction, bears: Instruction) -> Phase | None:
        """The pass that the name which an instruction bears says."""
        found = phase_of(op_name(bears), self.walk.training)
        early = found is Phase.OPTIMIZER and instruction.name in self.early
        return Phase.FORWARD if early else found

    def _bears(self, instruction: Instruction) -> Instruction:
        """The instruction whose name it goes by."""
        found = bearer(self.walk.module, self.computation, instruction)
        return found if op_name(found) or self.around is None else self.around

    def _settle(self, name: str) -> None:
        """Let the core wait for all that it must, where no operation comes that could."""
        if self.waiting or self.taken or self.freed:
            self.ops.append(Wait(name=self.walk.unique(name), phase=self.phase, **self._life()))

    def _life(self) -> dict[str, Any]:
        """What the next operation of the core waits for, takes and frees."""
        life = {
            "deps": tuple(self.waiting), "allocs": tuple(self.taken), "frees": tuple(self.freed)
        }  # fmt: skip
        self.waiting, self.taken, self.freed = {}, [], []
        return life
