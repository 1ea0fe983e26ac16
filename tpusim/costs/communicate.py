"""The tasks of a collective: transfers in the slice, additions after them, and across slices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tpusim.costs.cards import Cards
from tpusim.costs.collective import (
    BEST,
    adding_seconds,
    best_route,
    dcn_delay_seconds,
    delay_seconds,
    path_seconds,
)
from tpusim.costs.links import DCN
from tpusim.costs.listed import listed_route
from tpusim.costs.route import NOTHING, WHOLE, Route, dcn_route, route
from tpusim.costs.tasks import CORE, HBM, Task
from tpusim.hardware import Chip, Device, Placement, Slice
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.network import Moves
from tpusim.program import Collective, CollectiveKind, Dep, Mode, Program


@dataclass(frozen=True, slots=True)
class Group:
    """A collective's group: its size and route within the slice, and its route across slices.

    stream: that its transfers within the slice run on, where they run beside the core.
    """

    stream: str
    ici_axes: tuple[str, ...]
    dcn_axes: tuple[str, ...]
    ici: Route
    dcn: Route
    ici_size: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What the operations of one program are costed on; groups are worked out once each.

    cards: the links of DCN.
    """

    chip: Chip
    device: Device
    pod: Slice
    placement: Placement
    sizes: Mapping[str, int]
    cards: Cards
    groups: dict[tuple[object, ...], Group] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, pod: Slice, placement: Placement) -> "Machine":
        """What a program is costed on when its mesh lies on the pod as `placement` says."""
        cards = Cards.of((each for _, each in placement.listed), pod.num_slices)
        return cls(pod.chip, pod.chip.device, pod, placement, dict(program.axes), cards)

    def group(self, op: Collective) -> Group:
        """The group of a collective."""
        nbytes = float(op.bytes) if op.algorithm == BEST else 0.0
        key = (op.kind, op.axes, op.algorithm, nbytes, op.hbm)
        found = self.groups.get(key)
        if found is None:
            made = self._group(op)
            found = replace(made, ici=made.ici.lying(op.hbm), dcn=made.dcn.lying(op.hbm))
            self.groups[key] = found
        return found

    def _group(self, op: Collective) -> Group:
        listed = self.placement.listed_as(op.axes)
        axes = op.axes if listed is None else listed.along
        dcn = tuple(axis for axis in axes if axis.startswith(DCN_PREFIX))
        ici = tuple(axis for axis in axes if axis not in dcn)
        if listed is not None:
            path, size, slices = listed_route(
                op.kind, listed, self.pod.topology, self.chip.devices, op.algorithm
            )
            across = dcn_route(op.kind, slices, self.cards.links(listed))
            return Group(f"ici:{op.axes[0]}", ici, dcn, path, across, size)
        spans = tuple(span for axis in ici for span in self.placement.spans(axis))
        if op.algorithm == BEST:
            within = best_route(op.kind, spans, self.pod.topology, float(op.bytes), self.chip)
        else:
            within = route(op.kind, spans, self.pod.topology, op.algorithm)
        slices = prod(self.sizes[axis] for axis in dcn)
        size = prod(self.sizes[axis] for axis in ici)
        across = dcn_route(op.kind, slices, self.cards.links())
        labels = op.axes if across is NOTHING else ici
        return Group(f"ici:{','.join(labels)}", labels, dcn, within, across, size)


_Part = dict[str, Any]
"""The fields of a task, but for those that depend on its place among the others."""


def _within(op: Collective, group: Group, machine: Machine) -> list[_Part]:
    """The tasks of a collective within the slice: the transfers, and additions after them."""
    chip, nbytes, path = machine.chip, float(op.bytes), group.ici
    common = {
        "label": "+".join(group.ici_axes),
        "stream": CORE if op.mode is Mode.SYNC else group.stream,
    }
    transfer = common | {
        "delay_s": delay_seconds(path, chip),
        "work_s": float(path_seconds(path, nbytes, chip)),
        "bytes": nbytes * path.share / WHOLE,
        "uses": path.uses,
        "moves": _moves(path, nbytes, chip),
    }
    adding = float(adding_seconds(path, nbytes, chip))
    if not adding:
        return [transfer]
    touched = {"work_s": adding, "bytes": path.summed * path.added * nbytes, "uses": ((HBM, 1),)}
    return [transfer, common | touched]


def _moves(path: Route, nbytes: float, chip: Chip) -> Callable[[], Moves] | None:
    """The messages of the transfers, for the hop-by-hop network."""
    carried = path.carried
    if carried is None:
        return None
    hop = chip.costs.hop_latency
    launch = delay_seconds(path, chip) - carried.hops * hop
    return lambda: carried.moves(nbytes, launch, hop)


def _across(op: Collective, group: Group, machine: Machine) -> _Part:
    """The part of a collective that crosses slices: 1/n of the tensor where the slice shares it.

    Reductions shrink to a shard first, gathers cross first, so DCN carries 1/n of the tensor, as
    compiled programs for two slices do (libtpu 0.0.42.1).
    """
    whole = op.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE)
    nbytes = float(op.bytes) if whole else float(op.bytes) / group.ici_size
    return {
        "label": "+".join(group.dcn_axes),
        "stream": CORE if op.mode is Mode.SYNC else DCN,
        "delay_s": dcn_delay_seconds(op.kind, group.dcn, machine.chip),
        "bytes": nbytes * group.dcn.share / WHOLE,
        "uses": group.dcn.uses,
    }


def collective_tasks(op: Collective, machine: Machine) -> tuple[Task, ...]:
    """The tasks of a collective, each after the one before.

    None of its time is left where the group is one device. Over the slice and across slices,
    reductions run within the slice first and gathers across slices.
    """
    group = machine.group(op)
    if group.dcn is NOTHING:
        return _chained(op, _within(op, group, machine))
    across = [_across(op, group, machine)]
    if group.ici is NOTHING:
        return _chained(op, across)
    within = _within(op, group, machine)
    inward = op.kind is CollectiveKind.ALL_GATHER
    return _chained(op, [*across, *within] if inward else [*within, *across])


def _chained(op: Collective, parts: list[_Part]) -> tuple[Task, ...]:
    """The tasks of one operation in a row: the first takes its dependencies, the last its name."""
    earlier = [f"{op.name}/{part['label']}/{number}" for number, part in enumerate(parts[:-1])]
    names = [*earlier, op.name]
    deps = [op.deps, *((Dep(name),) for name in earlier)]
    last = len(parts) - 1
    return tuple(
        Task(
            name=names[at], phase=op.phase, deps=deps[at], allocs=() if at else op.allocs,
            frees=op.frees if at == last else (), **part,
        )
        for at, part in enumerate(parts)
    )  # fmt: skip
