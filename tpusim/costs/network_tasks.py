"""The tasks of transfers between devices: collectives, and messages between pipeline stages.

A collective transfers within the slice, adds afterwards if its algorithm does, and crosses slices.
A message goes in one direction, to the counterpart of a device on a neighbouring stage.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod
from typing import NamedTuple, TypeAlias

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
from tpusim.costs.impaired_links import links_out
from tpusim.costs.links import DCN, SliceNics, capacities
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
from tpusim.hardware import DCN_PREFIX, Chip, Device, Placement, Slice, Span
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
)

IN_HBM = (1.0, 1.0)
"""Shares of operands and results in HBM where all of them are."""


class TransferPart(NamedTuple):
    """A task of a collective but for its place in a program; the fields are those of `Task`."""

    label: str
    stream: str
    delay_s: float
    work_s: float
    bytes: float
    uses: tuple[tuple[str, int], ...]
    moves: Callable[[], CollectiveMoves] | None = None
    meets: tuple[str, ...] = ()


KnownParts: TypeAlias = dict[Hashable, Sequence[TransferPart]]
"""The parts of collectives, by what they depend on, see `CollectiveCosts`."""


def collective_key(op: Collective) -> Hashable:
    """Return what the parts of a collective depend on besides its placement."""
    return op.kind, op.axes, op.algorithm, op.hbm, op.bytes, op.mode is Mode.SYNC


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


@dataclass(frozen=True, slots=True)
class CollectiveCosts:
    """The costs of the collectives of one program; each group is worked out once.

    nics: the links of DCN.
    slowed: the routes of groups with slow links, by axes and the route without them.
    known: the parts of collectives, by what they depend on: their own numbers, and the spans of
        their axes. Programs may share it on all placements of a healthy slice.
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
    known: KnownParts = field(default_factory=dict)
    groups: dict["_GroupKey", CostedGroup] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        program: Program,
        pod: Slice,
        placement: Placement,
        known: KnownParts | None = None,
    ) -> "CollectiveCosts":
        """Return the costs of a program whose mesh is placed on the pod."""
        nics = SliceNics.of((each for _, each in placement.listed), pod.num_slices)
        made = cls(pod.chip, pod.chip.device, pod, placement, dict(program.axes), nics)
        return made if known is None else replace(made, known=known)

    @property
    def link_rates(self) -> tuple[tuple[str, float], ...]:
        """The links of one device, and the rate of each in B/s."""
        ratio = self.pod.dcn_oversubscription
        return tuple(capacities(self.chip, ratio, self.nics.links()).items())

    def parts(self, op: Collective) -> Sequence[TransferPart]:
        """Return the parts of a collective, each after the one before."""
        key = (collective_key(op), self.placement.spans_of(op.axes))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = _parts(op, self)
        return found

    def group(self, op: Collective) -> CostedGroup:
        """Return the group of a collective."""
        algorithm = op.algorithm
        if algorithm == BEST_ALGORITHM and self.placement.listed_as(op.axes) is None:
            algorithm = self._fastest_algorithm(op)
        key = _GroupKey(op.kind, op.axes, algorithm, op.hbm)
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = self._routed(key)
        return found

    def _fastest_algorithm(self, op: Collective) -> str:
        """Return the algorithm of least time on a healthy slice."""
        names = best_candidates(op.kind)
        groups = [self._group(_GroupKey(op.kind, op.axes, name, IN_HBM)) for name in names]
        return names[fastest_route([each.ici for each in groups], float(op.bytes), self.chip)]

    def _routed(self, key: "_GroupKey") -> CostedGroup:
        made = self._group(key)
        within = self.slowed.get((made.ici_axes, made.ici), made.ici)
        return replace(
            made, ici=within.with_hbm_shares(key.hbm), dcn=made.dcn.with_hbm_shares(key.hbm)
        )

    def _group(self, op: "_GroupKey") -> CostedGroup:
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


class _GroupKey(NamedTuple):
    """What collectives of one kind over the same group share.

    hbm: see `Collective`.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    algorithm: str
    hbm: tuple[float, float]


def _within_slice(
    op: Collective, group: CostedGroup, machine: CollectiveCosts
) -> list[TransferPart]:
    """Return the parts of a collective within the slice: transfers, and then additions."""
    chip, nbytes, path = machine.chip, float(op.bytes), group.ici
    drawn = nbytes * chip.costs.time_of(path.kind)
    label = "+".join(group.ici_axes)
    stream = CORE if op.mode is Mode.SYNC else group.stream
    transfer = TransferPart(
        label,
        stream,
        delay_s=delay_seconds(path, chip),
        work_s=float(path_seconds(path, nbytes, chip)),
        bytes=drawn * path.share / BUSIEST_WEIGHT,
        uses=path.uses,
        moves=_message_builder(path, nbytes, chip),
        meets=group.ici_axes,
    )
    adding = float(adding_seconds(path, nbytes, chip))
    if not adding:
        return [transfer]
    touched = path.added_hbm_bytes * path.added_bytes * nbytes
    return [transfer, TransferPart(label, stream, 0.0, adding, touched, ((HBM, 1),))]


def _message_builder(
    path: CollectiveRoute, nbytes: float, chip: Chip
) -> Callable[[], CollectiveMoves] | None:
    """Return a function that makes the messages of the transfers, for the hop-by-hop network."""
    carried = path.carried
    if carried is None:
        return None
    factor = chip.costs.time_of(path.kind)
    hop, drawn = chip.costs.hop_latency * factor, nbytes * factor
    launch = delay_seconds(path, chip) - carried.hops * hop
    return lambda: carried.collective_moves(drawn, launch, hop)


def _across_slices(op: Collective, group: CostedGroup, machine: CollectiveCosts) -> TransferPart:
    """Return the part that crosses slices, with 1/n of the tensor if n devices of a slice share it.

    Reductions shrink to a shard first, gathers cross first, so DCN carries 1/n of the tensor, as
    compiled programs for two slices do (libtpu 0.0.42.1).
    """
    whole = op.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE)
    nbytes = float(op.bytes) if whole else float(op.bytes) / group.ici_size
    return TransferPart(
        label="+".join(group.dcn_axes),
        stream=CORE if op.mode is Mode.SYNC else DCN,
        delay_s=dcn_delay_seconds(op.kind, group.dcn, machine.chip),
        work_s=0.0,
        bytes=nbytes * group.dcn.share / BUSIEST_WEIGHT,
        uses=group.dcn.uses,
        meets=group.dcn_axes,
    )


def _parts(op: Collective, machine: CollectiveCosts) -> list[TransferPart]:
    """Return the parts of a collective, each after the one before.

    If a group extends within a slice and across slices, reductions run within the slice first,
    gathers across slices first.
    """
    group = machine.group(op)
    if group.dcn is NO_ROUTE:
        return _within_slice(op, group, machine)
    across = [_across_slices(op, group, machine)]
    if group.ici is NO_ROUTE:
        return across
    within = _within_slice(op, group, machine)
    inward = op.kind is CollectiveKind.ALL_GATHER
    return [*across, *within] if inward else [*within, *across]


def collective_tasks(op: Collective, machine: CollectiveCosts) -> tuple[Task, ...]:
    """Return the tasks of a collective in a row: the first has its dependencies, the last its name.

    A group of one device takes no time.
    """
    parts = machine.parts(op)
    last = len(parts) - 1
    earlier = [f"{op.name}/{part.label}/{number}" for number, part in enumerate(parts[:-1])]
    names = [*earlier, op.name]
    deps = [op.deps, *((Dep(name),) for name in earlier)]
    return tuple(
        Task(
            name=names[at],
            phase=op.phase,
            deps=deps[at],
            allocs=() if at else op.allocs,
            frees=op.frees if at == last else (),
            **part._asdict(),
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
                    if not any(send.bytes == each.bytes for each in known):
                        known.append(send)
        for (segment, to), sends in found.items():
            for send in sends:
                task = self._task(send, stage, segment, phases[segment])
                yield MessageTask(segment=segment, to=to, bytes=float(send.bytes), task=task)

    def _task(self, send: Send, stage: int, segment: str, phase: Phase) -> Task:
        neighbour = _neighbour(stage, send.to, self.stages)
        known = self._known.setdefault((segment, phase, neighbour), [])
        for other, task in known:
            if send.axes == other.axes and send.bytes == other.bytes:
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
    chip, nbytes, label = machine.chip, float(send.bytes), "+".join(send.axes)
    if any(axis.startswith(DCN_PREFIX) for axis in send.axes):
        path = dcn_route(CollectiveKind.PERMUTE, 2, machine.nics.links())
        stream, delay = DCN, dcn_delay_seconds(CollectiveKind.PERMUTE, path, chip)
    else:
        backward = neighbour in (StageNeighbour.PREVIOUS, StageNeighbour.LAST)
        closed = neighbour in (StageNeighbour.FIRST, StageNeighbour.LAST)
        spans = tuple(span for axis in send.axes for span in machine.placement.spans(axis))
        path = _busiest_shift(spans, machine.pod, backward=backward, closed=closed)
        stream, delay = f"ici:{','.join(send.axes)}", delay_seconds(path, chip)
        nbytes *= chip.costs.time_of(path.kind)
    return Task(
        name=name,
        phase=phase,
        label=label,
        stream=stream,
        delay_s=delay,
        bytes=nbytes * path.share / BUSIEST_WEIGHT,
        uses=path.uses,
    )


def _busiest_shift(
    spans: Sequence[Span], pod: Slice, *, backward: bool, closed: bool
) -> CollectiveRoute:
    """Return the route of a shift on the slice where broken links slow it most."""
    outs = {frozenset[int](), *(links_out(pod, number) for number in pod.broken.slices)}
    routes = [shift_route(spans, pod.topology, backward, closed, out) for out in outs]
    return max(routes, key=lambda path: (path.share, path.hops))
