"""Commands on several steps: comparisons, sweeps, searches, scaling, measured runs."""

from typing import Annotated

import typer

from tpusim.base.collection import garbage_collector_on
from tpusim.cli.app import (
    AsJson,
    ClusterAddress,
    Quiet,
    RunFile,
    RunSettings,
    TableFolder,
    WithoutPass,
    Workers,
    app,
    out_folder,
    printed,
)
from tpusim.cli.plan_help import PlanCommand


@app.command()
def compare(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...", help="Run files, result.json files or their folders, HLO files."
        ),
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write table and figure there.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Compare one run file with this change of it."
        ),
    ] = None,
    pod: Annotated[
        str | None, typer.Option("--slice", metavar="SLICE", help="Of HLO files, as in replay.")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="AXES", help="Of HLO files, as in replay.")
    ] = None,
    model_flops: Annotated[
        float | None,
        typer.Option("--model-flops", metavar="N", help="Of HLO files, as in replay."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Compare steps, and attribute their difference to its causes."""
    from tpusim.cli.compare_command import compare_files

    text = compare_files(
        paths,
        out_folder(out, "comparison"),
        settings=settings or (),
        pod=pod,
        mesh=mesh,
        model_flops=model_flops,
        as_json=as_json,
    )
    return printed(text, as_json=as_json, quiet=quiet)


@app.command(cls=PlanCommand)
@garbage_collector_on()
def sweep(
    path: Annotated[
        str, typer.Argument(metavar="SWEEP.toml", help="A run, what to try; - is stdin.")
    ],
    out: TableFolder = None,
    workers: Workers = None,
    cluster: ClusterAddress = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key: sweep.placements=all."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> tuple[str, int]:
    """Simulate many plans: mesh shapes, placements, any values."""
    from tpusim.cli.sweep_command import sweep_file

    text, code = sweep_file(
        path, settings or (), out_folder(out, "table"), workers, cluster,
        as_csv=as_csv, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    return printed(text, as_json=as_csv or as_json, quiet=quiet), code


@app.command()
@garbage_collector_on()
def search(
    path: Annotated[
        str, typer.Argument(metavar="RUN.toml", help="A run with [search]: what to choose from.")
    ],
    out: TableFolder = None,
    workers: Workers = None,
    cluster: ClusterAddress = None,
    local: Annotated[
        bool, typer.Option("--local", help="Search locally, which proves nothing.")
    ] = False,
    count: Annotated[
        bool, typer.Option("--count", help="Only say how many plans there are.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key: search.objective=cost."),
    ] = None,
) -> str | tuple[str, int]:
    """Find the best plan of a space and prove it, without simulating all."""
    from tpusim.cli.search_command import search_file

    return search_file(
        path, settings or (), out_folder(out, "table"), workers, cluster, local=local, count=count
    )


@app.command(cls=PlanCommand)
@garbage_collector_on()
def scaling(
    run: RunFile,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write table and figure there.")
    ] = None,
    settings: RunSettings = None,
    chips: Annotated[
        str | None,
        typer.Option("--chips", metavar="N,N", help="Chips of a slice: 64,128,256."),
    ] = None,
    slices: Annotated[
        str | None, typer.Option("--slices", metavar="N,N", help="Slices over DCN: 1,2,4.")
    ] = None,
    axis: Annotated[
        str | None,
        typer.Option(
            "--axis", metavar="NAME", help="The axis that grows with the chips; else the batch's."
        ),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option("--measured", metavar="RUNS", help="Measured runs; else published ones."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Show weak and strong scaling of a run over chips and slices."""
    from tpusim.cli.scaling_command import scaling_file

    text = scaling_file(
        run, settings or (), out_folder(out, "table"), chips=chips, slices=slices, axis=axis,
        measured=measured, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    return printed(text, as_json=as_json, quiet=quiet)


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
        runs, without or (), out_folder(out, "tables"),
        allow_failures=allow_failures, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    return printed(text, as_json=as_json, quiet=quiet), code
