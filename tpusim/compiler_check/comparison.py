"""A plan and its compiled program side by side, and how that prints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tpusim.base.text_table import folded_table, wrapped_table
from tpusim.base.units import format_bytes, format_rate, format_seconds
from tpusim.compiler_check.collective_moves import collective_moves, planned_key
from tpusim.compiler_check.compare_collectives import (
    CollectiveTraffic,
    ComparedCollective,
    compared_collectives,
    same_algorithm_share,
    same_mode_share,
)
from tpusim.compiler_check.compare_memory import compared_memory, peak_place
from tpusim.compiler_check.compare_parts import (
    ComparedPart,
    ComparedSide,
    compared_flops,
    compared_times,
    compared_waits,
)
from tpusim.compiler_check.conclusion import AGREEMENT, ComparedHbm, conclusion, reason
from tpusim.compiler_check.core_times import timed_operations
from tpusim.compiler_check.differences import (
    Difference,
    grouped,
    ranked_differences,
    short_names,
    wire_sums,
)
from tpusim.compiler_check.program_keys import ProgramKeys
from tpusim.compiler_check.step_names import SourceNames, StepNames, tensor_of
from tpusim.program import Compute, Single
from tpusim.results import PlanResult, ReplayResult, entry

DIFFERENCES_SHOWN = 10
MEMORY_SHOWN = 8
"""Rows of the printed tables at most."""

WHOLES = (
    *("plan_step_s", "program_step_s", "plan_flops", "program_flops", "plan_hbm_bytes"),
    *("program_hbm_bytes", "same_mode_share", "same_algorithm_share", "agrees", "verdict"),
    *("title", "placement"),
)
"""What `check.json` says of the whole step."""

LEAST_TIME = 0.0005
LEAST_MEMORY = 0.01
LEAST_BYTES = 0.001
"""The least share of the step, and of the peak of HBM, by which a row that is shown differs, and of
the most that a collective moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinComparison:
    """A plan beside the program that the compiler made of it, one step of each.

    Seconds are of a step, bytes of one device, FLOPs of all devices.

    title: the model and the slice.
    placement: of the program's mesh on the torus; the plan should have the same.
    plan_step_s, program_step_s: step times.
    plan_flops, program_flops: matrix FLOPs that are executed, recomputation included.
    hbm: HBM at the peak, and what both sides say of it.
    same_mode_share, same_algorithm_share: shares of the collectives' bytes, see
        `compare_collectives.same_mode_share`.
    times: the core's time by kind of work and pass, and exposed time by axes; sums to both steps.
    flops: by pass.
    collectives: by weight or tensor, pass and axes, those that move most first.
    differences: the step in parts, those whose time differs most first; sums to both steps.
    """

    title: str
    placement: str
    plan_step_s: float
    program_step_s: float
    plan_flops: float
    program_flops: float
    hbm: ComparedHbm
    same_mode_share: float
    same_algorithm_share: float
    times: tuple[ComparedPart, ...]
    flops: tuple[ComparedPart, ...]
    collectives: tuple[ComparedCollective, ...]
    differences: tuple[Difference, ...]

    @property
    def plan_hbm_bytes(self) -> float:
        """HBM of the plan at its peak."""
        return self.hbm.plan_bytes

    @property
    def program_hbm_bytes(self) -> float:
        """HBM of the program at its peak."""
        return self.hbm.program_bytes

    @property
    def memory(self) -> tuple[ComparedPart, ...]:
        """HBM at the peaks by item, what differs most first; sums to both peaks."""
        return self.hbm.items

    @property
    def error(self) -> float:
        """The fraction by which the plan's step is longer than the program's; negative if not."""
        return self.plan_step_s / self.program_step_s - 1

    @property
    def agrees(self) -> bool:
        """True if step times and HBM each differ by 5 % of the program's or less.

        And if the plan fits where the compiler makes the program, and does not where it refuses it.
        """
        return abs(self.error) <= AGREEMENT and self.hbm.agrees

    @property
    def worth_saying(self) -> tuple[Difference, ...]:
        """The differences of at least a two-thousandth of the step."""
        least = LEAST_TIME * self.program_step_s
        return tuple(row for row in self.differences if abs(row.seconds) >= least)

    @property
    def reason(self) -> str:
        """The topic that adds most to the difference of the steps, in words; empty without one."""
        return reason(self.error, self.differences)

    @property
    def headline(self) -> str:
        """The verdict without its reasons."""
        return conclusion((self.plan_step_s, self.program_step_s), self.hbm, ())

    @property
    def verdict(self) -> str:
        """What a user wants to know, in a sentence."""
        return conclusion((self.plan_step_s, self.program_step_s), self.hbm, self.differences)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def facts(self) -> Mapping[str, Any]:
        """Return the content of `check.json`, as plain data."""
        hbm = self.hbm
        return {name: getattr(self, name) for name in WHOLES} | {
            "usable_hbm_bytes": hbm.usable_bytes,
            "plan_fit": str(hbm.plan_fit),
            "refused": hbm.refused,
            "same_verdict": hbm.same_verdict,
            "plan_peak": hbm.plan_peak,
            "program_peak": hbm.program_peak,
            "times": [
                {"what": row.what, "phase": str(row.phase or ""), **_pair(row, "_s")}
                for row in self.times
            ],
            "flops": [{"phase": str(row.phase), **_pair(row)} for row in self.flops],
            "collectives": [
                asdict(row) | {"plan": _traffic(row.plan), "program": _traffic(row.program)}
                for row in self.collectives
            ],
            "memory": [{"what": row.what, **_pair(row, "_bytes")} for row in self.memory],
            "differences": [{"seconds": row.seconds, **asdict(row)} for row in self.differences],
        }


def _pair(row: ComparedPart, unit: str = "") -> dict[str, float]:
    return {f"plan{unit}": row.plan, f"program{unit}": row.program}


def _traffic(side: CollectiveTraffic | None) -> dict[str, Any] | None:
    return {"wire_bytes": side.wire_bytes, **asdict(side)} if side else None


def _lines(c: TwinComparison) -> Iterator[str]:
    yield from entry("check", c.verdict)
    yield from entry("", f"{c.title}; {c.placement}")
    yield ""
    yield from _times(c)
    yield ""
    yield from entry("FLOPs", _flops(c))
    yield from entry("HBM peak", _against(*c.hbm.sides, format_bytes))
    yield from entry("", _peaks(c.hbm))
    yield from wrapped_table([*_memory(c)], left=1)
    yield ""
    yield from entry(
        "collectives",
        f"{c.same_mode_share:.1%} of the bytes on the wire are in the same mode on both sides, "
        f"{c.same_algorithm_share:.1%} take the same route",
    )
    yield from wrapped_table([*_collectives(c.collectives)], left=4)
    yield ""
    yield from entry("differences", _head(c))
    yield from wrapped_table([*_differences(c)], left=0)


def _peaks(hbm: ComparedHbm) -> str:
    usable = f"{format_bytes(hbm.usable_bytes)} can be used"
    return f"the plan's {hbm.plan_peak}, the program's {hbm.program_peak}; {usable}"


def _times(c: TwinComparison) -> Iterator[str]:
    rows = [
        (", ".join(filter(None, (row.what, str(row.phase or "")))), row.plan, row.program)
        for row in c.times
        if max(row.plan, row.program) >= LEAST_TIME * c.program_step_s
    ]
    rows.append(("step", c.plan_step_s, c.program_step_s))
    cells = [
        (name, f"{plan * 1e3:.3f}", f"{program * 1e3:.3f}", f"{(plan - program) * 1e3:+.3f}")
        for name, plan, program in rows
    ]
    heads = ("where the step goes, in ms", "plan", "program", "difference")
    yield from folded_table([heads, *cells])


def _flops(c: TwinComparison) -> str:
    whole = _against(c.plan_flops, c.program_flops, lambda each: format_rate(each, "FLOP"))
    parts = ", ".join(
        f"{row.phase} {format_rate(row.plan, '')} and {format_rate(row.program, '')}"
        for row in c.flops
    )
    return f"{whole}; {parts}"


def _against(plan: float, program: float, written: Callable[[float], str]) -> str:
    """Return both values, and how much larger the plan's is."""
    more = f" ({plan / program - 1:+.1%})" if program else ""
    return f"plan {written(plan)}, program {written(program)}{more}"


def _memory(c: TwinComparison) -> Iterator[tuple[str, ...]]:
    least = LEAST_MEMORY * max(c.hbm.sides)
    shown = [row for row in c.memory[:MEMORY_SHOWN] if abs(row.difference) >= least]
    if shown:
        yield ("at the peak", "plan", "program", "difference")
    for row in shown:
        sign = "+" if row.plan >= row.program else "-"
        difference = f"{sign}{format_bytes(abs(row.difference))}"
        yield (row.what, format_bytes(row.plan), format_bytes(row.program), difference)


def _collectives(rows: Sequence[ComparedCollective]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the collectives, those that are alike in all but the tensor as one."""
    short = short_names(row.what for row in rows)
    yield ("pass", "axes", "plan", "program", "tensors")
    least = LEAST_BYTES * max((max(row.wire_bytes) for row in rows), default=0.0)
    rest: list[ComparedCollective] = []
    for alike in grouped(rows):
        sums = wire_sums(alike)
        if max(sums) < least:
            rest += alike
            continue
        first = alike[0]
        sides = map(_side, first.sides, sums)
        names = ", ".join(short[row.what] for row in alike)
        yield (first.when, "+".join(first.axes), *sides, names)
    if rest:
        yield ("", "", *map(format_bytes, wire_sums(rest)), f"{len(rest)} others")


def _side(traffic: CollectiveTraffic | None, nbytes: float) -> str:
    """Return kind and mode of one side, and its bytes on the wire."""
    if traffic is None:
        return "-"
    does = "ring" if traffic.mode == "ring" else f"{traffic.kind} {traffic.mode}"
    return f"{does}, {format_bytes(nbytes)}"


def _head(c: TwinComparison) -> str:
    gained = sum(max(row.seconds, 0.0) for row in c.differences)
    lost = sum(max(-row.seconds, 0.0) for row in c.differences)
    return (
        f"seconds of the plan less those of the program: {format_seconds(gained)} more and "
        f"{format_seconds(lost)} less"
    )


def _differences(c: TwinComparison) -> Iterator[tuple[str, ...]]:
    for row in c.worth_saying[:DIFFERENCES_SHOWN]:
        share = row.seconds / c.program_step_s
        yield (f"{row.seconds * 1e3:+.3f} ms", f"{share:+.1%}", str(row))
    if not c.worth_saying:
        yield ("none", "", "")


def compare(
    plan: PlanResult,
    program: ReplayResult,
    lines: Mapping[int, str],
    *,
    refused: bool = False,
    names: StepNames | None = None,
) -> TwinComparison:
    """Return a plan beside the program that the compiler made of its exported step.

    plan: the result of the plan, on the placement that the program has.
    program: the replay of the compiled program.
    lines: the operation of the graph (such as `layer/wq`) whose JAX stands in a line of the
        exported file; other lines belong to no operation.
    refused: True if the compiler refused the program, as it needs more HBM than there is.
    names: of the plan's graph; None for a step of training.
    """
    names = names or StepNames.of(plan)
    source = SourceNames.of(program.program, lines)

    def planned(op: Single) -> str:
        """Return the forward operation behind one of a plan; of a collective, of its tensor."""
        if isinstance(op, Compute):
            return names.planned(op.scope)
        tensor, _ = tensor_of(op.scope)
        return names.makers.get(tensor) or names.readers.get(tensor, "")

    def compiled(op: Single) -> str:
        name = source.at(getattr(op, "source", ""), *getattr(op, "callers", ()))
        return name if name in names.operations else ""

    sides = (
        ComparedSide(plan, timed_operations(plan), planned, names),
        ComparedSide(program, timed_operations(program), compiled, names),
    )
    first, second = (tuple(collective_moves(side.result, side.times)) for side in sides)
    moved = [(planned_key(move, names), move) for move in first]
    collectives = compared_collectives(moved, ProgramKeys(names, source, second, moved).keyed())
    times = compared_times(*sides)
    return TwinComparison(
        title=f"{plan.title} ({plan.pod.chips} chip{'s' * (plan.pod.chips > 1)})",
        placement=str(program.placement) or "nothing to place",
        plan_step_s=plan.step_time_s,
        program_step_s=program.step_time_s,
        plan_flops=float(plan.flops.total),
        program_flops=float(program.flops.total),
        hbm=ComparedHbm(
            plan_bytes=plan.hbm_peak_bytes,
            program_bytes=program.hbm_peak_bytes,
            usable_bytes=plan.hbm_bytes,
            plan_fit=plan.fit,
            refused=refused,
            plan_peak=peak_place(sides[0]),
            program_peak=peak_place(sides[1]),
            items=compared_memory(*sides),
        ),
        same_mode_share=same_mode_share(collectives),
        same_algorithm_share=same_algorithm_share(collectives),
        times=times,
        flops=compared_flops(*sides),
        collectives=collectives,
        differences=ranked_differences(times, compared_waits(*sides), collectives),
    )
