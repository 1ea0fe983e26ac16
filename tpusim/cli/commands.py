"""The commands and their options. Each returns the text to print; its imports load when it runs."""

import json
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tpusim.base.collection import garbage_collector_off
from tpusim.base.errors import FileError
from tpusim.cli.completion import complete_chip, complete_explanation, complete_setting
from tpusim.cli.explanations import explanations
from tpusim.cli.plan_help import PlanCommand

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


def _explain_help(*, replayed: bool) -> str:
    return f"Show why: {', '.join(explanations(replayed=replayed))}."


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


def _out_folder(out: str | None, content: str) -> Path | None:
    """Return the folder that `--out` names. Raise FileError if the name is empty."""
    if out == "":
        raise FileError(f"--out is empty; give a folder to write the {content} to")
    return None if out is None else Path(out)


def _printed(text: str, *, as_json: bool, quiet: bool) -> str:
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


@app.command()
def chips(
    name: Annotated[
        str | None, typer.Argument(help="A chip, such as v5p.", autocompletion=complete_chip)
    ] = None,
) -> str:
    """Show the catalogue, or every number of one chip with its source."""
    from tpusim.hardware import show_chip, show_chips

    return show_chips() if name is None else show_chip(name)


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(help="A model, such as llama3.1-8b.")] = None,
    as_json: AsJson = False,
) -> str:
    """List the published models, or show one: dimensions, parameters, source."""
    from tpusim.cli.models_command import show_models

    return show_models(name, as_json=as_json)


@app.command(cls=PlanCommand)
@garbage_collector_off()
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
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="NAME",
            help=_explain_help(replayed=False),
            autocompletion=complete_explanation,
        ),
    ] = None,
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

    folder = _out_folder(out, "report")
    if without:
        settings = [*(settings or ()), f"plan.without_passes={json.dumps(without)}"]
    given = read_arguments(run or (), settings or (), maxtext, pod, verbose=verbose)
    text = simulate_run_file(
        given, folder, stats=stats, fold=fold, program=program, explain=explain, network=network,
        as_json=as_json, html=html,
    )  # fmt: skip
    return _printed(text, as_json=as_json, quiet=quiet)


@app.command(cls=PlanCommand)
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
        run, settings or (), _out_folder(out, "comparison"), full=full, time_limit=time_limit,
        as_json=as_json, quiet=quiet,
    )  # fmt: skip
    return _printed(text, as_json=as_json, quiet=quiet)


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


@app.command()
@garbage_collector_off()
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
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh", metavar="AXES", help="Its mesh, if the file does not say: fsdp=256,tensor=8."
        ),
    ] = None,
    stats: StatsOption = False,
    fold: FoldOption = True,
    program: Annotated[bool, typer.Option("--program", help="Show the program as read.")] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="NAME",
            help=_explain_help(replayed=True),
            autocompletion=complete_explanation,
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Replay what the TPU compiler made of a JAX program (extra: xla)."""
    from tpusim.cli.replay_command import replay_file

    text = replay_file(
        path,
        _out_folder(out, "report"),
        pod=pod,
        costs=costs,
        mesh=mesh,
        model_flops=model_flops,
        stats=stats,
        fold=fold,
        program=program,
        explain=explain,
        as_json=as_json,
        quiet=quiet,
    )
    return _printed(text, as_json=as_json, quiet=quiet)


@app.command()
@garbage_collector_off()
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
) -> str:
    """Compare steps, and attribute their difference to its causes."""
    from tpusim.cli.compare_command import compare_files

    return compare_files(
        paths,
        _out_folder(out, "comparison"),
        settings=settings or (),
        pod=pod,
        mesh=mesh,
        model_flops=model_flops,
    )


@app.command(name="compile")
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
def validate(
    runs: Annotated[str, typer.Argument(metavar="RUNS.csv", help="Measured runs, one per row.")],
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
        runs, without or (), _out_folder(out, "tables"),
        allow_failures=allow_failures, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    return _printed(text, as_json=as_json, quiet=quiet), code


@app.command(cls=PlanCommand)
def sweep(
    path: Annotated[
        str, typer.Argument(metavar="SWEEP.toml", help="A run, what to try; - is stdin.")
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write the table there.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Processes; by default one per CPU."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="ADDRESS", help="A Dask scheduler instead (extra: cluster)."
        ),
    ] = None,
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
        path, settings or (), _out_folder(out, "table"), workers, cluster,
        as_csv=as_csv, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    return _printed(text, as_json=as_csv or as_json, quiet=quiet), code


@app.command()
@garbage_collector_off()
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

    folder = _out_folder(out, "report")
    return train_run_files(runs, settings or (), folder, as_json=as_json)


@app.command()
@garbage_collector_off()
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


@app.command()
def search(
    path: Annotated[
        str, typer.Argument(metavar="RUN.toml", help="A run with [search]: what to choose from.")
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write the table there.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Processes; by default one per CPU."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="ADDRESS", help="A Dask scheduler instead (extra: cluster)."
        ),
    ] = None,
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
        path, settings or (), _out_folder(out, "table"), workers, cluster, local=local, count=count
    )


@app.command(cls=PlanCommand)
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
        typer.Option("--measured", metavar="RUNS.csv", help="Measured runs; else published ones."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Show weak and strong scaling of a run over chips and slices."""
    from tpusim.cli.scaling_command import scaling_file

    text = scaling_file(
        run, settings or (), _out_folder(out, "table"), chips=chips, slices=slices, axis=axis,
        measured=measured, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    return _printed(text, as_json=as_json, quiet=quiet)


@explain_app.callback()
def explain_root() -> None:
    """Show what one operation costs, and what other shapes would."""


@explain_app.command()
def conv(
    chip: Annotated[str, typer.Option("--chip", metavar="NAME", help="A chip, such as v5p.")],
    image: Annotated[
        str,
        typer.Option("--input", metavar="NxHxWxC", help="Of one device: 256x224x224x3."),
    ],
    kernel: Annotated[
        str, typer.Option("--kernel", metavar="HxWxC", help="Taps and results: 7x7x64.")
    ],
    stride: Annotated[int, typer.Option("--stride", help="Of every dimension.")] = 1,
    dilation: Annotated[int, typer.Option("--dilation", help="Of every dimension.")] = 1,
    groups: Annotated[int, typer.Option("--groups", help="Feature groups.")] = 1,
    padding: Annotated[str, typer.Option("--padding", help="SAME or VALID.")] = "SAME",
    gradient: Annotated[
        str | None, typer.Option("--gradient", help="Of the input or the weight.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="That the array multiplies.")] = "bf16",
) -> str:
    """Show the implicit matmul of a convolution, its time, and what other shapes would take."""
    from tpusim.cli.explain_command import explain_convolution

    return explain_convolution(
        chip, image, kernel, stride=stride, dilation=dilation, groups=groups, padding=padding,
        gradient=gradient, dtype=dtype,
    )  # fmt: skip
