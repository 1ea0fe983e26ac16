"""Commands on compiled programs."""

from typing import Annotated

import typer

from tpusim.base.collection import garbage_collector_on
from tpusim.cli.app import (
    AsJson,
    FoldOption,
    PageOption,
    Quiet,
    ReportFolder,
    StatsOption,
    app,
    explain_option,
    out_folder,
    printed,
)


@app.command(name="compile")
@garbage_collector_on()
def compile_(
    path: Annotated[
        str,
        typer.Argument(metavar="FILE", help="StableHLO, text or bytecode, or a jax.export."),
    ],
    pod: Annotated[str, typer.Option("--slice", metavar="SLICE", help="To compile for: v5e:4x4.")],
    mesh: Annotated[
        str | None,
        typer.Option("--mesh", metavar="AXES", help="If the file names none: fsdp=4,tensor=4."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE.hlo[.gz]", help="Keep it, for replay.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Generate code too, in minutes instead of seconds.")
    ] = False,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="For the compiler.")
    ] = 600.0,
) -> str:
    """Compile an exported program for a slice, and replay it (extra: xla)."""
    from tpusim.cli.compile_command import compile_file

    return compile_file(path, pod=pod, mesh=mesh, out=out, full=full, time_limit=time_limit)


@app.command()
def replay(
    path: Annotated[
        str, typer.Argument(metavar="FILE.hlo[.gz]", help="HLO of the TPU compiler: text or proto.")
    ],
    pod: Annotated[
        str | None,
        typer.Option(
            "--slice",
            metavar="SLICE",
            help="The slice it was compiled for, if the file does not say: v4:8x16x16.",
        ),
    ] = None,
    out: ReportFolder = None,
    html: PageOption = True,
    costs: Annotated[
        str | None,
        typer.Option(
            "--costs",
            metavar="SOURCE",
            help="Seconds of work: model (of shapes, the default), or compiler (its estimates).",
        ),
    ] = None,
    model_flops: Annotated[
        float | None,
        typer.Option(
            "--model-flops",
            metavar="N",
            help="FLOPs of a step on all devices, without recomputation, for the MFU.",
        ),
    ] = None,
    padding_taps: Annotated[
        bool,
        typer.Option(
            "--padding-taps/--no-padding-taps",
            help="Count the FLOPs of taps of convolutions on padding, as plans do.",
        ),
    ] = True,
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh", metavar="AXES", help="Its mesh, if the file does not say: fsdp=256,tensor=8."
        ),
    ] = None,
    stats: StatsOption = False,
    fold: FoldOption = True,
    program: Annotated[bool, typer.Option("--program", help="Show the program as read.")] = False,
    explain: Annotated[str | None, explain_option(replayed=True)] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Replay what the TPU compiler made of a JAX program (extra: xla)."""
    from tpusim.cli.replay_command import replay_file

    text = replay_file(
        path,
        out_folder(out, "report"),
        pod=pod,
        costs=costs,
        mesh=mesh,
        model_flops=model_flops,
        padding_taps=padding_taps,
        stats=stats,
        fold=fold,
        program=program,
        explain=explain,
        as_json=as_json,
        quiet=quiet,
        html=html,
    )
    return printed(text, as_json=as_json, quiet=quiet)
