"""Commands on several steps: comparisons, sweeps, searches, scaling, measured runs."""

import json
import re
import sys
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from tpusim.base.collection import garbage_collector_on
from tpusim.base.errors import PlanError, blame
from tpusim.base.json_text import json_text
from tpusim.base.plain_text import visible
from tpusim.base.text_width import printed_on, wrapped
from tpusim.cli.app import (
    INTERRUPTED,
    AsJson,
    ClusterAddress,
    FigureFolder,
    Quiet,
    RunFile,
    RunSettings,
    TableFolder,
    WithoutPass,
    Workers,
    app,
    argument,
    executor_of,
    option,
    out_folder,
    printed,
    tried_folder,
    with_files,
)

if TYPE_CHECKING:
    from tpusim.sweeps.scaling import Scaling


@app.command()
def compare(
    paths: Annotated[
        list[str],
        argument("STEP", "Two or more: run files, result.json files or their folders, HLO files."),
    ],
    out: FigureFolder = None,
    settings: Annotated[
        list[str] | None,
        option("--set", "KEY=VALUE", "Compare one run file with this change of it."),
    ] = None,
    pod: Annotated[str | None, option("--slice", "SLICE", "Of HLO files, as in replay.")] = None,
    mesh: Annotated[str | None, option("--mesh", "AXES", "Of HLO files, as in replay.")] = None,
    model_flops: Annotated[
        float | None, option("--model-flops", "N", "Of HLO files, as in replay.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Compare steps, and attribute their difference to its causes."""
    from tpusim.cli.compare_command import compared_steps
    from tpusim.cli.program_commands import program_options
    from tpusim.report import compare, write_comparison

    folder = tried_folder(out, "comparison")
    options = program_options(pod, mesh, model_flops)
    found = compare(*compared_steps(paths, settings or (), options))
    text = json_text(found.facts()) if as_json else str(found)
    text = with_files(text, folder, partial(write_comparison, found), as_json=as_json)
    return printed(text, as_json=as_json, quiet=quiet)


@app.command()
@garbage_collector_on()
def sweep(
    path: Annotated[str, argument("SWEEP.toml", "A run, what to try; - is stdin.")],
    out: TableFolder = None,
    workers: Workers = None,
    cluster: ClusterAddress = None,
    settings: Annotated[
        list[str] | None, option("--set", "KEY=VALUE", "Change a key: sweep.placements=all.")
    ] = None,
    as_csv: Annotated[bool, option("--csv", None, "Print the table as CSV.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> tuple[str, int]:
    """Simulate many plans: mesh shapes, placements, any values."""
    from tpusim.base.csv_cells import frame_csv
    from tpusim.cli.progress import show_progress
    from tpusim.cli.sweep_command import REFUSED, kinds, resumable, sweep_json
    from tpusim.runfile import read_space
    from tpusim.sweeps import sweep
    from tpusim.sweeps.format import TEXT_INDENT, refused_kinds, sweep_text

    folder, where_run = out_folder(out, "table"), executor_of(cluster, workers)
    run, began = read_space(path, "sweep", settings or ()), monotonic()
    space = run.sweep
    assert space is not None
    with blame(run.where):
        progress_shown = show_progress("sweep", "plans", quiet=quiet)
        with resumable(folder), where_run as executor, progress_shown as progress:
            table = sweep(
                run.model, space, run.pod, input=run.input, workers=workers, executor=executor,
                progress=progress, out=folder,
            )  # fmt: skip
    refused = list(refused_kinds(table, kinds(space)))
    code = REFUSED if refused else 0
    if as_csv or as_json:
        print("".join(f"{visible(line)}\n" for line in refused), end="", file=sys.stderr)
        return sweep_json(table) if as_json else frame_csv(table).rstrip("\n"), code
    where = f"shapes of {run.pod.chip.name}" if space.shapes else run.pod
    head = (
        f"{len(table):,} plans of {run.model.name} on {where} ({run.pod.chips} chips) "
        f"in {monotonic() - began:.1f} s"
    )
    answer = sweep_text(table, head)
    if folder is not None:
        answer += f"\n\ntable       {folder}"
    lines = [line for each in refused for line in wrapped(each, "", TEXT_INDENT)]
    if lines:
        answer = "\n".join([answer, "", *lines])
    return printed(answer, as_json=False, quiet=quiet), code


@app.command()
@garbage_collector_on()
def search(
    path: Annotated[str, argument("RUN.toml", "A run with [search]: what to choose from.")],
    out: TableFolder = None,
    workers: Workers = None,
    cluster: ClusterAddress = None,
    local: Annotated[
        bool, option("--local", None, "Search locally, which proves nothing.")
    ] = False,
    count: Annotated[bool, option("--count", None, "Only say how many plans there are.")] = False,
    settings: Annotated[
        list[str] | None, option("--set", "KEY=VALUE", "Change a key: search.objective=cost.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> tuple[str, int]:
    """Find the best plan of a space and prove it, without simulating all."""
    from tpusim.cli.search_command import count_text, search_json, show_search, write_search
    from tpusim.runfile import ServerSearchRun, read_search
    from tpusim.searches import search
    from tpusim.searches.best import LOCAL
    from tpusim.searches.objectives import OBJECTIVES, checked_objectives
    from tpusim.searches.report import search_text, space_text

    where_run = executor_of(cluster, workers)
    given = read_search(path, settings or ())
    if isinstance(given, ServerSearchRun):
        from tpusim.cli.server_search import check_server_search, search_for_servers

        given_for_plans = {"--workers": workers is not None, "--cluster": cluster is not None}
        check_server_search(given, {**given_for_plans, "--local": local})
        folder = tried_folder(out, "table")
        text = search_for_servers(given, folder, count=count, as_json=as_json, quiet=quiet)
        return printed(text, as_json=as_json, quiet=quiet), 0
    asked, folder = given.search, tried_folder(out, "table")
    assert asked is not None
    space, how = asked.space, {**asked.how, **({"method": LOCAL} if local else {})}
    counted = f"{space_text(space)}, of {given.model.name}"
    if count:
        return count_text(counted, space, as_json=as_json), 0
    with blame(given.where):
        goal = OBJECTIVES[checked_objectives(how["objective"])[0]]
        shown = show_search(goal, counted, quiet=quiet or as_json)
        with where_run as executor, shown as progress:
            found = search(
                given.model, space, **how, run=given.train, input=given.input,
                workers=workers, executor=executor, progress=progress,
            )  # fmt: skip
    code = INTERRUPTED if found.interrupted else 0
    name = given.model.name
    answer = search_json(found, space) if as_json else search_text(found, space, name, timed=True)
    if folder is not None:
        with printed_on(None):
            write_search(found, space, search_text(found, space, name), folder)
        answer += "" if as_json else f"\n\ntable       {folder}"
    return printed(answer, as_json=as_json, quiet=quiet), code


@app.command()
@garbage_collector_on()
def scaling(
    run: RunFile,
    out: FigureFolder = None,
    settings: RunSettings = None,
    chips: Annotated[str | None, option("--chips", "N,N", "Chips of a slice: 64,128,256.")] = None,
    slices: Annotated[str | None, option("--slices", "N,N", "Slices over DCN: 1,2,4.")] = None,
    axis: Annotated[
        str | None,
        option("--axis", "NAME", "The axis that grows with the chips; else the batch's."),
    ] = None,
    measured: Annotated[
        str | None, option("--measured", "RUNS", "Measured runs; else published ones.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Show weak and strong scaling of a run over chips and slices."""
    from tpusim.cli.progress import show_work
    from tpusim.runfile import read_one_plan
    from tpusim.sweeps.scaling import scaling
    from tpusim.validation.measured_points import with_measured

    given = read_one_plan(run, settings or ())
    folder = tried_folder(out, "table")
    over = {"chips": _numbers("--chips", chips), "slices": _numbers("--slices", slices)}
    with blame(given.where), show_work("scaling", quiet=quiet):
        found = scaling(given.model, given.plan, given.pod, axis=axis, input=given.input, **over)
    found = with_measured(found, measured)
    text = _scaling_json(found) if as_json else str(found)
    text = with_files(text, folder, partial(_write_scaling, found), as_json=as_json)
    return printed(text, as_json=as_json, quiet=quiet)


def _numbers(option: str, text: str | None) -> list[int] | None:
    """Return the numbers of `64,128,256`. Raise PlanError for anything else."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,7}(,[0-9]{1,7})*", text):
        raise PlanError(f"{option} is {text!r}; write numbers such as 64,128,256")
    return [int(number) for number in text.split(",")]


def _scaling_json(found: "Scaling") -> str:
    """Return the curves as JSON: what grows, and an object for each point; NaN is null."""
    facts = {
        "model": found.model.name,
        "slice": str(found.pod),
        "grows": found.grows,
        "points": json.loads(found.table.to_json(orient="records", double_precision=15)),
    }
    return json_text(facts)


def _write_scaling(found: "Scaling", folder: Path) -> None:
    """Write `scaling.txt`, `.csv`, `.json`, `.png` and `.svg` into `folder`.

    Raise FileError if it cannot be written.
    """
    from tpusim.base.csv_cells import frame_csv
    from tpusim.base.text_files import write_files
    from tpusim.report import plot_scaling, scaling_data
    from tpusim.report.figures.render import figure_files

    title = f"{found.model.name} from {found.pod}"
    curves = scaling_data(found.table)
    files = {
        "scaling.txt": f"{found}\n".encode(),
        "scaling.csv": frame_csv(found.table).encode(),
        "scaling.json": f"{_scaling_json(found)}\n".encode(),
    }
    figures = figure_files("scaling", lambda: plot_scaling(curves, title=title), title)
    write_files(folder, files | figures)


@app.command()
@garbage_collector_on()
def validate(
    runs: Annotated[
        str, typer.Argument(metavar="RUNS", help="A folder of measured run files, or a table.")
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write the tables there.")
    ] = None,
    allow_failures: Annotated[
        bool, typer.Option("--allow-failures", help="Exit with 0 though some are not simulated.")
    ] = False,
    without: WithoutPass = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> tuple[str, int]:
    """Compare predicted with measured step times."""
    from tpusim.cli.validate_command import validate_runs

    text, code = validate_runs(
        runs, without or (), tried_folder(out, "tables"),
        allow_failures=allow_failures, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    return printed(text, as_json=as_json, quiet=quiet), code


@app.command()
@garbage_collector_on()
def calibrate(
    measured: Annotated[
        list[str],
        argument("MEASURED", "Profiles, run files with [measured], or folders of them."),
    ],
    out: Annotated[
        str | None,
        option("--out", "FILE", "Also write the factors there, for [slice] calibration."),
    ] = None,
    pod: Annotated[str | None, option("--slice", "SLICE", "Of the profiles, as in replay.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Learn factors of your chips from what you measured."""
    from tpusim.cli.calibrate_command import calibrate_on

    text = calibrate_on(measured, pod, out, as_json=as_json)
    return printed(text, as_json=as_json, quiet=quiet)
