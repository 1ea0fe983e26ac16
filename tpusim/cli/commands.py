"""The commands. Each returns the text that is printed; what they need loads when they run."""

from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli.collecting import uncollected
from tpusim.errors import FileError

app = typer.Typer(
    name="tpusim",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from tpusim import __version__

        typer.echo(f"tpusim {__version__}")
        raise typer.Exit


def _folder(out: str | None, what: str) -> Path | None:
    """The folder that `--out` names, for `what` is written there."""
    if out == "":
        raise FileError(f"--out is empty; give a folder to write the {what} to")
    return None if out is None else Path(out)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Predict step time, MFU and memory of a sharding plan on a TPU pod."""


@app.command()
def chips(
    name: Annotated[str | None, typer.Argument(help="A chip, such as v5p.")] = None,
) -> str:
    """Show the catalogue, or every number of one chip with its source."""
    from tpusim.hardware.show import show_chip, show_chips

    return show_chips() if name is None else show_chip(name)


@app.command()
@uncollected()
def simulate(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN.toml", help="A run: slice, model, plan. With --maxtext: KEY=VALUE."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write the report there.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key: plan.remat=minimal."),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Show what the simulation cost.")] = False,
    fold: Annotated[
        bool, typer.Option("--fold/--no-fold", help="Book repeated trips instead of running each.")
    ] = True,
    program: Annotated[
        bool, typer.Option("--program", help="Show the partitioned program.")
    ] = False,
    network: Annotated[
        str, typer.Option("--network", metavar="MODE", help="flows, or hops: each message.")
    ] = "flows",
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain", metavar="WHAT", help="Show why: placement, collectives, pipeline, lines."
        ),
    ] = None,
    maxtext: Annotated[
        str | None,
        typer.Option(
            "--maxtext", metavar="CONFIG",
            help="A MaxText config, or defaults for its own, in place of RUN.toml.",
        ),
    ] = None,
    pod: Annotated[
        str | None, typer.Option("--slice", metavar="NAME", help="With --maxtext: v5e-256.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --maxtext: list all keys that are ignored.")
    ] = False,
) -> str:  # fmt: skip
    """Simulate one training step of a run."""
    from tpusim.cli.simulation import given_run, simulation

    folder = _folder(out, "report")
    given = given_run(run or (), settings or (), maxtext, pod, verbose=verbose)
    return simulation(
        given, folder, stats=stats, fold=fold, program=program, explain=explain,
        network=network,
    )  # fmt: skip


@app.command()
@uncollected()
def replay(
    path: Annotated[
        str,
        typer.Argument(metavar="FILE.hlo[.gz]", help="HLO of the TPU compiler: text or proto."),
    ],
    pod: Annotated[
        str | None,
        typer.Option(
            "--slice", metavar="SLICE",
            help="The slice it was compiled for, if the file does not say: v4:8x16x16.",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write the report there.")
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(
            "--costs", metavar="WHOSE",
            help="Seconds of work: model (of shapes, the default), or compiler (its estimates).",
        ),
    ] = None,
    model_flops: Annotated[
        float | None,
        typer.Option(
            "--model-flops", metavar="N",
            help="FLOPs of a step on all devices, without recomputation, for the MFU.",
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh", metavar="AXES", help="Its mesh, if the file does not say: fsdp=256,tensor=8."
        ),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Show what the simulation cost.")] = False,
    fold: Annotated[
        bool, typer.Option("--fold/--no-fold", help="Book repeated trips instead of running each.")
    ] = True,
    program: Annotated[bool, typer.Option("--program", help="Show the program as read.")] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="WHAT", help="Show why: lines, collectives.")
    ] = None,
) -> str:  # fmt: skip
    """Replay what the TPU compiler made of a JAX program (extra: xla)."""
    from tpusim.cli.replaying import replaying

    return replaying(
        path, _folder(out, "report"), pod=pod, costs=costs, mesh=mesh, model_flops=model_flops,
        stats=stats, fold=fold, program=program, explain=explain,
    )  # fmt: skip


@app.command()
def validate(
    runs: Annotated[str, typer.Argument(metavar="RUNS.csv", help="Measured runs, a row a run.")],
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write the tables there.")
    ] = None,
    allow_failures: Annotated[
        bool, typer.Option("--allow-failures", help="Exit with 0 though some are not simulated.")
    ] = False,
) -> tuple[str, int]:
    """Compare predicted with measured step times."""
    from tpusim.cli.validation import validation

    return validation(runs, _folder(out, "tables"), allow_failures=allow_failures)


@app.command()
def sweep(
    path: Annotated[str, typer.Argument(metavar="SWEEP.toml", help="A run, and what to try.")],
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write the table there.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Processes; by default one a CPU.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key: sweep.placements=all."),
    ] = None,
) -> str:
    """Simulate many plans: mesh shapes, placements, any values."""
    from tpusim.cli.sweeping import sweeping

    return sweeping(path, settings or (), _folder(out, "table"), workers)
