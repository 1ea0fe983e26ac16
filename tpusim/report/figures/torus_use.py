"""The utilisation of each single link of the torus over the step."""

from dataclasses import dataclass

import numpy as np

from tpusim.costs import CollectiveCosts, RouteMessages
from tpusim.hardware import Topology
from tpusim.network import Loads, chain_positions, link_shape, on_torus, shift_loads
from tpusim.plan import STAGE_AXES
from tpusim.program import Call, Collective, Program, walk_ops
from tpusim.results import Result

SHARE_DIGITS = 9
"""Digits to which shares are rounded, as sums depend on their order."""


@dataclass(frozen=True, slots=True)
class TorusUse:
    """The fraction of the step in which each link of a slice is busy.

    shares: [dimension, direction (0 is +), *coordinates of the chip that the link leaves]; NaN for
        a link that does not exist, at the end of a line.
    """

    topology: Topology
    shares: Loads

    def of(self, name: str) -> Loads:
        """Return the links of a direction such as `x+`, [*coordinates]."""
        found: Loads = self.shares[self.topology.names.index(name[0]), "+-".index(name[1])]
        return found

    @property
    def busiest(self) -> dict[str, float]:
        """The share of the busiest link of each direction that has links, by name.

        A dimension of one chip has none.
        """
        names = (f"{dim}{sign}" for dim in self.topology.names for sign in "+-")
        return {name: float(np.nanmax(self.of(name))) for name in names if self.exists(name)}

    def exists(self, name: str) -> bool:
        """Return True if the slice has links in a direction."""
        return not np.isnan(self.of(name)).all()


def torus_data(result: Result) -> TorusUse:
    """Return the fraction of the step in which each link is busy: its bytes over its rate.

    The bytes are the sum over collectives, each by its algorithm. The busiest link of a direction
    is as busy as in `utilisation_data` if all collectives load the same link most, and less busy
    otherwise, as the engine's link classes sum each collective's busiest link.

    With a pipeline, the links that leave a stage's chips carry its own collectives and the messages
    between stages. Of several slices it is the one of the fullest stage.
    """
    topology = result.pod.topology
    total = _by_stage(result) if len(result.programs) > 1 else _loads(result, result.program)
    for dim in range(len(topology.dims)):
        for side in (0, 1):
            total[dim, side][_missing(topology, dim, side)] = np.nan
    return TorusUse(topology, np.round(total / _bytes_a_step(result), SHARE_DIGITS))


def _bytes_a_step(result: Result) -> float:
    """Return the bytes that one device's share of a link can carry in the step."""
    rate = next(use.rate_nb_per_ps for use in result.timeline.links if use.link == "ici:x+")
    return rate * result.timeline.total_ps * 1e-9


def _loads(result: Result, program: Program) -> Loads:
    """Return the bytes on each link where all chips run one program."""
    total = np.zeros(link_shape(result.pod.topology))
    for what, nbytes in _crossed(result, program).items():
        total += nbytes * what.loads()
    return total


def _crossed(result: Result, program: Program) -> dict[RouteMessages, float]:
    """Return the tensor bytes that each kind of route carries over the torus in the step."""
    machine = CollectiveCosts.of(program, result.pod, result.placement)
    crossed: dict[RouteMessages, float] = {}
    for op, count in walk_ops(program.body, program.segments):
        if isinstance(op, Collective) and (what := machine.group(op).ici.carried):
            crossed[what] = crossed.get(what, 0.0) + count * float(op.bytes)
    return crossed


def _by_stage(result: Result) -> Loads:
    """Return the bytes on each link of the slice that has the fullest stage."""
    axis, topology = STAGE_AXES[-1], result.pod.topology
    inner = dict(result.program.axes).get(axis, 1)
    spans = on_torus(result.placement.spans(axis)) if inner > 1 else ()
    places = chain_positions(spans, topology)
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
    """Return the chips without a link in a direction: the last of a line, or all of length 1."""
    length, wraps = topology.dims[dim], topology.wrap[dim]
    end = slice(None) if length == 1 else slice(0) if wraps else (-1, 0)[side]
    return (*(slice(None),) * dim, end)
