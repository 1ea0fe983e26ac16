"""The servers of `tpusim serve` and of `tpusim simulate`: their results, tables and files."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tpusim.base.errors import PlanError, blame
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.base.text_table import wrapped_table
from tpusim.base.units import format_dollars, format_seconds
from tpusim.report import document, load_data, plot_load, write_report, write_serving
from tpusim.results import ServedStep
from tpusim.results.summary import summary
from tpusim.runfile import ServingRun
from tpusim.serving import SATURATED, ServingResult, number
from tpusim.serving.serve import serve
from tpusim.serving.steps import typical_step_pair

LOAD_HEAD = (
    *("load", "requests/s", "tokens/s out", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"),
    *("batch", "USD per 1M out"),
)


def serve_run(run: ServingRun) -> ServingResult:
    """Return the simulated server of a run file. Raise PlanError without a section [traffic]."""
    with blame(run.where):
        if run.traffic is None:
            raise PlanError(
                "the section [traffic] is missing; write one with rate, requests, prompt and output"
            )
        traffic = run.traffic.traffic(run.folder)
        result = serve(
            run.model, run.plan, run.pod, traffic, run.engine, replicas=run.replicas
        )
        return replace(result, notes=(*result.notes, *run.notes))


def serve_loads(run: ServingRun, loads: Sequence[float]) -> list[ServingResult]:
    """Return the server of a run file at several loads.

    loads: requests/s, or users of a closed loop.

    Raise PlanError for a trace and a burst, which have no load to change.
    """
    with blame(run.where):
        if run.traffic is None:
            raise PlanError("the section [traffic] is missing; --loads changes its rate or users")
        key = "users" if run.traffic.kind == "closed_loop" else "rate"
        if run.traffic.kind in ("trace", "burst"):
            raise PlanError(
                f"--loads changes the rate of requests, and traffic of the kind "
                f"{run.traffic.kind} has none; write kind = \"poisson\""
            )
        changed = []
        for load in loads:
            if key == "users" and load != int(load):
                raise PlanError(f"--loads has {load:g} users; write whole numbers")
            changed.append(replace(run.traffic, **{key: int(load) if key == "users" else load}))
    return [serve_run(replace(run, traffic=traffic)) for traffic in changed]


def load_table(results: Sequence[ServingResult]) -> str:
    """Return a table with a row for each load."""
    return "\n".join(wrapped_table([LOAD_HEAD, *map(_row, results)], left=1))


def _row(result: ServingResult) -> tuple[str, ...]:
    numbers, times = result.metrics.numbers, result.metrics.times
    users = result.traffic.users
    waits = (times["ttft"].p50, times["ttft"].p99)
    cost = result.output_cost
    return (
        f"{users} users" if users else f"{number(result.load.offered)} requests/s",
        number(numbers["requests_per_s"]),
        number(numbers["output_tokens_per_s"]),
        *(SATURATED if result.saturated else format_seconds(each) for each in waits),
        format_seconds(times["tpot"].p50),
        format_seconds(times["tpot"].p99),
        f"{numbers['batch']:,.3g}",
        "-" if cost is None else format_dollars(cost.usd),
    )


def write_loads(results: Sequence[ServingResult], folder: Path) -> None:
    """Write `loads.txt`, `.json`, `.png` and `.svg` into `folder`."""
    from functools import partial

    from tpusim.report.figures.render import figure_files

    data = load_data(results)
    files = {
        "loads.txt": f"{load_table(results)}\n".encode(),
        "loads.json": f"{json_text([result.facts() for result in results])}\n".encode(),
    } | figure_files("loads", partial(plot_load, data), data.title)
    write_files(folder, files)


class StepPair(NamedTuple):
    """A step of prompts and one that decodes, of a server that is full."""

    room: str
    prefill: ServedStep
    decode: ServedStep

    def __str__(self) -> str:
        parts = (f"cache       {self.room}", *(summary(step) for step in self[1:]))
        return "\n\n".join(parts)

    def json(self) -> str:
        """Return both steps as JSON, each as `result.json` has it."""
        return json_text(
            {"cache": self.room, "prefill": document(self.prefill), "decode": document(self.decode)}
        )

    def write(self, folder: Path, *, html: bool = True) -> None:
        """Write the reports of both steps into `prefill` and `decode` of a folder."""
        for name, step in (("prefill", self.prefill), ("decode", self.decode)):
            write_report(step, folder / name, html=html)
