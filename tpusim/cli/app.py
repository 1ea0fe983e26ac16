"""The command line's application, and the options that commands share.

A command returns the text to print, and imports what it needs when it runs.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from tpusim.base.errors import FileError, TpusimError
from tpusim.base.text_width import printed_on
from tpusim.cli.completion import complete_explanation, complete_setting
from tpusim.cli.explanations import explanations
from tpusim.cli.help import EXAMPLES, App

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

app = App(
    name="tpusim",
    epilog=EXAMPLES["simulate"],
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)

explain_app = App(
    epilog=EXAMPLES["conv"],
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


def option(name: str, metavar: str | None, text: str) -> Any:
    """Return an option of one name with the help `text`; without `metavar`, that of its type."""
    return typer.Option(name, metavar=metavar, help=text)


def argument(metavar: str, text: str) -> Any:
    """Return an argument with the help `text`."""
    return typer.Argument(metavar=metavar, help=text)


def explain_option(*, replayed: bool) -> Any:
    """Return the option `--explain`, whose help lists what can be explained."""
    return typer.Option(
        "--explain",
        metavar="NAME",
        help=f"Show why: {', '.join(explanations(replayed=replayed))}.",
        autocompletion=complete_explanation,
    )


ReportFolder: TypeAlias = Annotated[
    str | None, option("--out", "DIR", "Also write the report there.")
]
TableFolder: TypeAlias = Annotated[
    str | None, option("--out", "DIR", "Also write the table there.")
]
FigureFolder: TypeAlias = Annotated[
    str | None, option("--out", "DIR", "Also write table and figure there.")
]
PageOption: TypeAlias = Annotated[
    bool, option("--html/--no-html", None, "With --out: also write report.html.")
]
RunFile: TypeAlias = Annotated[str, argument("RUN.toml", "A run: slice, model, plan; - is stdin.")]
RunSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key: plan.remat=minimal (see tpusim keys).",
        autocompletion=complete_setting,
    ),
]
Workers: TypeAlias = Annotated[
    int | None, option("--workers", "N", "Processes; by default one per CPU.")
]
ClusterAddress: TypeAlias = Annotated[
    str | None, option("--cluster", "ADDRESS", "A Dask scheduler instead (extra: cluster).")
]
StatsOption: TypeAlias = Annotated[bool, option("--stats", None, "Show what the simulation cost.")]
FullCode: TypeAlias = Annotated[
    bool, option("--full", None, "Generate code too, in minutes instead of seconds.")
]
ServerStep: TypeAlias = Annotated[
    str | None, option("--step", "KIND", "Of a server: prefill, or decode, which is the default.")
]
TimeLimit: TypeAlias = Annotated[float, option("--time-limit", "SECONDS", "For the compiler.")]
AsJson: TypeAlias = Annotated[
    bool, option("--json", None, "Print the result as JSON, and nothing else.")
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no progress, and no report (but for --json).")
]
WithoutPass: TypeAlias = Annotated[
    list[str] | None,
    option("--without", "PASS", "Switch off a pass of the lowering, or all `observed`."),
]
FoldOption: TypeAlias = Annotated[
    bool,
    option(
        "--fold/--no-fold",
        None,
        "Book repeated iterations, and devices that are alike, instead of each.",
    ),
]


def out_folder(out: str | None, content: str) -> Path | None:
    """Return the folder that `--out` names. Raise FileError if the name is empty."""
    if out == "":
        raise FileError(f"--out is empty; give a folder to write the {content} to")
    return None if out is None else Path(out)


def tried_folder(out: str | None, content: str) -> Path | None:
    """Return the folder that `--out` names. Raise FileError unless it can be written into."""
    from tpusim.report import check_folder

    folder = out_folder(out, content)
    if folder is not None:
        check_folder(folder)
    return folder


def executor_of(
    address: str | None, workers: int | None
) -> AbstractContextManager[Executor | None]:
    """Return a context with the executor of a Dask scheduler; with None for this machine.

    address: of the scheduler. workers: processes of this machine.

    Raise TpusimError if both are given.
    """
    from tpusim.sweeps import cluster

    if address is not None and workers is not None:
        raise TpusimError("--workers is for this machine and --cluster for others; give one")
    return nullcontext() if address is None else cluster(address)


def with_files(
    answer: str, folder: Path | None, write: Callable[[Path], None], *, as_json: bool
) -> str:
    """Return an answer of which a folder gets the files, and then names it unless it is JSON."""
    if folder is None:
        return answer
    with printed_on(None):
        write(folder)
    return answer if as_json else f"{answer}\n\nreport      {folder}"


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
