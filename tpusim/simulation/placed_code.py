"""The engine's code of a step on each of its placements.

Placements that share their programs (`SharedLowerings`) differ in what collectives take. So a
program of one lane is compiled once, and on further placements only the steps of its collectives
are exchanged, whose numbers are worked out once for each place of their axes. The bound of a
placement is then a sum; its code is put together if it is simulated. Of a pipeline, the steps of
the messages between its stages are exchanged too.

Slices wait for each other for a share of the step: their programs are compiled as a whole on each
placement.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypeAlias

from tpusim.costs import (
    CollectiveCosts,
    CostedProgram,
    KnownParts,
    StageMessageCosts,
    Task,
    TransferPart,
    collective_key,
    cost_programs,
    first_phase,
)
from tpusim.engine import (
    ON_CORE,
    LaneCode,
    LinkNumbers,
    PipelineCode,
    TaskNumbers,
    TaskStep,
    compile_lane,
    compile_pipeline,
    has_calls,
    link_numbers,
    task_numbers,
)
from tpusim.hardware import Placement, Slice
from tpusim.pipeline.planned_step import Programs
from tpusim.program import Collective, Mode, Program, walk_ops
from tpusim.simulation.loads import core_ps

CostedPart: TypeAlias = tuple[TransferPart, TaskNumbers]
"""A part of a collective, and its numbers in the engine's units."""

MOST_PARTS = 32_768
"""Kinds and places of collectives of one slice that are kept."""


@dataclass(slots=True)
class PlacedCode:
    """A step on a placement.

    core_ps: picoseconds of the core's tasks, one after the other: no step is shorter.
    put_together: makes its code.
    """

    core_ps: int
    put_together: Callable[[], LaneCode | PipelineCode]
    _code: LaneCode | PipelineCode | None = None

    @property
    def code(self) -> LaneCode | PipelineCode:
        """Its code, put together when it is first asked for."""
        if self._code is None:
            self._code = self.put_together()
        return self._code


Codes: TypeAlias = "LaneCodes | PipelineCodes | WholeCodes"


def placed_codes(programs: Programs, pod: Slice) -> Codes:
    """Return the step of these programs by its placement."""
    if pod.num_slices > 1:
        return WholeCodes(programs, pod)
    if not any(program.segments for program in programs):
        return LaneCodes(programs[0], pod)
    piped = PipelineCodes(programs, pod)
    return piped if piped.are_named_apart else WholeCodes(programs, pod)


@dataclass(frozen=True, slots=True)
class WholeCodes:
    """Programs that are compiled as a whole on each placement."""

    programs: Programs
    pod: Slice
    _known: KnownParts = field(default_factory=dict)

    def on(self, placement: Placement) -> PlacedCode:
        """Return the programs on a placement."""
        lanes = cost_programs(self.programs, self.pod, placement, self._known)
        code = compile_pipeline(lanes) if has_calls(lanes) else compile_lane(lanes[0])
        return PlacedCode(core_ps(code), lambda: code)


class SliceCosts:
    """The costs of collectives on one slice by kind and place, shared by all steps."""

    def __init__(self) -> None:
        self.parts: KnownParts = {}
        self._costed: dict[Hashable, tuple[CostedPart, ...]] = {}
        self._links: LinkNumbers | None = None

    def of(
        self, kind: "_Kind", spans: Hashable, machine: Callable[[], CollectiveCosts]
    ) -> tuple[CostedPart, ...]:
        """Return the parts of a kind of collectives.

        spans: where its axes lie on the torus.
        machine: makes the costs of that place; called only if the parts are not known yet.
        """
        key = kind.key, spans
        found = self._costed.get(key)
        if found is None:
            found = self._costed[key] = self._new(kind.op, machine())
        return found

    def of_all(
        self,
        kinds: Sequence["_Kind"],
        placement: Placement,
        machine: Callable[[], CollectiveCosts],
    ) -> list[tuple[CostedPart, ...]]:
        """Return the parts of each kind of collectives on a placement."""
        spans = dict(placement.axes)
        return [
            self.of(kind, tuple([spans.get(axis) for axis in kind.op.axes]), machine)
            for kind in kinds
        ]

    def _new(self, op: Collective, machine: CollectiveCosts) -> tuple[CostedPart, ...]:
        if len(self._costed) > MOST_PARTS:
            self._costed.clear()
            self.parts.clear()
        if self._links is None:
            self._links = link_numbers(machine.link_rates)
        links = self._links
        return tuple((part, task_numbers(op.name, part, links)) for part in machine.parts(op))


@lru_cache(maxsize=2)
def slice_costs(pod: Slice) -> SliceCosts:
    """Return the costs of collectives on a slice: the same object for equal slices."""
    return SliceCosts()


@dataclass(slots=True)
class _Kind:
    """The collectives of a program that cost the same wherever they lie.

    number: its index among the kinds of the program.
    op: one of them.
    key: see `collective_key`.
    times: their executions per step.
    """

    number: int
    op: Collective
    key: Hashable
    times: int = 0


def _kinds_of(programs: Programs) -> tuple[tuple[_Kind, ...], list[tuple[str, int]]]:
    """Return the kinds of the programs' collectives, and name and kind of each collective."""
    kinds: dict[Hashable, _Kind] = {}
    ops: list[tuple[str, int]] = []
    for program in programs:
        for op, times in walk_ops(program.body, program.segments):
            if isinstance(op, Collective):
                key = collective_key(op)
                kind = kinds.get(key)
                if kind is None:
                    kind = kinds[key] = _Kind(len(kinds), op, key)
                kind.times += times
                ops.append((op.name, kind.number))
    return tuple(kinds.values()), ops


class LaneCodes:
    """A program of one lane, compiled once but for the steps of its collectives.

    kinds: of its collectives.
    ops: the name of each collective, and the number of its kind.
    """

    def __init__(self, program: Program, pod: Slice) -> None:
        self.program, self.pod = program, pod
        self._costs = slice_costs(pod)
        self._templates: dict[tuple[int, ...], LaneTemplate] = {}
        self.kinds, self.ops = _kinds_of((program,))

    def on(self, placement: Placement) -> PlacedCode:
        """Return the program on a placement."""
        costs = self._costs
        machine = partial(CollectiveCosts.of, self.program, self.pod, placement, costs.parts)
        parts = costs.of_all(self.kinds, placement, machine)
        shape = tuple(map(len, parts))
        template = self._templates.get(shape)
        if template is None:
            template = self._templates[shape] = self._template(shape, placement)
        waits = sum(
            kind.times * sum([numbers.alone_ps for _, numbers in some])
            for kind, some in zip(self.kinds, parts, strict=True)
            if kind.op.mode is Mode.SYNC
        )
        return PlacedCode(template.core_ps + waits, partial(template.with_parts, parts))

    def _template(self, shape: Sequence[int], placement: Placement) -> "LaneTemplate":
        """Return the code on a placement, for all on which collectives have as many parts."""
        (lane,) = cost_programs((self.program,), self.pod, placement, self._costs.parts)
        code = compile_lane(lane)
        places = {step.task.name: step.index for step in code.steps}
        slots = tuple((kind, places[name] - shape[kind] + 1) for name, kind in self.ops)
        return LaneTemplate.of(code, slots, shape)


class PipelineCodes:
    """The programs of a pipeline on one slice, compiled once but for collectives and messages.

    kinds: of their collectives.
    """

    def __init__(self, programs: Programs, pod: Slice) -> None:
        self.programs, self.pod = programs, pod
        self._costs = slice_costs(pod)
        self._templates: dict[tuple[int, ...], _PipelineTemplate] = {}
        self.kinds, named = _kinds_of(programs)
        self._kind_of = dict(named)
        self.are_named_apart = len(self._kind_of) == len(set(named))

    def on(self, placement: Placement) -> PlacedCode:
        """Return the programs on a placement."""
        machine = CollectiveCosts.of(self.programs[0], self.pod, placement, self._costs.parts)
        parts = self._costs.of_all(self.kinds, placement, lambda: machine)
        shape = tuple(map(len, parts))
        template = self._templates.get(shape)
        if template is None:
            template = self._templates[shape] = self._template(shape, placement)
        code = template.with_parts(parts, StageMessageCosts(machine, len(self.programs)))
        return PlacedCode(core_ps(code), lambda: code)

    def _template(self, shape: Sequence[int], placement: Placement) -> "_PipelineTemplate":
        """Return the code on a placement, for all on which collectives have as many parts."""
        lanes = cost_programs(self.programs, self.pod, placement, self._costs.parts)
        code = compile_pipeline(lanes)
        made = []
        for part in code.parts:
            places = [(step.task.name, step.index) for step in part.code.steps]
            known = [(self._kind_of[name], at) for name, at in places if name in self._kind_of]
            slots = tuple((kind, at - shape[kind] + 1) for kind, at in known)
            made.append(LaneTemplate.of(part.code, slots, shape))
        return _PipelineTemplate(code, tuple(made), self.programs, lanes)


@dataclass(frozen=True, slots=True)
class _PipelineTemplate:
    """A pipeline whose codes differ in the steps of collectives and messages.

    parts: one for each part of its code.
    lanes: its costed programs on one placement.
    """

    code: PipelineCode
    parts: tuple["LaneTemplate", ...]
    programs: Programs
    lanes: tuple[CostedProgram, ...]

    def with_parts(
        self, parts: Sequence[tuple[CostedPart, ...]], sends: StageMessageCosts
    ) -> PipelineCode:
        """Return the code with these parts of each kind of collective, and these messages."""
        lanes = []
        for stage, (program, lane) in enumerate(zip(self.programs, self.lanes, strict=True)):
            phases = {segment.name: first_phase(segment.body) for segment in lane.segments}
            messages = tuple(sends.messages(stage, program.body, phases))
            lanes.append(replace(lane, messages=messages))
        return self.code.with_numbers([part.with_parts(parts) for part in self.parts], lanes)


@dataclass(frozen=True, slots=True)
class LaneTemplate:
    """A code that differs from others in the steps of its collectives.

    slots: the kind of each collective, and the index of its first step.
    core_ps: picoseconds of the core's other steps.
    """

    code: LaneCode
    slots: tuple[tuple[int, int], ...]
    core_ps: int

    @classmethod
    def of(
        cls, code: LaneCode, slots: tuple[tuple[int, int], ...], shape: Sequence[int]
    ) -> "LaneTemplate":
        """Return the template of a code. shape: the number of steps of each kind of collective."""
        ours = {first + at for kind, first in slots for at in range(shape[kind])}
        rest = (
            times * step.alone_ps
            for step, times in code.runs()
            if step.stream == ON_CORE and step.index not in ours
        )
        return cls(code, slots, sum(rest))

    def with_parts(self, parts: Sequence[tuple[CostedPart, ...]]) -> LaneCode:
        """Return the code with these parts of each kind of collective."""
        changed = {
            first + at: _exchanged(self.code.steps[first + at], *part)
            for kind, first in self.slots
            for at, part in enumerate(parts[kind])
        }
        return self.code.with_steps(changed) if changed else self.code


def _exchanged(step: TaskStep, part: TransferPart, numbers: TaskNumbers) -> TaskStep:
    """Return a step in the place of another, which differs in its transfer only."""
    old = step.task
    task = Task(
        name=old.name,
        phase=old.phase,
        deps=old.deps,
        allocs=old.allocs,
        frees=old.frees,
        **part._asdict(),
    )
    return TaskStep(task, step.index, step.stream, *numbers, step.needs, step.takes, step.frees)
