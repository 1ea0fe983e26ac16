"""The search for the fastest placement of a step, among those of its mesh on the slice.

All of them could be simulated, but most cannot win. The core is in order, and a task that shares
its links only takes longer, so no schedule of a program is shorter than its core's tasks in
isolation, one after the other. Placements are simulated in the order of this bound until none that
is left can beat the best: the same answer as simulating all of them.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tpusim.engine import CodeRun, Race
from tpusim.hardware import Placement, Slice
from tpusim.pipeline.planned_step import PlannedStep, Programs
from tpusim.results import StepContents, step_contents
from tpusim.simulation.loads import code_totals
from tpusim.simulation.placed_code import Codes, PlacedCode, placed_codes


@dataclass(frozen=True, slots=True)
class ProgramsOnPlacements:
    """Programs, and their codes on the placements that share them."""

    programs: Programs
    contents: StepContents
    codes: Codes


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A step on a placement, ready to be simulated."""

    placement: Placement
    alike: ProgramsOnPlacements
    placed: PlacedCode

    @property
    def programs(self) -> Programs:
        """Its programs."""
        return self.alike.programs


@dataclass(frozen=True, slots=True)
class StepOnPlacements:
    """A step, and what is known of it on the placements so far."""

    step: PlannedStep
    pod: Slice
    _known: dict[int, ProgramsOnPlacements] = field(default_factory=dict)

    def on(self, placement: Placement) -> PlacedStep:
        """Return the step on a placement."""
        programs = self.step.programs_on(placement)
        alike = self._known.get(id(programs))
        if alike is None:
            alike = ProgramsOnPlacements(
                programs, step_contents(programs), placed_codes(programs, self.pod)
            )
            self._known[id(programs)] = alike
        return PlacedStep(placement, alike, alike.codes.on(placement))


class PlacedRun(NamedTuple):
    """The run of a step on a placement."""

    on: PlacedStep
    run: CodeRun


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A placement as a candidate of the search.

    number: its position in the order of the candidates.
    fold: skip iterations of loops that repeat.
    races: break off a run that cannot be the fastest.
    """

    number: int
    on: PlacedStep
    fold: bool = True
    races: bool = True

    @property
    def least_ps(self) -> int:
        """The time of its core's tasks."""
        return self.on.placed.core_ps

    def examine(self) -> tuple[int, Hashable]:
        """Return a tighter lower bound, and a key that is equal for placements with equal runs."""
        totals = code_totals(self.on.placed.code)
        return max(self.least_ps, totals.links_ps), (id(self.on.alike), totals.pattern)

    def simulate(self, best_ps: int | None = None) -> PlacedRun:
        """Return its run, which may break off once it cannot be faster than `best_ps`."""
        race = Race(best_ps, self.least_ps) if self.races and best_ps is not None else None
        return PlacedRun(self.on, CodeRun(self.on.placed.code, fold=self.fold, race=race))


def fastest(
    candidates: Iterable[PlacementCandidate],
) -> tuple[PlacedRun, dict[Hashable, int]]:
    """Return the fastest run, and the picoseconds of each pattern that was simulated to find it.

    They are the device's own, as waits for the host would hide differences; of a run that a
    candidate broke off they are its bound.

    Candidates are simulated in the order of their bounds until none that is left can beat the best:
    the same answer as simulating all of them. Of equal runs the first in the order of the
    candidates is the fastest.

    Raise ValueError if there is no candidate.
    """
    times: dict[Hashable, int] = {}
    best: tuple[int, int] | None = None
    found: PlacedRun | None = None
    for each in sorted(candidates, key=lambda each: (each.least_ps, each.number)):
        if best is not None and best < (each.least_ps, each.number):
            break
        least_ps, pattern = each.examine()
        if pattern in times or (best is not None and best < (least_ps, each.number)):
            continue
        placed = each.simulate(None if best is None else best[0])
        took = times[pattern] = placed.run.device_ps
        if best is None or (took, each.number) < best:
            best, found = (took, each.number), placed
    if found is None:
        raise ValueError("there is no placement to run on")
    return found, times


def fastest_run(steps: Sequence[PlacedStep], *, fold: bool) -> PlacedRun:
    """Return the fastest run of a step on some placements; a single one needs no search."""
    found = [PlacementCandidate(number, on, fold) for number, on in enumerate(steps)]
    return found[0].simulate() if len(found) == 1 else fastest(found)[0]
