"""Explanations of a step: the candidate placements, and the costs of its collectives."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tpusim.base.checked_call import checked_call
from tpusim.base.plain_text import plain
from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_table import wrapped_table
from tpusim.base.units import format_bytes, format_seconds
from tpusim.costs import CollectiveCosts
from tpusim.frames import choices_of
from tpusim.hardware import Placement, Slice, candidates
from tpusim.lowering import LoweringEvidence, lowering_evidence
from tpusim.models import Architecture
from tpusim.plan import Plan
from tpusim.program import Collective, Single, walk_ops
from tpusim.results import PICO, PlanResult, ReplayResult, Result, collective_axes, entry
from tpusim.results.result import check_result
from tpusim.simulation.arguments import check_arguments
from tpusim.simulation.known_steps import KNOWN_STEPS
from tpusim.simulation.loads import bare_operation, distinct_operations, isolated_totals
from tpusim.simulation.placement_search import PlacedStep, PlacementCandidate, fastest
from tpusim.simulation.plan_run import given_placement

ROWS_SHOWN = 20
"""Rows of a printed table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRow:
    """A candidate placement of a step. Times in seconds.

    collectives_s: all its collectives in isolation, one after the other.
    step_time_s: without waits for the host, which do not affect the choice; None if no simulation
        was needed, as the step takes `least_s` or more.
    taken: True for the placement of the plan, or else for the chosen one.
    """

    placement: Placement
    collectives_s: float
    step_time_s: float | None
    least_s: float
    taken: bool


@dataclass(frozen=True, slots=True, repr=False)
class PlacementTable(ShortRepr):
    """The placements of a step, the fastest first.

    given: True if one of them was given.
    """

    rows: tuple[PlacementRow, ...]
    given: bool

    def __str__(self) -> str:
        times = [row.step_time_s for row in self.rows if row.step_time_s is not None]
        pruned = len(self.rows) - len(times)
        rest = f"; {pruned} not simulated, as they take at least what is shown" if pruned else ""
        head = entry("placements", f"{_count(len(self.rows), 'candidate')}{rest}")
        taken = [row for row in self.rows[ROWS_SHOWN:] if row.taken]
        shown = [*self.rows[: ROWS_SHOWN - len(taken)], *taken]
        word = "given" if self.given else "chosen"
        cells = [_placement(row, min(times), word) for row in shown]
        heads = ("step time", "slower", "collectives", "placement")
        return "\n".join([*head, *wrapped_table([heads, *cells], left=0), *_more(len(self.rows))])


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Collectives of a step that cost the same, in a compiled program those of the same code.

    how: their algorithm and route over the torus, in words.
    bytes: of the full tensor on one device.
    times: executions per step.
    seconds: of each in isolation.
    tensor: in a compiled program, dtype and dimensions of what each device has afterwards.
    source: in a compiled program, the line of code, if it is known.
    scope: in a compiled program, the name of the operation that it belongs to.
    """

    kind: str
    axes: tuple[str, ...]
    mode: str
    how: str
    bytes: float
    times: int
    seconds: float
    tensor: str = ""
    source: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class CollectiveTable(ShortRepr):
    """The collectives of a step, sorted by their total time.

    evidence: the line of the lowering table for each group of devices; empty for a replay.
    """

    rows: tuple[CollectiveRow, ...]
    evidence: tuple[LoweringEvidence, ...] = ()

    def __str__(self) -> str:
        seconds = format_seconds(sum(row.times * row.seconds for row in self.rows))
        head = entry(
            "collectives",
            f"{len(self.rows)} that differ, {sum(row.times for row in self.rows):,} a "
            f"step; alone, one after the other, {seconds}",
        )
        coded = any(row.tensor for row in self.rows)
        heads = ("collective", "mode", "bytes", "times", "each", "how")
        heads = (*heads[:-1], "what and how") if coded else heads
        cells = [heads, *map(_collective, self.rows[:ROWS_SHOWN])] if self.rows else []
        lines = (line for one in self.evidence for line in entry("lowering", str(one)))
        return "\n".join([*head, *wrapped_table(cells, left=2), *_more(len(self.rows)), *lines])


@checked_call
def explain_placement(
    model: Architecture | str, plan: Plan, pod: Slice | str, *, placement: Placement | None = None
) -> PlacementTable:
    """Return the placements that the step can have on `pod`, with the times that decide.

    They are those of `hardware.candidates`, and the given one if it is not among them. A given one
    is simulated, and the others until the fastest is known. Raise PlanError as `simulate` does.
    """
    model, plan, pod = check_arguments(model, plan, pod, "explain_placement")
    given = placement or given_placement(plan.sharding, pod)
    placements = candidates(pod, plan.mesh)
    if given is not None and given not in placements:
        placements = (*placements, given)
    step = KNOWN_STEPS.step(model, plan, pod.healthy)
    tried = [PlacementCandidate(n, step.on(at), races=False) for n, at in enumerate(placements)]
    best, times = fastest(tried)
    taken = given or best.on.placement
    rows = []
    for each in tried:
        at, (least_ps, pattern) = each.on.placement, each.examine()
        if at == taken and pattern not in times:
            times[pattern] = each.simulate().run.device_ps
        rows.append(
            PlacementRow(
                placement=at,
                collectives_s=_collectives_ps(each.on, pod) * PICO,
                step_time_s=times[pattern] * PICO if pattern in times else None,
                least_s=least_ps * PICO,
                taken=at == taken,
            )
        )
    return PlacementTable(tuple(sorted(rows, key=_rank)), given is not None)


def _collectives_ps(on: PlacedStep, pod: Slice) -> int:
    """Return the picoseconds of all collectives in isolation, of the stage that has most."""
    return max(
        isolated_totals(
            program,
            {
                op: times
                for op, times in distinct_operations(program).items()
                if isinstance(op, Collective)
            },
            pod,
            on.placement,
        ).all_ps
        for program in on.programs
    )


@checked_call
def explain_collectives(result: Result) -> CollectiveTable:
    """Return the collectives of a simulated step that differ in more than name and position.

    Those of a compiled program are told apart by their lines of code too.
    """
    check_result(result, "explain_collectives")
    machine = CollectiveCosts.of(result.program, result.pod, result.placement)
    compiled = isinstance(result, ReplayResult)
    known: dict[Single, CollectiveRow] = {}
    rows: Counter[CollectiveRow] = Counter()
    for op, times in walk_ops(result.program.body, result.program.segments):
        if isinstance(op, Collective):
            bare = bare_operation(op)
            row = known[bare] = known.get(bare) or _row(bare, result, machine)
            if compiled:
                row = replace(row, tensor=op.tensor, source=op.source, scope=op.scope)
            rows[row] += times
    found = [replace(row, times=times) for row, times in rows.items()]
    ordered = tuple(sorted(found, key=lambda row: -row.times * row.seconds))
    return CollectiveTable(ordered, _evidence(result))


def _evidence(result: Result) -> tuple[LoweringEvidence, ...]:
    if not isinstance(result, PlanResult):
        return ()
    groups = collective_axes(result.programs)
    return lowering_evidence(choices_of(result.plan), result.pod, result.placement, groups)


def _row(op: Collective, result: Result, machine: CollectiveCosts) -> CollectiveRow:
    load = isolated_totals(result.program, {op: 1}, result.pod, result.placement)
    return CollectiveRow(
        kind=str(op.kind),
        axes=op.axes,
        mode=str(op.mode),
        how=_describe_route(op, machine),
        bytes=float(op.bytes),
        times=1,
        seconds=load.all_ps * PICO,
    )


def _describe_route(op: Collective, machine: CollectiveCosts) -> str:
    """Return algorithm and route in words, within the slice and across slices."""
    group = machine.group(op)
    return "; ".join(path.text for path in (group.ici, group.dcn) if path.launched)


def _rank(row: PlacementRow) -> tuple[float, bool, bool]:
    """Return the sort key of a placement: simulated ones and the taken one first among equals."""
    time = row.least_s if row.step_time_s is None else row.step_time_s
    return time, row.step_time_s is None, not row.taken


def _placement(row: PlacementRow, best: float, word: str) -> tuple[str, ...]:
    known = row.step_time_s
    least = "at least " if known is None else ""
    time = row.least_s if known is None else known
    return (
        f"{least}{format_seconds(time)}",
        f"{time / best - 1:.2%}" if time > best else "-",
        format_seconds(row.collectives_s),
        f"{row.placement or 'one device'}{f' ({word})' if row.taken else ''}",
    )


def _collective(row: CollectiveRow) -> tuple[str, ...]:
    what = " ".join(filter(None, (row.source or plain(row.scope), row.tensor)))
    return (
        f"{row.kind} {'+'.join(row.axes)}",
        row.mode,
        format_bytes(row.bytes),
        f"{row.times:,}",
        format_seconds(row.seconds),
        "; ".join(filter(None, (what, row.how))),
    )


def _more(count: int) -> Iterator[str]:
    if count > ROWS_SHOWN:
        yield f"  and {count - ROWS_SHOWN} more"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
