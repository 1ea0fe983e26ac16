"""The command `tpusim replay`."""

from pathlib import Path

from tpusim.base.errors import PlanError
from tpusim.base.text_width import printed_on
from tpusim.cli.explanations import find_explanation
from tpusim.cli.progress import show_work
from tpusim.cli.simulate_command import extra_parts, result_json
from tpusim.hardware import parse_slice
from tpusim.report import check_folder, write_report
from tpusim.results.summary import summary
from tpusim.simulation import replay
from tpusim.simulation.program_run import choose_costs


def replay_file(
    path: str,
    folder: Path | None,
    *,
    pod: str | None,
    costs: str | None,
    mesh: str | None,
    model_flops: float | None,
    padding_taps: bool,
    stats: bool,
    fold: bool,
    program: bool,
    explain: str | None,
    as_json: bool = False,
    quiet: bool = False,
    html: bool = True,
) -> str:
    """Replay a compiled program and return its report, which a folder gets too."""
    explanation = find_explanation(explain, replayed=True)
    if explain == "lines":
        explanation = None  # the summary of a replay has the lines already
    choose_costs(costs)
    if folder is not None:
        check_folder(folder)
    from tpusim.compiler import load

    with show_work("replaying", quiet=quiet):
        result = replay(
            load(path),
            None if pod is None else parse_slice(pod),
            costs=costs,
            fold=fold,
            mesh=None if mesh is None else parse_mesh_option(mesh),
            model_flops=model_flops,
            padding_taps=padding_taps,
        )
    if folder is not None:
        with printed_on(None):
            write_report(result, folder, html=html)
    if as_json:
        return result_json(result)
    parts = extra_parts(result, folder, explanation, program=program, stats=stats)
    return "\n\n".join([summary(result), *parts])


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
