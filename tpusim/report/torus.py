"""How busy each single link of the torus is over the step."""

from dataclasses import dataclass

import numpy as np

from tpusim.costs.communicate import Machine
from tpusim.costs.route import Carried
from tpusim.hardware import Topology
from tpusim.network import link_loads_of
from tpusim.network.paths import Loads, link_shape
from tpusim.program import Collective, counted
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
    """
    topology = result.pod.topology
    total = np.zeros(link_shape(topology))
    for what, nbytes in _crossed(result).items():
        total += nbytes * what.part * link_loads_of(what.kind, what.how, what.spans, topology)
    for dim in range(len(topology.dims)):
        for side in (0, 1):
            total[dim, side][_missing(topology, dim, side)] = np.nan
    return TorusUse(topology, np.round(total / _bytes_a_step(result), DIGITS))


def _bytes_a_step(result: Result) -> float:
    """What one device's share of a link can carry in the step."""
    rate = next(use.rate_nb_per_ps for use in result.shown.links if use.link == "ici:x+")
    return rate * result.shown.total_ps * 1e-9


def _crossed(result: Result) -> dict[Carried, float]:
    """Bytes of the tensors that are carried in each way over the torus in the step."""
    machine = Machine.of(result.program, result.pod, result.placement)
    crossed: dict[Carried, float] = {}
    for op, count in counted(result.program.body, result.program.segments):
        if isinstance(op, Collective) and (what := machine.group(op).ici.carried):
            crossed[what] = crossed.get(what, 0.0) + count * float(op.bytes)
    return crossed


def _missing(topology: Topology, dim: int, side: int) -> tuple[slice | int, ...]:
    """The chips that have no link in a direction: the last of a line, or all where it is one."""
    length, wraps = topology.dims[dim], topology.wrap[dim]
    end = slice(None) if length == 1 else slice(0) if wraps else (-1, 0)[side]
    return (*(slice(None),) * dim, end)
