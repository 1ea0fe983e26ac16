"""Commands on compiled programs."""

from pathlib import Path
from typing import Annotated, Any

from tpusim.base.collection import garbage_collector_on
from tpusim.base.errors import FileError, PlanError
from tpusim.base.text_width import printed_on
from tpusim.cli.app import (
    AsJson,
    FoldOption,
    FullCode,
    PageOption,
    Quiet,
    ReportFolder,
    StatsOption,
    TimeLimit,
    app,
    argument,
    explain_option,
    option,
    printed,
    tried_folder,
)

PROGRAM_SUFFIXES = (".hlo", ".hlo.gz")


@app.command(name="compile")
@garbage_collector_on()
def compile_(
    path: Annotated[str, argument("FILE", "StableHLO, text or bytecode, or a jax.export.")],
    pod: Annotated[str, option("--slice", "SLICE", "To compile for: v5e:4x4.")],
    mesh: Annotated[
        str | None, option("--mesh", "AXES", "If the file names none: fsdp=4,tensor=4.")
    ] = None,
    out: Annotated[str | None, option("--out", "FILE.hlo[.gz]", "Keep it, for replay.")] = None,
    full: FullCode = False,
    time_limit: TimeLimit = 600.0,
) -> str:
    """Compile an exported program for a slice, and replay it (extra: xla)."""
    from tpusim.base.text_files import written_place
    from tpusim.compiler import compile
    from tpusim.hardware import parse_slice
    from tpusim.results.summary import summary
    from tpusim.simulation import replay

    if out is not None and not out.endswith(PROGRAM_SUFFIXES):
        raise FileError(
            f"--out is {out!r}; give a file that ends in {' or '.join(PROGRAM_SUFFIXES)}"
        )
    if out is not None:
        written_place(Path(out))
    axes = None if mesh is None else parse_mesh_option(mesh)
    until = "code" if full else "schedule"
    compiled = compile(
        Path(path), slice=parse_slice(pod), mesh=axes, until=until, time_limit=time_limit
    )
    parts = [str(compiled), summary(replay(compiled))]
    if out is not None:
        compiled.save(out)
        parts.append(f"program     {out}")
    return "\n\n".join(parts)


@app.command()
def replay(
    path: Annotated[str, argument("FILE.hlo[.gz]", "HLO of the TPU compiler: text or proto.")],
    pod: Annotated[
        str | None,
        option(
            "--slice",
            "SLICE",
            "The slice it was compiled for, if the file does not say: v4:8x16x16.",
        ),
    ] = None,
    out: ReportFolder = None,
    html: PageOption = True,
    costs: Annotated[
        str | None,
        option(
            "--costs",
            "SOURCE",
            "Seconds of work: model (of shapes, the default), or compiler (its estimates).",
        ),
    ] = None,
    model_flops: Annotated[
        float | None,
        option(
            "--model-flops",
            "N",
            "FLOPs of a step on all devices, without recomputation, for the MFU.",
        ),
    ] = None,
    padding_taps: Annotated[
        bool,
        option(
            "--padding-taps/--no-padding-taps",
            None,
            "Count the FLOPs of taps of convolutions on padding, as plans do.",
        ),
    ] = True,
    mesh: Annotated[
        str | None,
        option("--mesh", "AXES", "Its mesh, if the file does not say: fsdp=256,tensor=8."),
    ] = None,
    stats: StatsOption = False,
    fold: FoldOption = True,
    program: Annotated[bool, option("--program", None, "Show the program as read.")] = False,
    explain: Annotated[str | None, explain_option(replayed=True)] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Replay what the TPU compiler made of a JAX program (extra: xla)."""
    from tpusim.cli.explanations import find_explanation
    from tpusim.cli.progress import show_work
    from tpusim.cli.simulate_command import extra_parts, result_json
    from tpusim.report import write_report
    from tpusim.results.summary import summary
    from tpusim.simulation import replay
    from tpusim.simulation.program_run import choose_costs

    explanation = find_explanation(explain, replayed=True)
    if explain == "lines":
        explanation = None  # the summary of a replay has the lines already
    choose_costs(costs)
    folder = tried_folder(out, "report")
    given = program_options(pod, mesh, model_flops)
    from tpusim.compiler import load

    with show_work("replaying", quiet=quiet):
        result = replay(load(path), costs=costs, fold=fold, padding_taps=padding_taps, **given)
    if folder is not None:
        with printed_on(None):
            write_report(result, folder, html=html)
    if as_json:
        return result_json(result)
    parts = extra_parts(result, folder, explanation, program=program, stats=stats)
    return printed("\n\n".join([summary(result), *parts]), as_json=False, quiet=quiet)


def program_options(pod: str | None, mesh: str | None, model_flops: float | None) -> dict[str, Any]:
    """Return what is said of a compiled program on the command line, as `replay` takes it."""
    from tpusim.hardware import parse_slice

    return {
        "pod": None if pod is None else parse_slice(pod),
        "mesh": None if mesh is None else parse_mesh_option(mesh),
        "model_flops": model_flops,
    }


def parse_mesh_option(text: str) -> dict[str, int]:
    """Return the mesh that `fsdp=256,tensor=8` describes. Raise PlanError for anything else."""
    mesh: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (each.strip() for each in part.partition("="))
        if not axis or not size.isdecimal() or not int(size) or axis in mesh:
            raise PlanError(
                f"--mesh is {text!r}, of which {part!r} is no new axis with its size; write for "
                "example fsdp=256,tensor=8"
            )
        mesh[axis] = int(size)
    return mesh
