"""Why a step is as it is: the placements that it could have had, and what its collectives cost."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tpusim.costs.communicate import Machine
from tpusim.engine import run
from tpusim.hardware import Placement, Slice, candidates
from tpusim.loads import alike, alone
from tpusim.models import Transformer
from tpusim.partition import Plan
from tpusim.placing import fastest, ways
from tpusim.program import Collective
from tpusim.result import PICO, Result
from tpusim.simulation import given_placement
from tpusim.steps import planned_step
from tpusim.summary import aligned
from tpusim.units import format_bytes, format_seconds

SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRow:
    """A placement that a step could have. Times in seconds.

    collectives_s: all its collectives alone, one after the other.
    step_time_s: without waits for the host, which decide nothing; None where no simulation was
        needed, as the step takes `least_s` or more.
    taken: whether it is the one of the plan, or else the one that was chosen.
    """

    placement: Placement
    collectives_s: float
    step_time_s: float | None
    least_s: float
    taken: bool


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """The placements of a step, the fastest first; given: whether the plan decides."""

    rows: tuple[PlacementRow, ...]
    given: bool

    def __str__(self) -> str:
        times = [row.step_time_s for row in self.rows if row.step_time_s is not None]
        pruned = len(self.rows) - len(times)
        rest = f"; {pruned} not simulated, as they take at least what is shown" if pruned else ""
        head = f"placements  {_count(len(self.rows), 'candidate')}{rest}"
        taken = [row for row in self.rows[SHOWN:] if row.taken]
        shown = [*self.rows[: SHOWN - len(taken)], *taken]
        word = "given" if self.given else "chosen"
        cells = [_placement(row, min(times), word) for row in shown]
        heads = ("step time", "slower", "collectives", "placement")
        return "\n".join([head, *aligned([heads, *cells], left=0), *_more(len(self.rows))])


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Collectives of a step that cost the same.

    how: their algorithm and way over the torus, in words. bytes: of the full tensor on one device.
    times: how many a step. seconds: each alone.
    """

    kind: str
    axes: tuple[str, ...]
    mode: str
    how: str
    bytes: float
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """The collectives of a step, those that take most time in all first."""

    rows: tuple[CollectiveRow, ...]

    def __str__(self) -> str:
        seconds = format_seconds(sum(row.times * row.seconds for row in self.rows))
        head = (
            f"collectives {len(self.rows)} that differ, {sum(row.times for row in self.rows):,} a "
            f"step; alone, one after the other, {seconds}"
        )
        heads = ("collective", "mode", "bytes", "times", "each", "how")
        cells = [heads, *map(_collective, self.rows[:SHOWN])] if self.rows else []
        return "\n".join([head, *aligned(cells, left=2), *_more(len(self.rows))])


def explain_placement(
    model: Transformer, plan: Plan, pod: Slice, *, placement: Placement | None = None
) -> PlacementTable:
    """The placements that the step could have on `pod`, with the times that decide.

    They are those of `hardware.candidates`, and the one that is given where it is none of them.
    Where one is given, it is simulated, and the others until the fastest is known. Raises PlanError
    as `simulate` does.
    """
    step = planned_step(model, plan, pod)
    given = placement or given_placement(plan, pod)
    laid = candidates(pod, plan.mesh)
    if given is not None and given not in laid:
        laid = (*laid, given)
    found = ways(step, pod, laid)
    best, times = fastest(found, pod, run)
    taken = given or best.placement
    for way in found:
        if way.placement == taken and way.pattern not in times:
            times |= fastest([way], pod, run)[1]
    rows = [
        PlacementRow(
            placement=way.placement, collectives_s=way.collectives_ps * PICO,
            step_time_s=times[way.pattern] * PICO if way.pattern in times else None,
            least_s=way.least_ps * PICO, taken=way.placement == taken,
        )
        for way in found
    ]  # fmt: skip
    return PlacementTable(tuple(sorted(rows, key=_rank)), given is not None)


def explain_collectives(result: Result) -> CollectiveTable:
    """The collectives of a simulated step: those that differ in more than name and place."""
    machine = Machine.of(result.program, result.pod, result.placement)
    rows: Counter[CollectiveRow] = Counter()
    for op, times in alike(result.program).items():
        if isinstance(op, Collective):
            rows[_row(op, result, machine)] += times
    found = [replace(row, times=times) for row, times in rows.items()]
    return CollectiveTable(tuple(sorted(found, key=lambda row: -row.times * row.seconds)))


def _row(op: Collective, result: Result, machine: Machine) -> CollectiveRow:
    load = alone(result.program, {op: 1}, result.pod, result.placement)
    return CollectiveRow(
        kind=str(op.kind), axes=op.axes, mode=str(op.mode), how=_how(op, machine),
        bytes=float(op.bytes), times=1,
        seconds=load.all_ps * PICO,
    )  # fmt: skip


def _how(op: Collective, machine: Machine) -> str:
    """The algorithm and the way, within the slice and across slices."""
    group = machine.group(op)
    return "; ".join(path.text for path in (group.ici, group.dcn) if path.launched)


def _rank(row: PlacementRow) -> tuple[float, bool, bool]:
    """Simulated before what takes as long or more, and the one that was taken first of equals."""
    time = row.least_s if row.step_time_s is None else row.step_time_s
    return time, row.step_time_s is None, not row.taken


def _placement(row: PlacementRow, best: float, word: str) -> tuple[str, ...]:
    known = row.step_time_s
    least = "at least " if known is None else ""
    time = row.least_s if known is None else known
    return (
        f"{least}{format_seconds(time)}", f"{time / best - 1:.2%}" if time > best else "-",
        format_seconds(row.collectives_s),
        f"{row.placement or 'one device'}{f' ({word})' if row.taken else ''}",
    )  # fmt: skip


def _collective(row: CollectiveRow) -> tuple[str, ...]:
    return (
        f"{row.kind} {'+'.join(row.axes)}", row.mode, format_bytes(row.bytes), f"{row.times:,}",
        format_seconds(row.seconds), row.how,
    )  # fmt: skip


def _more(count: int) -> Iterator[str]:
    if count > SHOWN:
        yield f"  and {count - SHOWN} more"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
