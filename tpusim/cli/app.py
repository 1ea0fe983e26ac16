"""The command line's application, and the options that commands share.

A command returns the text to print, and imports what it needs when it runs.
"""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from tpusim.base.errors import FileError
from tpusim.cli.completion import complete_explanation, complete_setting
from tpusim.cli.explanations import explanations

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="tpusim",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)

explain_app = typer.Typer(
    rich_markup_mode=None,
    help="Show what one operation costs, and what other shapes would.",
    context_settings=HELP_OPTIONS,
)
app.add_typer(explain_app, name="explain")


def _print_version(wanted: bool) -> None:
    if wanted:
        from tpusim import __version__

        typer.echo(f"tpusim {__version__}")
        raise typer.Exit


def explain_option(*, replayed: bool) -> Any:
    """Return the option `--explain`, whose help lists what can be explained."""
    return typer.Option(
        "--explain",
        metavar="NAME",
        help=f"Show why: {', '.join(explanations(replayed=replayed))}.",
        autocompletion=complete_explanation,
    )


ReportFolder: TypeAlias = Annotated[
    str | None, typer.Option("--out", metavar="DIR", help="Also write the report there.")
]
PageOption: TypeAlias = Annotated[
    bool, typer.Option("--html/--no-html", help="With --out: also write report.html.")
]
RunFile: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN.toml", help="A run: slice, model, plan; - is stdin.")
]
RunSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key: plan.remat=minimal.",
        autocompletion=complete_setting,
    ),
]
TableFolder: TypeAlias = Annotated[
    str | None, typer.Option("--out", metavar="DIR", help="Also write the table there.")
]
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", help="Processes; by default one per CPU."),
]
ClusterAddress: TypeAlias = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help="A Dask scheduler instead (extra: cluster)."),
]
StatsOption: TypeAlias = Annotated[
    bool, typer.Option("--stats", help="Show what the simulation cost.")
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no progress, and no report (but for --json).")
]
WithoutPass: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--without", metavar="PASS", help="Switch off a pass of the lowering, or all `observed`."
    ),
]
FoldOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fold/--no-fold",
        help="Book repeated iterations, and devices that are alike, instead of each.",
    ),
]


def out_folder(out: str | None, content: str) -> Path | None:
    """Return the folder that `--out` names. Raise FileError if the name is empty."""
    if out == "":
        raise FileError(f"--out is empty; give a folder to write the {content} to")
    return None if out is None else Path(out)


def printed(text: str, *, as_json: bool, quiet: bool) -> str:
    """Return the text that a command prints: nothing if it is quiet, unless it is JSON."""
    return "" if quiet and not as_json else text


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Predict step time, MFU and memory of a sharding plan on a TPU pod."""
