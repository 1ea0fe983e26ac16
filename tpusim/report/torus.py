"""How busy each single link of the torus is over the step."""

from dataclasses import dataclass

import numpy as np

from tpusim.costs.communicate import Machine
from tpusim.costs.route import Carried
from tpusim.hardware import Topology
from tpusim.network import chain_places, on_torus, shift_loads
from tpusim.network.paths import Loads, link_shape
from tpusim.partition.plan import STAGE_AXES
from tpusim.program import Call, Collective, Program, counted
from tpusim.result import Result

DIGITS = 9
"""Shares that are alike to so many digits are the same: sums depend on their order."""


@dataclass(frozen=True, slots=True)
class TorusUse:
    """The share of the step in which each link of a slice is busy.

    shares: [dimension, direction (0 is +), *coordinates of the chip that the link leaves]; a link
    that does not exist, at the end of a line, is not a number.
    """

    topology: Topology
    shares: Loads

    def of(self, name: str) -> Loads:
        """The links of a direction such as `x+`, [*coordinates]."""
        found: Loads = self.shares[self.topology.names.index(name[0]), "+-".index(name[1])]
        return found

    @property
    def busiest(self) -> dict[str, float]:
        """The share of the busiest link of each direction that has links, by name."""
        ways = (f"{dim}{way}" for dim in self.topology.names for way in "+-")
        return {way: float(np.nanmax(self.of(way))) for way in ways if self.exists(way)}

    def exists(self, name: str) -> bool:
        """Whether the slice has any link in a direction: one chip has none to itself."""
        return not np.isnan(self.of(name)).all()


def torus_data(result: Result) -> TorusUse:
    """The share of the step in which each link is busy: its bytes over its rate and the step.

    The sum over collectives of the bytes that each puts on the link, by its algorithm. The busiest
    link of a direction is as busy as `utilisation_data` says where all collectives load the same
    link most, and less otherwise: the engine's link classes add up what each puts on its busiest.

    With a pipeline, the links that leave a stage's chips carry what its own collectives put on
    them, and what stages send each other. Of several slices it is the one of the fullest stage.
    """
    topology = result.pod.topology
    total = _by_stage(result) if len(result.programs) > 1 else _loads(result, result.program)
    for dim in range(len(topology.dims)):
        for side in (0, 1):
            total[dim, side][_missing(topology, dim, side)] = np.nan
    return TorusUse(topology, np.round(total / _bytes_a_step(result), DIGITS))


def _bytes_a_step(result: Result) -> float:
    """What one device's share of a link can carry in the step."""
    rate = next(use.rate_nb_per_ps for use in result.timeline.links if use.link == "ici:x+")
    return rate * result.timeline.total_ps * 1e-9


def _loads(result: Result, program: Program) -> Loads:
    """Bytes on each link where all chips run one program."""
    total = np.zeros(link_shape(result.pod.topology))
    for what, nbytes in _crossed(result, program).items():
        total += nbytes * what.loads()
    return total


def _crossed(result: Result, program: Program) -> dict[Carried, float]:
    """Bytes of the tensors that are carried in each way over the torus in the step."""
    machine = Machine.of(program, result.pod, result.placement)
    crossed: dict[Carried, float] = {}
    for op, count in counted(program.body, program.segments):
        if isinstance(op, Collective) and (what := machine.group(op).ici.carried):
            crossed[what] = crossed.get(what, 0.0) + count * float(op.bytes)
    return crossed


def _by_stage(result: Result) -> Loads:
    """Bytes on each link of the slice that has the fullest stage."""
    axis, topology = STAGE_AXES[-1], result.pod.topology
    inner = dict(result.program.axes).get(axis, 1)
    spans = on_torus(result.placement.spans(axis)) if inner > 1 else ()
    places = chain_places(spans, topology)
    first, each = result.lane // inner * inner, inner // (int(places.max()) + 1)
    ahead, back = np.zeros((2, inner // each))
    total = np.zeros(link_shape(topology))
    for stage, program in enumerate(result.programs[first : first + inner]):
        place = stage // each
        total += np.where(places == place, _loads(result, program) / each, 0.0)
        for send in (send for op in program.body if isinstance(op, Call) for send in op.sends):
            if send.axes == (axis,) and (send.to - first) // each != place:
                forward = (send.to - first - stage) % inner == 1 and (inner > 2 or send.to > stage)
                (ahead if forward else back)[place] += float(send.bytes)
    return total + shift_loads(spans, topology, ahead, back)


def _missing(topology: Topology, dim: int, side: int) -> tuple[slice | int, ...]:
    """The chips that have no link in a direction: the last of a line, or all where it is one."""
    length, wraps = topology.dims[dim], topology.wrap[dim]
    end = slice(None) if length == 1 else slice(0) if wraps else (-1, 0)[side]
    return (*(slice(None),) * dim, end)
