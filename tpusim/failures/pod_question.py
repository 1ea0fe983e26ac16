"""The probability that slices of a shape can be placed in a pod, by closed forms and by draws."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, lgamma, log, log1p, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.failures.causes import CAUSES
from tpusim.failures.exposure import CUBE_CHIPS, SWITCHES
from tpusim.failures.static_places import (
    SAMPLES,
    Dims,
    boxes,
    draw_hosts,
    host_block,
    host_cables,
    host_grid,
    most_slices,
)
from tpusim.hardware import Chip
from tpusim.hardware.slice_rules import CUBE


class Chances(NamedTuple):
    """What can be placed at one availability of hosts; None where the pod has no such links.

    host: the fraction of the time in which a host is up.
    cube: likewise of a cube, or of a slice that is smaller than one.
    switched: the probability that all slices find cubes, wherever these stand.
    unrouted: likewise, where no switch that a slice crosses may be out.
    contiguous: the probability that all slices find boxes of hosts with fixed links.
    given: likewise, where the place of each slice is given too.
    goodput: the mean fraction of the pod's chips in slices of this shape, as many as fit: of cubes,
        or with fixed links where there are none.
    """

    host: float
    cube: float | None
    switched: float | None
    unrouted: float | None
    contiguous: float | None
    given: float
    goodput: float


@dataclass(frozen=True)
class PodQuestion:
    """Slices of one shape that are to stand in a pod at the same time.

    shape: chips along each dimension.
    pool: cubes of the pod; 0 where its links are fixed.
    whole: the pod is a whole one of its generation, where fixed links would have a shape.
    samples: states of the pod that are drawn.
    """

    chip: Chip
    shape: Dims
    slices: int = 1
    pool: int = 0
    whole: bool = True
    samples: int = SAMPLES

    @property
    def chips(self) -> int:
        """Chips of one slice."""
        return prod(self.shape)

    @property
    def hosts(self) -> int:
        """Hosts of one slice."""
        return -(-self.chips // self.chip.host_chips)

    def with_pool(self, pool: int) -> "PodQuestion":
        """Return the question for a pod of other cubes."""
        return replace(self, pool=pool, whole=False)

    def of_cubes(self, cubes: int) -> "PodQuestion":
        """Return the question for one slice of so many cubes, which switches join."""
        return replace(self, shape=(CUBE, CUBE, CUBE * cubes), slices=1, whole=False)

    @property
    def in_cube(self) -> int:
        """Slices that a cube holds; 0 where a slice takes one or more."""
        small = self.chips < CUBE_CHIPS
        return prod(CUBE // length for length in self.shape) if small else 0

    @property
    def cubes(self) -> int:
        """Cubes that all slices need."""
        return -(-self.slices // self.in_cube) if self.in_cube else self._each * self.slices

    @property
    def _each(self) -> int:
        """Cubes of a slice; 1 for a part of one."""
        return max(1, self.chips // CUBE_CHIPS)

    def cube_chance(self, host: float) -> float:
        """Return the availability of a cube, or of a slice that is smaller than one.

        Its machines have to be up and the cables between them: 80 in a cube, whose 144 links are
        less 4 on the board of each of 16 machines. The 96 fibres of its faces are not among them,
        as routing goes around one that is out.
        """
        of_cube = CUBE_CHIPS // self.chip.host_chips
        machines = min(self.hosts, of_cube)
        cables = (of_cube * host_cables(host_block(self.chip)) - SWITCHES) * machines / of_cube
        return float(host**machines * _cable(host) ** cables)

    def chances(self, host: float) -> Chances:
        """Return what can be placed where a host is up for this fraction of the time."""
        linked = host * _cable(host) ** host_cables(host_block(self.chip))
        given = linked ** (self.hosts * self.slices)
        static = self._static(linked) if self.whole else (None, 0.0)
        if not self.pool:
            return Chances(host, None, None, None, static[0], given, static[1])
        cube, pool = self.cube_chance(host), self.pool * max(1, self.in_cube)
        goodput = mean_groups(self._each, pool, cube) * self.chips / (self.pool * CUBE_CHIPS)
        return Chances(host, cube, *self.of_switches(host), static[0], given, goodput)

    def of_switches(self, host: float) -> tuple[float, float]:
        """Return `Chances.switched` and `Chances.unrouted` of a pod of cubes."""
        pool = self.pool * max(1, self.in_cube)
        switched = at_least(self._each * self.slices, pool, self.cube_chance(host))
        crossed = 0 if self.in_cube else SWITCHES
        return switched, switched * CAUSES["switch"].availability ** crossed

    @cached_property
    def _draws(self) -> NDArray[np.float32]:
        return draw_hosts(host_grid(self.chip), self.samples)

    def _static(self, linked: float) -> tuple[float, float]:
        """Return the probability of all slices with fixed links, and their goodput.

        linked: the availability of a host with its cables.
        """
        grid = host_grid(self.chip)
        places = list(boxes(self.chip, self.shape))
        if grid in places:  # of the whole pod: there is one place, and nothing to draw
            alone = linked ** prod(grid)
            return alone * (self.slices == 1), alone
        up = self._draws < linked
        most = np.max([most_slices(up, box) for box in places], axis=0)
        goodput = float(most.mean()) * self.chips / prod(self.chip.pod_shape)
        return float((most >= self.slices).mean()), goodput

    def spares(self, host: float, target: float, most: int) -> int | None:
        """Return the fewest further cubes with which all slices can be placed so often.

        None where that takes more than `most`.
        """
        cube, needed = self.cube_chance(host), self._each * self.slices
        cubes, held = self.cubes, max(1, self.in_cube)
        pools = ((count, (cubes + count) * held) for count in range(most + 1))
        return next(
            (count for count, pool in pools if at_least(needed, pool, cube) >= target), None
        )


def _cable(host: float) -> float:
    """Return the availability of a cable, which is repaired as fast as a host.

    host: the availability of a host; with its rate of failures it says how fast that is.
    """
    return CAUSES["cable"].availability_with(CAUSES["machine"].repair_of(host))


def at_least(needed: int, pool: int, up: float) -> float:
    """Return the probability that at least `needed` of `pool` parts are up.

    up: the probability that one is.

    >>> round(at_least(2, 3, 0.9), 3)
    0.972
    """
    if needed <= 0 or up >= 1:
        return float(needed <= pool)
    if up <= 0:
        return 0.0
    return min(1.0, sum(_exactly(count, pool, up) for count in range(needed, pool + 1)))


def mean_groups(size: int, pool: int, up: float) -> float:
    """Return the mean number of groups of `size` parts that the parts which are up make."""
    return sum(at_least(parts, pool, up) for parts in range(size, pool + 1, size))


def _exactly(count: int, pool: int, up: float) -> float:
    """Return the probability that `count` of `pool` parts are up, with 0 < up < 1."""
    ways = lgamma(pool + 1) - lgamma(count + 1) - lgamma(pool - count + 1)
    return exp(ways + count * log(up) + (pool - count) * log1p(-up))
