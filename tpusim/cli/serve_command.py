"""The servers of `tpusim serve` and of `tpusim simulate`: their results, tables and files."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from tpusim.base.errors import FileError, PlanError, blame, nearest
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.base.text_table import wrapped_table
from tpusim.base.text_width import printed_on
from tpusim.base.units import format_dollars, format_seconds
from tpusim.report import check_folder, document, load_data, plot_load, write_report
from tpusim.results import entry
from tpusim.runfile import ServingRun
from tpusim.server.step_load import StepLoad
from tpusim.serving import ServingResult
from tpusim.serving.full_steps import OUTPUT, PROMPT, full_loads, full_steps
from tpusim.serving.result import SATURATED, number
from tpusim.serving.serve import Server, serve

MOST_LOAD = 1e9

STEPS = ("prefill", "decode")
"""The steps of a server that are exported and checked."""

LOAD_HEAD = (
    *("load", "requests/s", "tokens/s out", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"),
    *("batch", "USD per 1M out"),
)


def serve_run(run: ServingRun) -> ServingResult:
    """Return the simulated server of a run file. Raise PlanError without a section [traffic]."""
    with blame(run.where):
        traffic = run.requests()
        options = {**asdict(run.options), "failures": run.failures}
        result = serve(run.model, run.plan, run.pod, traffic, run.engine, **options)
        return replace(result, notes=(*result.notes, *run.notes))


def check_options(where: str, given: Mapping[str, bool]) -> None:
    """Raise FileError for an option that the steps of a server do not have."""
    for name, is_given in given.items():
        if is_given:
            raise FileError(
                f"{where}: {name} is for a step of training, and the file has [serving]"
            )


def load_numbers(text: str) -> list[float]:
    """Return the numbers of `1,2,4.5`. Raise PlanError for anything else."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < each < MOST_LOAD for each in found):
        raise PlanError(f"--loads is {text!r}; write numbers above 0, such as 1,2,4")
    return found


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
                f'{run.traffic.kind} has none; write kind = "poisson"'
            )
        changed = []
        for load in loads:
            if key == "users" and load != int(load):
                raise PlanError(f"--loads has {load:g} users; write whole numbers")
            users = key == "users"
            changed.append(
                replace(run.traffic, users=int(load)) if users else replace(run.traffic, rate=load)
            )
    return [serve_run(replace(run, traffic=traffic)) for traffic in changed]


def load_table(results: Sequence[ServingResult]) -> str:
    """Return a table with a row for each load."""
    return "\n".join(wrapped_table([LOAD_HEAD, *map(_row, results)], left=1))


def _row(result: ServingResult) -> tuple[str, ...]:
    numbers, times = result.metrics.numbers, result.metrics.times
    users = result.traffic.users
    waits = (times["ttft"].p50, times["ttft"].p99)
    cost = result.output_cost
    load = f"{users} user{'s' * (users > 1)}" if users else ""
    return (
        load or f"{number(result.load.offered)} requests/s",
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
    from tpusim.report.figures.render import figure_files

    data = load_data(results)
    files = {
        "loads.txt": f"{load_table(results)}\n".encode(),
        "loads.json": f"{json_text([result.facts() for result in results])}\n".encode(),
    } | figure_files("loads", partial(plot_load, data), data.title)
    write_files(folder, files)


def _lengths(run: ServingRun) -> tuple[float, float]:
    """Return the mean tokens of a prompt and of an answer."""
    if run.traffic is None:
        return PROMPT, OUTPUT
    requests = run.requests().requests
    return float(requests.prompt.mean()), float(requests.output.mean())


def step_load(run: ServingRun, step: str | None) -> StepLoad:
    """Return the load of a step of a server that is full, as of `simulate_server`.

    step: one of `STEPS`; None for the last. Raise PlanError for another word.
    """
    step = STEPS[-1] if step is None else step
    if step not in STEPS:
        raise PlanError(f"--step is {step!r}; {nearest(step, STEPS)}")
    with blame(run.where):
        prompt, output = _lengths(run)
        longest = round(prompt + output)
        server = Server.of(run.model, run.plan, run.pod, run.engine, longest=longest)
        return full_loads(server.policy, prompt, output)[STEPS.index(step)]


def simulate_server(
    run: ServingRun, folder: Path | None, *, as_json: bool, html: bool = True
) -> str:
    """Simulate a step of prompts and one that decodes, and return their reports.

    The requests are the mean ones of the section [traffic], if there is one. A folder gets the
    reports of both.
    """
    if folder is not None:
        check_folder(folder)
    with blame(run.where):
        prompt, output = _lengths(run)
        steps = full_steps(run.model, run.plan, run.pod, run.engine, prompt=prompt, output=output)
    if folder is not None:
        with printed_on(None):
            for name, step in (("prefill", steps.prefill), ("decode", steps.decode)):
                write_report(step, folder / name, html=html)
    if as_json:
        return json_text(
            {
                "cache_tokens": steps.room.tokens,
                "prefill": document(steps.prefill),
                "decode": document(steps.decode),
            }
        )
    notes = ("\n".join(entry("note", note)) for note in run.notes)
    return "\n\n".join([str(steps), *notes, *([] if folder is None else [f"report      {folder}"])])
