"""A plan beside its compiled program, as one page."""

from base64 import b64encode
from collections.abc import Callable, Sequence

from tpusim.base.units import format_bytes, format_rate, format_seconds
from tpusim.compiler_check import TwinComparison
from tpusim.report.html.headline import Fact
from tpusim.report.html.page import template

ROWS_SHOWN = 40
"""Rows of a table of the page; the files beside it have all."""


def comparison_page(comparison: TwinComparison, figure: bytes) -> str:
    """Return the comparison as one HTML page that needs no other file.

    figure: the PNG of `plot_check`.
    """
    found = comparison
    times = [
        (row.what, str(row.phase or "whole step"), row.plan, row.program)
        for row in found.times
        if row.plan or row.program
    ]
    differing = [
        (_name(row.what, row.when), row.words, row.plan_s, row.program_s)
        for row in found.worth_saying
    ]
    memory = [(row.what, "", row.plan, row.program) for row in found.memory]
    moved = [
        (r.what, f"{r.when}, over {'+'.join(r.axes)}", *r.wire_bytes) for r in found.collectives
    ]
    return template("comparison.html.jinja").render(
        title=f"{found.title}: plan and program",
        headline=found.headline,
        reason="" if found.agrees else found.reason,
        agrees=found.agrees,
        placement=found.placement,
        facts=_facts(found),
        figure=b64encode(figure).decode(),
        tables=[
            ("time", "Where does the time go?", _rows(times, format_seconds)),
            ("differences", "What differs?", _rows(differing, format_seconds)),
            ("collectives", "What do the collectives move?", _rows(moved, format_bytes)),
            ("memory", "What holds HBM?", _rows(memory, format_bytes)),
        ],
    )


def _facts(found: TwinComparison) -> list[Fact]:
    error = f"{found.error:+.1%} of the program's"
    return [
        Fact("Plan", format_seconds(found.plan_step_s), f"per step; {error}"),
        Fact("Program", format_seconds(found.program_step_s), "per step, as compiled"),
        Fact(
            "FLOPs, plan", format_rate(found.plan_flops, "FLOP"), "executed per step, all devices"
        ),
        Fact(
            "FLOPs, program",
            format_rate(found.program_flops, "FLOP"),
            "executed per step, all devices",
        ),
        Fact("Peak HBM, plan", format_bytes(found.plan_hbm_bytes), "per device"),
        Fact("Peak HBM, program", format_bytes(found.program_hbm_bytes), "per device"),
        Fact("Collectives in the same mode", f"{found.same_mode_share:.1%}", "of their bytes"),
        Fact("By the same algorithm", f"{found.same_algorithm_share:.1%}", "of their bytes"),
    ]


def _name(what: str, when: str) -> str:
    return f"{what}, {when}" if when else what


def _rows(
    values: Sequence[tuple[str, str, float, float]], written: Callable[[float], str]
) -> list[tuple[str, ...]]:
    """Return the first rows: name, what it is about, the values of plan and program."""
    return [
        (name, about, written(plan), written(program))
        for name, about, plan, program in values[:ROWS_SHOWN]
    ]
