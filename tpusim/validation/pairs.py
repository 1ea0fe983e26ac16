"""Pairs of runs that differ in one thing: the ratio cancels what both share, such as software."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from tpusim.runfile import SimulationRun
from tpusim.validation.outcome import RunOutcome

PAIRED: Mapping[str, Callable[[SimulationRun], Any]] = {
    "num_slices": lambda run: run.pod.num_slices,
    "dtype": lambda run: run.plan.dtypes.of("matmul"),
    "topology": lambda run: str(run.pod.topology),
    "chip": lambda run: run.pod.chip.name,
}
"""The things in which the runs of a pair may differ."""

OF_THE_SIZE = ("mesh", "global_batch", "placement")
"""Keys of a plan that follow the number of chips, and are compared otherwise."""

OF_THE_DTYPE = ("matmul_dtype", "gather_dtype", "quantisation_noise")
"""Keys of a plan that say how its matmuls are quantised."""


@dataclass(frozen=True, slots=True)
class RunPair:
    """Two runs, the ratio of their times (second over first), and what differs.

    thing: the one of PAIRED that differs.
    also: other keys that differ, or that one source does not state; a pair without any is the
        sharpest.
    """

    first: str
    second: str
    thing: str
    change: str
    measured_ratio: float
    predicted_ratio: float | None
    also: tuple[str, ...]

    @property
    def error(self) -> float | None:
        """Signed relative error of the predicted ratio."""
        if self.predicted_ratio is None:
            return None
        return self.predicted_ratio / self.measured_ratio - 1


def run_pairs(outcomes: Sequence[RunOutcome]) -> tuple[RunPair, ...]:
    """Return all pairs of runs of one model that differ in exactly one thing of PAIRED.

    The mesh and the global batch follow the number of chips, so only their values per chip are
    compared; `also` names them if those differ. The second run has no fewer slices than the first.
    """
    ordered = sorted(outcomes, key=_slices)
    return tuple(pair for a, b in combinations(ordered, 2) for pair in _pair(a, b))


def _slices(one: RunOutcome) -> int:
    return one.run.given.pod.num_slices if one.run.given else 0


def pair_document(pair: RunPair) -> dict[str, Any]:
    """Return a pair as plain data."""
    return asdict(pair) | {"also": list(pair.also), "error": pair.error}


def _pair(a: RunOutcome, b: RunOutcome) -> Iterator[RunPair]:
    one, other = a.run.given, b.run.given
    if one is None or other is None or not _of_one_kind(a, b):
        return
    things = [name for name, of in PAIRED.items() if of(one) != of(other)]
    if len(things) != 1:
        return
    (thing,) = things
    of = PAIRED[thing]
    yield RunPair(
        first=a.run.id,
        second=b.run.id,
        thing=thing,
        change=f"{of(one)} to {of(other)}",
        measured_ratio=b.run.step_s / a.run.step_s,
        predicted_ratio=b.predicted_s / a.predicted_s if a.predicted_s and b.predicted_s else None,
        also=tuple(dict.fromkeys((*_differing(one, other, thing), *_told_by_one(a, b)))),
    )


def _of_one_kind(a: RunOutcome, b: RunOutcome) -> bool:
    """Return True for runs of one model by one framework, with sequences of one length."""
    one, other = a.run.given, b.run.given
    return (
        one is not None
        and other is not None
        and a.run.framework == b.run.framework
        and one.plan.seq_len == other.plan.seq_len
        and one.model == other.model
    )


def _told_by_one(a: RunOutcome, b: RunOutcome) -> Iterator[str]:
    """Yield the keys whose value only one of two sources states: the runs may differ in them."""
    told, others = a.run.measured.assumed, b.run.measured.assumed
    keys = [key.partition(".")[2] for key in (*told, *others) if (key in told) != (key in others)]
    yield from (key for key in keys if key not in (*OF_THE_SIZE, "topology"))


def _differing(one: SimulationRun, other: SimulationRun, thing: str) -> Iterator[str]:
    """Yield the keys of the plans that differ besides the thing and what follows from it."""
    plan, others = one.plan.flat(), other.plan.flat()
    resized = thing in ("num_slices", "topology")
    follows = OF_THE_DTYPE if thing == "dtype" else ("rules",) if resized else ()
    compared = (key for key in plan if key not in (*OF_THE_SIZE, *follows))
    yield from (key for key in compared if plan[key] != others[key])
    if one.plan.mesh != other.plan.mesh and not resized:
        yield "mesh"
    if one.plan.global_batch * other.pod.chips != other.plan.global_batch * one.pod.chips:
        yield "batch a chip"
