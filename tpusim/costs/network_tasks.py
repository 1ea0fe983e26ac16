"""The tasks of transfers between devices: collectives, and messages between pipeline stages.

A collective transfers within the slice, adds afterwards if its algorithm does, and crosses slices.
A message goes in one direction, to the counterpart of a device on a neighbouring stage.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod
from typing import Any

from tpusim.base.phase import Phase
from tpusim.costs.collective import (
    BEST_ALGORITHM,
    adding_seconds,
    best_candidates,
    dcn_delay_seconds,
    delay_seconds,
    fastest_route,
    path_seconds,
)
from tpusim.costs.links import DCN, SliceNics
from tpusim.costs.route import (
    BUSIEST_WEIGHT,
    NO_ROUTE,
    CollectiveRoute,
    dcn_route,
    listed_route,
    route,
    shift_route,
)
from tpusim.costs.tasks import CORE, HBM, MessageTask, Task
from tpusim.hardware import DCN_PREFIX, Chip, Device, Place, Placement, Slice
from tpusim.network import CollectiveMoves
from tpusim.program import (
    Call,
    Collective,
    CollectiveKind,
    Dep,
    Mode,
    Program,
    Send,
    TopOp,
    as_float,
    same_number,
)
from tpusim.tape import Answer, Tape, Traced, tape_of, untraced

IN_HBM = (1.0, 1.0)
"""Shares of operands and results in HBM where all of them are."""


@dataclass(frozen=True, slots=True)
class CostedGroup:
    """The group of a collective: its size and route within the slice, and its route across slices.

    stream: of its transfers within the slice, if they run beside the core.
    """

    stream: str
    ici_axes: tuple[str, ...]
    dcn_axes: tuple[str, ...]
    ici: CollectiveRoute
    dcn: CollectiveRoute
    ici_size: int

    @property
    def numbers(self) -> tuple[Any, ...]:
        """All that differs between groups of the same form."""
        return (self.ici_size, *self.ici.numbers, *self.dcn.numbers)

    def with_numbers(self, numbers: Sequence[Any]) -> "CostedGroup":
        """Return the group with other numbers, in the order of `numbers`."""
        size, *routes = numbers
        cut = len(self.ici.numbers)
        return replace(
            self,
            ici_size=size,
            ici=self.ici.with_numbers(routes[:cut]),
            dcn=self.dcn.with_numbers(routes[cut:]),
        )

    @property
    def form(self) -> Hashable:
        """All of the group but its numbers."""
        bare = (self.stream, self.ici_axes, self.dcn_axes)
        return (*bare, self.ici.form, self.dcn.form)


@dataclass(frozen=True, slots=True)
class CollectiveCosts:
    """The costs of the collectives of one program; each group is worked out once.

    nics: the links of DCN.
    tape: records the numbers of the routes, if they are traced.
    slowed: the routes of groups with slow links, by axes and the route without them.
    """

    chip: Chip
    device: Device
    pod: Slice
    placement: Placement
    sizes: Mapping[str, int]
    nics: SliceNics
    slowed: Mapping[tuple[tuple[str, ...], CollectiveRoute], CollectiveRoute] = field(
        default_factory=dict
    )
    tape: Tape | None = None
    groups: dict["RouteQuestion", CostedGroup] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, pod: Slice, placement: Placement) -> "CollectiveCosts":
        """Return the costs of a program whose mesh is placed on the pod."""
        nics = SliceNics.of((each for _, each in placement.listed), pod.num_slices)
        sizes = {axis: untraced(size) for axis, size in program.axes}
        tape = tape_of(size for _, size in program.axes)
        return cls(pod.chip, pod.chip.device, pod, placement, sizes, nics, tape=tape)

    @classmethod
    def at(cls, place: Place) -> "CollectiveCosts":
        """Return the costs of programs on a mesh in a place."""
        nics = SliceNics.of((), place.pod.num_slices)
        chip = place.pod.chip
        return cls(chip, chip.device, place.pod, place.placement, place.sizes, nics)

    def group(self, op: Collective) -> CostedGroup:
        """Return the group of a collective."""
        algorithm = op.algorithm
        if algorithm == BEST_ALGORITHM and self.placement.listed_as(op.axes) is None:
            algorithm = self._fastest_algorithm(op)
        return self._asked(RouteQuestion(op.kind, op.axes, algorithm, op.hbm))

    def _fastest_algorithm(self, op: Collective) -> str:
        """Return the algorithm of least time on a healthy slice."""
        names = best_candidates(op.kind)
        asked = (RouteQuestion(op.kind, op.axes, name, IN_HBM) for name in names)
        groups = [self._group(each) if self.tape is None else self._asked(each) for each in asked]
        return names[fastest_route([each.ici for each in groups], as_float(op.bytes), self.chip)]

    def _asked(self, question: "RouteQuestion") -> CostedGroup:
        """Return the group that a question is about, once found."""
        found = self.groups.get(question)
        if found is None:
            found = self.routed(question)
            if self.tape is not None:
                place = Place(self.pod, self.placement, self.sizes)
                found = found.with_numbers(self.tape.ask(question, place))
            self.groups[question] = found
        return found

    def message_route(self, question: "MessageQuestion") -> CollectiveRoute:
        """Return the route of messages between the stages of a pipeline."""
        path = question.routed(self.placement, self.pod)
        if self.tape is None:
            return path
        place = Place(self.pod, self.placement, self.sizes)
        return path.with_numbers(self.tape.ask(question, place))

    def routed(self, op: "RouteQuestion") -> CostedGroup:
        """Return the group of collectives that a question is about."""
        made = self._group(op)
        within = self.slowed.get((made.ici_axes, made.ici), made.ici)
        return replace(
            made, ici=within.with_hbm_shares(op.hbm), dcn=made.dcn.with_hbm_shares(op.hbm)
        )

    def _group(self, op: "RouteQuestion") -> CostedGroup:
        listed = self.placement.listed_as(op.axes)
        axes = op.axes if listed is None else listed.along
        dcn = tuple(axis for axis in axes if axis.startswith(DCN_PREFIX))
        ici = tuple(axis for axis in axes if axis not in dcn)
        if listed is not None:
            path, size, slices = listed_route(
                op.kind, listed, self.pod.topology, self.chip.devices, op.algorithm
            )
            across = dcn_route(op.kind, slices, self.nics.links(listed))
            return CostedGroup(f"ici:{op.axes[0]}", ici, dcn, path, across, size)
        spans = tuple(span for axis in ici for span in self.placement.spans(axis))
        within = route(op.kind, spans, self.pod.topology, op.algorithm)
        slices = prod(self.sizes[axis] for axis in dcn)
        size = prod(self.sizes[axis] for axis in ici)
        across = dcn_route(op.kind, slices, self.nics.links())
        labels = op.axes if across is NO_ROUTE else ici
        return CostedGroup(f"ici:{','.join(labels)}", labels, dcn, within, across, size)


@dataclass(frozen=True, slots=True)
class RouteQuestion:
    """The route of collectives of one kind over the same group.

    hbm: see `Collective`.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    algorithm: str
    hbm: tuple[float, float]

    def answer(self, place: Place) -> Answer:
        """Return the form of the group in a place, and its numbers."""
        group = CollectiveCosts.at(place).routed(self)
        return Answer(group.form, group.numbers)


@dataclass(frozen=True, slots=True)
class MessageQuestion:
    """The route of messages from each stage to its neighbour along some axes.

    backward: True if they go to the stage before.
    closed: True if they go between the first stage and the last.
    """

    axes: tuple[str, ...]
    backward: bool
    closed: bool

    def routed(self, placement: Placement, pod: Slice) -> CollectiveRoute:
        """Return the route on a placement."""
        spans = tuple(span for axis in self.axes for span in placement.spans(axis))
        return shift_route(spans, pod.topology, self.backward, self.closed)

    def answer(self, place: Place) -> Answer:
        """Return the form of the route in a place, and its numbers."""
        path = self.routed(place.placement, place.pod)
        return Answer(path.form, path.numbers)


_TaskFields = dict[str, Any]
"""The fields of a task, except those that depend on its place among the others."""


def _within_slice(
    op: Collective, group: CostedGroup, machine: CollectiveCosts
) -> list[_TaskFields]:
    """Return the tasks of a collective within the slice: transfers, and then additions."""
    chip, nbytes, path = machine.chip, as_float(op.bytes), group.ici
    common = {
        "label": "+".join(group.ici_axes),
        "stream": CORE if op.mode is Mode.SYNC else group.stream,
    }
    transfer = common | {
        "delay_s": delay_seconds(path, chip),
        "work_s": as_float(path_seconds(path, nbytes, chip)),
        "bytes": nbytes * path.share / BUSIEST_WEIGHT,
        "uses": path.uses,
        "moves": _message_builder(path, nbytes, chip),
        "meets": group.ici_axes,
    }
    adding = as_float(adding_seconds(path, nbytes, chip))
    if not adding:
        return [transfer]
    touched = {
        "work_s": adding,
        "bytes": path.added_hbm_bytes * path.added_bytes * nbytes,
        "uses": ((HBM, 1),),
    }
    return [transfer, common | touched]


def _message_builder(
    path: CollectiveRoute, nbytes: float, chip: Chip
) -> Callable[[], CollectiveMoves] | None:
    """Return a function that makes the messages of the transfers, for the hop-by-hop network."""
    carried = path.carried
    if carried is None or isinstance(nbytes, Traced):
        return None
    hop = chip.costs.hop_latency
    launch = delay_seconds(path, chip) - carried.hops * hop
    return lambda: carried.collective_moves(nbytes, launch, hop)


def _across_slices(op: Collective, group: CostedGroup, machine: CollectiveCosts) -> _TaskFields:
    """Return the task that crosses slices, with 1/n of the tensor if n devices of a slice share it.

    Reductions shrink to a shard first, gathers cross first, so DCN carries 1/n of the tensor, as
    compiled programs for two slices do (libtpu 0.0.42.1).
    """
    whole = op.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE)
    nbytes = as_float(op.bytes) if whole else as_float(op.bytes) / group.ici_size
    return {
        "label": "+".join(group.dcn_axes),
        "stream": CORE if op.mode is Mode.SYNC else DCN,
        "delay_s": dcn_delay_seconds(op.kind, group.dcn, machine.chip),
        "bytes": nbytes * group.dcn.share / BUSIEST_WEIGHT,
        "uses": group.dcn.uses,
        "meets": group.dcn_axes,
    }


def collective_tasks(op: Collective, machine: CollectiveCosts) -> tuple[Task, ...]:
    """Return the tasks of a collective, each after the one before.

    A group of one device takes no time. If a group extends within a slice and across slices,
    reductions run within the slice first, gathers across slices first.
    """
    group = machine.group(op)
    if group.dcn is NO_ROUTE:
        return _chain_tasks(op, _within_slice(op, group, machine))
    across = [_across_slices(op, group, machine)]
    if group.ici is NO_ROUTE:
        return _chain_tasks(op, across)
    within = _within_slice(op, group, machine)
    inward = op.kind is CollectiveKind.ALL_GATHER
    return _chain_tasks(op, [*across, *within] if inward else [*within, *across])


def _chain_tasks(op: Collective, parts: list[_TaskFields]) -> tuple[Task, ...]:
    """Return the tasks of one operation in a row.

    The first takes its dependencies, the last its name.
    """
    earlier = [f"{op.name}/{part['label']}/{number}" for number, part in enumerate(parts[:-1])]
    names = [*earlier, op.name]
    deps = [op.deps, *((Dep(name),) for name in earlier)]
    last = len(parts) - 1
    return tuple(
        Task(
            name=names[at],
            phase=op.phase,
            deps=deps[at],
            allocs=() if at else op.allocs,
            frees=op.frees if at == last else (),
            **part,
        )
        for at, part in enumerate(parts)
    )


class StageNeighbour(StrEnum):
    """A neighbour on the ring of stages; the first and the last are neighbours too."""

    NEXT = "next"
    PREVIOUS = "previous"
    FIRST = "first"
    LAST = "last"


@dataclass(slots=True)
class StageMessageCosts:
    """The sends of the stages of one pipeline; those of equal cost share their task."""

    machine: CollectiveCosts
    stages: int
    _known: dict[tuple[str, Phase, StageNeighbour], list[tuple[Send, Task]]] = field(
        default_factory=dict
    )

    def messages(
        self, stage: int, body: Iterable[TopOp], phases: Mapping[str, Phase]
    ) -> Iterator[MessageTask]:
        """Yield the messages from the segments of a stage to other stages.

        phases: of each segment.

        Raise ValueError for a stage that is not a neighbour on the ring of stages.
        """
        found: dict[tuple[str, int], list[Send]] = {}
        for call in body:
            if isinstance(call, Call):
                for send in call.sends:
                    known = found.setdefault((call.segment, send.to), [])
                    if not any(same_number(send.bytes, each.bytes) for each in known):
                        known.append(send)
        for (segment, to), sends in found.items():
            for send in sends:
                task = self._task(send, stage, segment, phases[segment])
                yield MessageTask(segment=segment, to=to, bytes=as_float(send.bytes), task=task)

    def _task(self, send: Send, stage: int, segment: str, phase: Phase) -> Task:
        neighbour = _neighbour(stage, send.to, self.stages)
        known = self._known.setdefault((segment, phase, neighbour), [])
        for other, task in known:
            if send.axes == other.axes and same_number(send.bytes, other.bytes):
                return task
        name = f"{segment} to {neighbour}" + (f" ({len(known) + 1})" if known else "")
        task = _message_task(send, name, neighbour, phase, self.machine)
        known.append((send, task))
        return task


def _neighbour(stage: int, to: int, stages: int) -> StageNeighbour:
    """Return the neighbour of a stage that another one is."""
    if to - stage in (1, -1):
        return StageNeighbour.NEXT if to > stage else StageNeighbour.PREVIOUS
    if {stage, to} == {0, stages - 1}:
        return StageNeighbour.LAST if to else StageNeighbour.FIRST
    raise ValueError(f"stage {stage} of {stages} sends to stage {to}, which is no neighbour")


def _message_task(
    send: Send, name: str, neighbour: StageNeighbour, phase: Phase, machine: CollectiveCosts
) -> Task:
    """Return the task of a message over DCN, or over the torus on links of its own.

    Over DCN a stage receives as much as it sends, except the first and the last; what it receives
    is counted where it sends. From the last stage to the first a message takes the closing edge of
    a ring, or all links of a line back.
    """
    chip, nbytes, label = machine.chip, as_float(send.bytes), "+".join(send.axes)
    if any(axis.startswith(DCN_PREFIX) for axis in send.axes):
        path = dcn_route(CollectiveKind.PERMUTE, 2, machine.nics.links())
        stream, delay = DCN, dcn_delay_seconds(CollectiveKind.PERMUTE, path, chip)
    else:
        backward = neighbour in (StageNeighbour.PREVIOUS, StageNeighbour.LAST)
        closed = neighbour in (StageNeighbour.FIRST, StageNeighbour.LAST)
        path = machine.message_route(MessageQuestion(send.axes, backward, closed))
        stream, delay = f"ici:{','.join(send.axes)}", delay_seconds(path, chip)
    return Task(
        name=name,
        phase=phase,
        label=label,
        stream=stream,
        delay_s=delay,
        bytes=nbytes * path.share / BUSIEST_WEIGHT,
        uses=path.uses,
    )
