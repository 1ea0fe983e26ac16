"""Commands on one step of a plan, and on the training run around it."""

import json
from typing import Annotated

import typer

from tpusim.base.collection import garbage_collector_on
from tpusim.cli.app import (
    AsJson,
    FoldOption,
    PageOption,
    Quiet,
    ReportFolder,
    RunFile,
    RunSettings,
    StatsOption,
    WithoutPass,
    app,
    explain_option,
    out_folder,
    printed,
)
from tpusim.cli.plan_help import PlanCommand


@app.command(cls=PlanCommand)
def simulate(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN.toml",
            help="A run: slice, model, plan; - is stdin. With --maxtext: KEY=VALUE.",
        ),
    ] = None,
    out: ReportFolder = None,
    html: PageOption = True,
    settings: RunSettings = None,
    stats: StatsOption = False,
    fold: FoldOption = True,
    program: Annotated[
        bool, typer.Option("--program", help="Show the partitioned program.")
    ] = False,
    network: Annotated[
        str, typer.Option("--network", metavar="MODE", help="flows, or hops: each message.")
    ] = "flows",
    explain: Annotated[str | None, explain_option(replayed=False)] = None,
    maxtext: Annotated[
        str | None,
        typer.Option(
            "--maxtext",
            metavar="CONFIG",
            help="A MaxText config, or defaults for its own, in place of RUN.toml.",
        ),
    ] = None,
    pod: Annotated[
        str | None, typer.Option("--slice", metavar="NAME", help="With --maxtext: v5e-256.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --maxtext: list all keys that are ignored.")
    ] = False,
    without: WithoutPass = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Simulate one training step of a run."""
    from tpusim.cli.simulate_command import read_arguments, simulate_run_file

    folder = out_folder(out, "report")
    if without:
        settings = [*(settings or ()), f"plan.without_passes={json.dumps(without)}"]
    given = read_arguments(run or (), settings or (), maxtext, pod, verbose=verbose)
    text = simulate_run_file(
        given, folder, stats=stats, fold=fold, program=program, explain=explain, network=network,
        as_json=as_json, html=html,
    )  # fmt: skip
    return printed(text, as_json=as_json, quiet=quiet)


@app.command()
def advise(
    run: RunFile,
    settings: RunSettings = None,
    top: Annotated[
        int | None, typer.Option("--top", metavar="N", help="Changes of each kind to show.")
    ] = None,
    as_json: AsJson = False,
) -> str:
    """Show what bounds the step of a run, and what changes of it would save."""
    from tpusim.cli.advise_command import advise_run_file

    return advise_run_file(run, settings or (), top=top, as_json=as_json)


@app.command()
def train(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN.toml...", help="Runs with a section [train]; several compare."),
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write JSON and figure there.")
    ] = None,
    settings: RunSettings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> str:
    """Simulate a training run: start-up, steps, evaluations, checkpoints, time and cost."""
    from tpusim.cli.train_command import train_run_files

    folder = out_folder(out, "report")
    return train_run_files(runs, settings or (), folder, as_json=as_json)


@app.command("input-rate")
def input_rate(
    sample: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.csv", help="Measured: stage, threads, records, bytes, seconds."
        ),
    ] = None,
) -> str:
    """Show the default rates of input pipelines with sources, or fit those of a sample."""
    from tpusim.cli.input_command import input_rates

    return input_rates(sample)


@app.command(cls=PlanCommand)
@garbage_collector_on()
def check(
    run: RunFile,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write table and figure there.")
    ] = None,
    settings: RunSettings = None,
    full: Annotated[
        bool, typer.Option("--full", help="Generate code too, in minutes instead of seconds.")
    ] = False,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="For the compiler.")
    ] = 600.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Compare a run with what the TPU compiler makes of it (extra: xla)."""
    from tpusim.cli.check_command import check_run_file

    text = check_run_file(
        run, settings or (), out_folder(out, "comparison"), full=full, time_limit=time_limit,
        as_json=as_json, quiet=quiet,
    )  # fmt: skip
    return printed(text, as_json=as_json, quiet=quiet)


@app.command(cls=PlanCommand)
def export(
    run: RunFile,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE.py", help="Write the program there.")
    ] = None,
    settings: RunSettings = None,
) -> str:
    """Write the training step of a run as a JAX program."""
    from tpusim.cli.export_command import export_run_file

    return export_run_file(run, settings or (), out)
