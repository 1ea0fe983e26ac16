"""Commands on one step of a plan, on the training run around it, and on a server."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tpusim.base.collection import garbage_collector_on
from tpusim.base.errors import FileError, PlanError, blame
from tpusim.base.json_text import json_text
from tpusim.base.shown_value import shown
from tpusim.cli.app import (
    AsJson,
    FigureFolder,
    FoldOption,
    FullCode,
    PageOption,
    Quiet,
    ReportFolder,
    RunFile,
    RunSettings,
    ServerStep,
    StatsOption,
    TimeLimit,
    WithoutPass,
    app,
    argument,
    explain_option,
    option,
    out_folder,
    printed,
    tried_folder,
    with_files,
)

if TYPE_CHECKING:
    from tpusim.plan import MeasuredStage
    from tpusim.runfile import ServingRun, SimulationRun

OTHER_VERDICT = 4
"""The exit code of a check where plan and compiler differ on whether the program fits."""

SAMPLE_COLUMNS = ("stage", "threads", "records", "bytes", "seconds")
SAMPLE_HELP = f"a CSV file with the columns {', '.join(SAMPLE_COLUMNS)}"


@app.command()
def simulate(
    run: Annotated[
        list[str] | None,
        argument("RUN.toml", "A run: slice, model, plan; - is stdin. With --maxtext: KEY=VALUE."),
    ] = None,
    out: ReportFolder = None,
    html: PageOption = True,
    settings: RunSettings = None,
    stats: StatsOption = False,
    fold: FoldOption = True,
    program: Annotated[bool, option("--program", None, "Show the partitioned program.")] = False,
    network: Annotated[str, option("--network", "MODE", "flows, or hops: each message.")] = "flows",
    explain: Annotated[str | None, explain_option(replayed=False)] = None,
    maxtext: Annotated[
        str | None,
        option(
            "--maxtext",
            "CONFIG",
            "A MaxText config, or defaults for its own, in place of RUN.toml.",
        ),
    ] = None,
    pod: Annotated[str | None, option("--slice", "NAME", "With --maxtext: v5e-256.")] = None,
    verbose: Annotated[
        bool, option("--verbose", None, "With --maxtext: list the ignored keys, and why.")
    ] = False,
    without: WithoutPass = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Simulate one training step of a run, or the steps of a server."""
    from tpusim.cli.simulate_command import read_arguments, simulate_run_file
    from tpusim.runfile import ServingRun

    folder = out_folder(out, "report")
    if without:
        settings = [*(settings or ()), f"plan.without_passes={json.dumps(without)}"]
    given = read_arguments(run or (), settings or (), maxtext, pod, verbose=verbose)
    if isinstance(given, ServingRun):
        from tpusim.cli.serve_command import check_options, simulate_server

        check_options(
            given.where, {"--stats": stats, "--program": program, "--explain": bool(explain),
                          "--no-fold": not fold, "--network": network != "flows"},
        )  # fmt: skip
        text = simulate_server(given, folder, as_json=as_json, html=html)
        return printed(text, as_json=as_json, quiet=quiet)
    text = simulate_run_file(
        given, folder, stats=stats, fold=fold, program=program, explain=explain, network=network,
        as_json=as_json, html=html, quiet=quiet,
    )  # fmt: skip
    return printed(text, as_json=as_json, quiet=quiet)


@app.command()
def advise(
    run: RunFile,
    settings: RunSettings = None,
    top: Annotated[int | None, option("--top", "N", "Changes of each kind to show.")] = None,
    quick: Annotated[bool, option("--quick", None, "Try single changes only.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Show what bounds the step of a run, and what changes of it would save, or make it fit."""
    from tpusim.cli.progress import show_work
    from tpusim.runfile import read_advised
    from tpusim.simulation import simulate

    if top is not None and top < 1:
        raise PlanError(f"--top is {top}; write the number of changes to show, from 1 up")
    given = read_advised(run, settings or ())
    if isinstance(given, tuple):
        from tpusim.cli.server_search import advise_server

        with show_work("trying changes", quiet=quiet):
            text = advise_server(*given, top=top, as_json=as_json)
        return printed(text, as_json=as_json, quiet=quiet)
    with blame(given.where), show_work("trying changes", quiet=quiet):
        found = simulate(given.model, given.plan, given.pod, input=given.input).advice(quick=quick)
    text = json_text(found.facts()) if as_json else str(found if top is None else found.shown(top))
    return printed(text, as_json=as_json, quiet=quiet)


@app.command()
def train(
    runs: Annotated[
        list[str], argument("RUN.toml", "Runs with a section [train]; several compare.")
    ],
    out: ReportFolder = None,
    html: PageOption = True,
    settings: RunSettings = None,
    advise: Annotated[
        bool, option("--advise", None, "Simulate what would help a run with failures.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Simulate a training run: start-up, steps, checkpoints, failures, time and cost."""
    from tpusim.cli.train_command import advised, training_results, training_table
    from tpusim.report import write_training
    from tpusim.report.training_files import training_json, training_text

    if out is not None and len(runs) > 1:
        raise PlanError(f"--out is for one run, and {len(runs)} are given; give one of them")
    folder = tried_folder(out, "report")
    found = list(training_results(runs, settings or (), quiet=quiet))
    first = found[0][1]
    advice = advised(found) if advise else None
    if len(found) > 1:
        facts = [result.facts() for _, result in found]
        answer = json_text(facts) if as_json else training_table(found)
    else:
        answer = training_json(first, advice) if as_json else training_text(first, advice)
    write = partial(write_training, first, advice=advice, html=html)
    text = with_files(answer, folder, write, as_json=as_json)
    return printed(text, as_json=as_json, quiet=quiet)


@app.command()
def serve(
    run: Annotated[
        str, argument("RUN.toml", "A server: slice, model, serving, traffic; - is stdin.")
    ],
    out: ReportFolder = None,
    html: PageOption = True,
    settings: RunSettings = None,
    loads: Annotated[
        str | None, option("--loads", "N,N", "Compare loads: requests/s, or users, such as 1,2,4.")
    ] = None,
    knee: Annotated[bool, option("--knee", None, "Find the load that saturates it.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Simulate a server and its requests: latency, throughput, what bounds it, and cost."""
    from tpusim.cli.progress import show_work
    from tpusim.cli.serve_command import (
        load_numbers,
        load_table,
        serve_loads,
        serve_run,
        write_loads,
    )
    from tpusim.report import write_serving
    from tpusim.runfile import read_serving

    folder = tried_folder(out, "report")
    asked = None if loads is None else load_numbers(loads)
    given = read_serving(run, settings or ())
    if knee:
        from tpusim.cli.server_search import find_knee

        if asked is not None or folder is not None:
            raise PlanError("--knee is a search of its own; leave --loads and --out out")
        with show_work("serving", quiet=quiet):
            text = find_knee(given, as_json=as_json)
        return printed(text, as_json=as_json, quiet=quiet)
    with show_work("serving", quiet=quiet):
        found = [serve_run(given)] if asked is None else serve_loads(given, asked)
    if asked is None:
        answer = json_text(found[0].facts()) if as_json else str(found[0])
        write = partial(write_serving, found[0], html=html)
    else:
        facts = [result.facts() for result in found]
        answer = json_text(facts) if as_json else load_table(found)
        write = partial(write_loads, found)
    text = with_files(answer, folder, write, as_json=as_json)
    return printed(text, as_json=as_json, quiet=quiet)


@app.command("input-rate")
def input_rate(
    sample: Annotated[
        str | None, argument("FILE.csv", "Measured: stage, threads, records, bytes, seconds.")
    ] = None,
) -> str:
    """Show the default rates of input pipelines with sources, or fit those of a sample."""
    from tpusim.base.text_files import read_text
    from tpusim.plan import fit_stages, rate_lines

    if sample is None:
        return "\n".join(rate_lines())
    with blame(sample):
        text = read_text(Path(sample), "a sample of an input pipeline", SAMPLE_HELP)
        return str(fit_stages([*_sample(text)]))


def _sample(text: str) -> "Iterator[MeasuredStage]":
    """Yield the sample of each row. Raise FileError for what is missing or no number."""
    from tpusim.base.csv_cells import csv_rows
    from tpusim.plan import MeasuredStage

    header, *rows = csv_rows(text) or [[]]
    for column in SAMPLE_COLUMNS:
        if header.count(column) != 1:
            fault = "in the header twice" if column in header else "missing"
            raise FileError(f"the column {column} is {fault}; write {SAMPLE_HELP}")
    for number, row in enumerate(rows, 1):
        line = dict(zip(header, row, strict=True))
        values = []
        for column in SAMPLE_COLUMNS[1:]:
            try:
                values.append(float(line[column]))
            except ValueError as error:
                raise FileError(
                    f"row {number} has {shown(line[column])} in the column {column}; write a number"
                ) from error
        yield MeasuredStage(line["stage"], *values)


def _check_step(given: "SimulationRun | ServingRun", step: str | None) -> None:
    """Raise FileError for a kind of step where there is no server."""
    from tpusim.runfile import ServingRun

    if step is not None and not isinstance(given, ServingRun):
        raise FileError(f"{given.where}: --step is for a server, and the file has no [serving]")


@app.command()
@garbage_collector_on()
def check(
    run: RunFile,
    out: FigureFolder = None,
    settings: RunSettings = None,
    step: ServerStep = None,
    full: FullCode = False,
    time_limit: TimeLimit = 600.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> tuple[str, int]:
    """Compare a step of a run with what the TPU compiler makes of it (extra: xla)."""
    from tpusim.cli.progress import show_work
    from tpusim.cli.serve_command import step_load
    from tpusim.compiler.compile_apart import check_time_limit
    from tpusim.compiler_check import check, check_serving
    from tpusim.compiler_check.compile_step import step_versions
    from tpusim.report import write_check
    from tpusim.runfile import ServingRun, read_step

    given = read_step(run, settings or ())
    _check_step(given, step)
    with blame("--time-limit"):
        check_time_limit(time_limit)
    folder = tried_folder(out, "comparison")
    step_versions(trains=not isinstance(given, ServingRun))
    with blame(given.where), show_work("compiling", quiet=quiet):
        if isinstance(given, ServingRun):
            load = step_load(given, step)
            made = check_serving(
                given.model, given.plan, given.pod, load, full=full, time_limit=time_limit
            )
        else:
            made = check(given.model, given.plan, given.pod, full=full, time_limit=time_limit)
    text = json_text(made.comparison.facts()) if as_json else str(made)
    text = with_files(text, folder, partial(write_check, made.comparison), as_json=as_json)
    code = 0 if made.comparison.hbm.same_verdict else OTHER_VERDICT
    return printed(text, as_json=as_json, quiet=quiet), code


@app.command()
def export(
    run: RunFile,
    out: Annotated[str | None, option("--out", "FILE.py", "Write the program there.")] = None,
    settings: RunSettings = None,
    step: ServerStep = None,
) -> str:
    """Write the training step of a run, or a step of a server, as a JAX program."""
    from tpusim.base.text_files import write_file, written_place
    from tpusim.cli.serve_command import step_load
    from tpusim.export import export_jax, export_serving
    from tpusim.runfile import ServingRun, read_step

    path = None if out is None else written_place(Path(out))
    given = read_step(run, settings or ())
    _check_step(given, step)
    with blame(given.where):
        if isinstance(given, ServingRun):
            load = step_load(given, step)
            source = export_serving(given.model, given.plan, given.pod, load)
        else:
            source = export_jax(given.model, given.plan, given.pod)
    does = "serves" if isinstance(given, ServingRun) else "trains on"
    if path is None:
        return source.rstrip("\n")
    write_file(path, source.encode())
    count = len(source.splitlines())
    return f"{out}: {count} lines of JAX; python {out} {does} random tokens, on {given.pod}"
