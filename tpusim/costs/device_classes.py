"""Folding in space: devices that cannot be told apart, one lane for each class of them.

All devices run one program; they differ in their speed, in the slow links on the routes of their
collectives and in the bytes that go round broken ones, and in whom they meet there. A colour
refinement finds the classes (the 1-dimensional Weisfeiler-Leman algorithm, arXiv:1907.09582,
section 2): devices begin with the colour of their speed; then each takes into its colour those that
occur in its group of every collective, and the route of that group, until no colour splits. Devices
of a class then do the same at the same picosecond, by induction over the events: a collective
begins when the last member has arrived, and ends when the last has ended, so it depends on which
colours a group has, and not on how many of each. A healthy pod is one class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tpusim.costs.impaired_links import SliceLinks, impaired_slices
from tpusim.costs.network_tasks import CollectiveCosts
from tpusim.costs.program_costs import cost_lane, cost_lanes
from tpusim.costs.route import NO_ROUTE, CollectiveRoute
from tpusim.costs.tasks import CostedProgram
from tpusim.hardware import DCN_PREFIX, DIE, Chip, Placement, Slice, speed_words
from tpusim.program import Collective, Program, walk_ops

Numbers = NDArray[np.intp]
"""One number for each device: its colour, or its group."""

Axes = tuple[str, ...]
RouteKey = tuple[Axes, CollectiveRoute]


def cost_classes(
    program: Program, pod: Slice, placement: Placement, *, fold: bool = True
) -> tuple[CostedProgram, ...]:
    """Return the lanes of a program whose devices differ: one for each class of them.

    fold: False for a lane for each device.

    Lanes are in the order of their classes, which is that of the first device of each, and have the
    name of their first device. Raise PlanError as `cost_program` does.
    """
    machine = CollectiveCosts.of(program, pod, placement)
    devices = _Devices.of(pod, placement, machine.sizes)
    keys, met = _meetings(program, machine)
    groups = {axes: devices.groups(axes) for axes in met}
    speeds, chips = devices.speeds()
    routes = {key: devices.routes(key, groups[key[0]]) for key in keys}
    start = _numbered([speeds, *(numbers for numbers, _ in routes.values())])
    colours = _refined(start, list(groups.values()))
    alone = np.argsort(colours, kind="stable")
    firsts = np.unique(colours, return_index=True)[1] if fold else alone
    kinds = {axes: _seen(colours, each) if fold else each for axes, each in groups.items()}
    lanes, known = [], dict[tuple[int, ...], CostedProgram]()
    for first in firsts.tolist():
        alike = (int(speeds[first]), *(int(numbers[first]) for numbers, _ in routes.values()))
        if alike not in known:
            slowed = {key: found[numbers[first]] for key, (numbers, found) in routes.items()}
            known[alike] = cost_lane(program, _machine_of(machine, chips[alike[0]], slowed))
        lanes.append(
            replace(
                known[alike],
                name=devices.name(first),
                devices=int((colours == colours[first]).sum()) if fold else 1,
                groups=tuple((axes, int(each[first])) for axes, each in kinds.items()),
            )
        )
    return tuple(lanes)


def cost_worst(
    programs: Sequence[Program], pod: Slice, placement: Placement
) -> tuple[CostedProgram, ...]:
    """Return the programs of a pipeline's stages with the routes of the group that is worst off.

    For lanes that do not meet in their collectives: stages, and messages over every link.
    """
    machine = CollectiveCosts.of(programs[0], pod, placement)
    devices = _Devices.of(pod, placement, machine.sizes)
    keys = dict.fromkeys(key for program in programs for key in _meetings(program, machine)[0])
    slowed = {
        key: max(devices.routes(key, devices.groups(key[0]))[1], key=_slowness) for key in keys
    }
    return cost_lanes(programs, _machine_of(machine, pod.chip, slowed))


def _slowness(path: CollectiveRoute) -> tuple[float, int]:
    return path.share, path.hops


def _machine_of(
    machine: CollectiveCosts, chip: Chip, slowed: Mapping[RouteKey, CollectiveRoute]
) -> CollectiveCosts:
    """Return the machine as a device with this chip and these routes has it."""
    return replace(machine, chip=chip, device=chip.device, slowed=slowed, known={}, groups={})


def _meetings(
    program: Program, machine: CollectiveCosts
) -> tuple[tuple[RouteKey, ...], tuple[Axes, ...]]:
    """Return the distinct routes within a slice by axes, and the axes along which devices meet."""
    keys: dict[RouteKey, None] = {}
    met: dict[Axes, None] = {}
    bare = replace(machine, groups={})
    for op, _ in walk_ops(program.body, program.segments):
        if not isinstance(op, Collective):
            continue
        group = bare.group(replace(op, hbm=(1.0, 1.0)))
        if group.ici is not NO_ROUTE:
            keys[group.ici_axes, group.ici] = met[group.ici_axes] = None
        if group.dcn is not NO_ROUTE:
            met[group.dcn_axes] = None
    return tuple(keys), tuple(met)


@dataclass(frozen=True, slots=True)
class _Devices:
    """The devices of a machine: slice after slice, chips in the order of their coordinates.

    places: [device, (slice, coordinates on the torus, core)].
    """

    pod: Slice
    placement: Placement
    sizes: Mapping[str, int]
    places: Numbers

    @classmethod
    def of(cls, pod: Slice, placement: Placement, sizes: Mapping[str, int]) -> "_Devices":
        shape = (pod.num_slices, *pod.topology.dims, pod.chip.devices)
        return cls(pod, placement, sizes, np.indices(shape).reshape(len(shape), -1).T)

    def __len__(self) -> int:
        return len(self.places)

    def name(self, device: int) -> str:
        """Return the coordinates of a device, and what is left of its speed."""
        number, *at, core = self.places[device].tolist()
        words = [f"slice {number}"] * (self.pod.num_slices > 1) + [",".join(map(str, at))]
        words += [f"core {core}"] * (self.pod.chip.devices > 1)
        left = speed_words(*self.pod.slow.speeds(tuple(at), number))
        return " ".join([*words, left] if left else words)

    def groups(self, axes: Axes) -> Numbers:
        """Return the number of each device's group along some axes of the mesh."""
        origins = self.places.copy()
        across = {axis: size for axis, size in self.sizes.items() if axis.startswith(DCN_PREFIX)}
        inner = 1
        for axis, size in reversed(across.items()):
            if axis in axes:
                origins[:, 0] -= origins[:, 0] // inner % size * inner
            inner *= size
        for axis in axes:
            for span in () if axis in across else self.placement.spans(axis):
                column = -1 if span.dim == DIE else 1 + span.dim
                along = origins[:, column]
                origins[:, column] = along - along // span.stride % span.size * span.stride
        return _numbered(list(origins.T))

    def speeds(self) -> tuple[Numbers, list[Chip]]:
        """Return the number of each device's chip, and the chips, with what is left of them."""
        slow, shape = self.pod.slow, (self.pod.num_slices, *self.pod.topology.dims)
        shares = np.ones((*shape, 2))
        for part in slow.slices:
            shares[part.slice] *= part.compute, part.hbm
        for each in slow.chips:
            shares[(each.slice, *each.at)] *= each.compute, each.hbm
        every = np.repeat(shares.reshape(-1, 2), self.pod.chip.devices, axis=0)
        found, numbers = np.unique(every, axis=0, return_inverse=True)
        return numbers.reshape(-1), [_at_speed(self.pod.chip, *each) for each in found.tolist()]

    def routes(self, key: RouteKey, groups: Numbers) -> tuple[Numbers, list[CollectiveRoute]]:
        """Return the number of each device's route, and the routes."""
        _, path = key
        numbers = np.zeros(len(self), dtype=np.intp)
        found = {path: 0}
        for number in impaired_slices(self.pod):
            links = SliceLinks.of(self.pod, number)
            inside = np.flatnonzero(self.places[:, 0] == number)
            grouped = inside[np.argsort(groups[inside], kind="stable")]
            for own in np.split(grouped, np.flatnonzero(np.diff(groups[grouped])) + 1):
                chips = np.unique(own // self.pod.chip.devices)
                members = self.places[chips * self.pod.chip.devices, 1:-1]
                slowed = links.route(path, members)
                numbers[own] = found.setdefault(slowed, len(found))
        return numbers, list(found)


def _at_speed(chip: Chip, compute: float, hbm: float) -> Chip:
    """Return a chip with shares of the rates of its cores and of its HBM."""
    slowed = chip if compute == 1 else chip.at_clock(chip.clock * compute)
    return slowed if hbm == 1 else slowed.replace(hbm_bandwidth=chip.hbm_bandwidth * hbm)


def _numbered(columns: Sequence[Numbers]) -> Numbers:
    """Number the distinct rows of some columns, in the order of their first devices."""
    _, first, numbers = np.unique(
        np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True
    )
    rank = np.empty(len(first), dtype=np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[numbers.reshape(-1)])


def _refined(colours: Numbers, groups: Sequence[Numbers]) -> Numbers:
    """Split colours by those that occur in each device's groups, until none splits."""
    while True:
        finer = _numbered([colours, *(_seen(colours, each) for each in groups)])
        if finer.max() == colours.max():
            return finer
        colours = finer


def _seen(colours: Numbers, groups: Numbers) -> Numbers:
    """Return for each device a number of the set of colours that occur in its group.

    Groups with the same colours are one, whichever devices represent them.
    """
    pairs = np.unique(np.stack([groups, colours], axis=1), axis=0)
    bounds = np.searchsorted(pairs[:, 0], np.arange(groups.max() + 2))
    sets: dict[tuple[int, ...], int] = {}
    kinds = [
        sets.setdefault(tuple(pairs[low:high, 1].tolist()), len(sets))
        for low, high in pairwise(bounds.tolist())
    ]
    return np.asarray(np.array(kinds)[groups])
