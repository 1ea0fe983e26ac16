"""The search for the fastest of some candidates, most of which need no simulation."""

from collections.abc import Hashable, Iterable
from typing import Protocol, TypeVar


class TimedRun(Protocol):
    """A run with its picoseconds.

    They are the device's own time, as waits for the host would hide differences.
    """

    @property
    def device_ps(self) -> int:
        """The time of the step without waits for the host."""
        ...


Run = TypeVar("Run", bound=TimedRun)
RunOut = TypeVar("RunOut", bound=TimedRun, covariant=True)


class Candidate(Protocol[RunOut]):
    """Something that can be simulated, with bounds that are known before."""

    @property
    def number(self) -> int:
        """Its position."""
        ...

    @property
    def least_ps(self) -> int:
        """A lower bound of its run."""
        ...

    def examine(self) -> tuple[int, Hashable]:
        """Return a tighter bound, and a pattern: runs of candidates with equal ones are equal."""
        ...

    def simulate(self, best_ps: int | None) -> RunOut:
        """Return the run; of one that takes longer than `best_ps`, a bound above it is enough."""
        ...


def fastest(candidates: Iterable[Candidate[Run]]) -> tuple[Run, dict[Hashable, int]]:
    """Return the fastest run, and the picoseconds of each pattern that was simulated to find it.

    The picoseconds of a run that a candidate broke off are its bound.

    Candidates are simulated in the order of their bounds until none that is left can beat the best:
    the same answer as simulating all of them. Of equal runs the first in the order of the
    candidates is the fastest.

    Raise ValueError if there is no candidate.
    """
    times: dict[Hashable, int] = {}
    best: tuple[int, int] | None = None
    found: Run | None = None
    for each in sorted(candidates, key=lambda each: (each.least_ps, each.number)):
        if best is not None and best < (each.least_ps, each.number):
            break
        least_ps, pattern = each.examine()
        if pattern in times or (best is not None and best < (least_ps, each.number)):
            continue
        run = each.simulate(None if best is None else best[0])
        took = times[pattern] = run.device_ps
        if best is None or (took, each.number) < best:
            best, found = (took, each.number), run
    if found is None:
        raise ValueError("there is no placement to run on")
    return found, times
