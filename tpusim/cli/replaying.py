"""What `tpusim replay` does."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from tpusim.cli.simulation import closing
from tpusim.errors import PlanError, nearest
from tpusim.explain import CollectiveTable, explain_collectives
from tpusim.hardware import parse_slice
from tpusim.lines import Lines, explain_lines
from tpusim.program.text import text
from tpusim.replay import costs_of, replay
from tpusim.report import check_folder, write_report
from tpusim.result import Result
from tpusim.summary import summary

Explained: TypeAlias = CollectiveTable | Lines

EXPLAINED: Mapping[str, Callable[[Result], Explained]] = {
    "lines": explain_lines,
    "collectives": explain_collectives,
}
"""What `--explain` takes; lines are always shown."""


def replaying(
    path: str, folder: Path | None, *, pod: str | None, costs: str | None, mesh: str | None,
    model_flops: float | None, stats: bool, fold: bool, program: bool, explain: str | None,
) -> str:  # fmt: skip
    """The report of a compiled program; with a folder, written there too."""
    if explain is not None and explain not in EXPLAINED:
        raise PlanError(f"--explain is {explain!r}: {nearest(explain, EXPLAINED)}")
    costs_of(costs)
    if folder is not None:
        check_folder(folder)
    from tpusim.xla.compiled import load

    result = replay(
        load(path), None if pod is None else parse_slice(pod), costs=costs, fold=fold,
        mesh=None if mesh is None else read_mesh(mesh), model_flops=model_flops,
    )  # fmt: skip
    if folder is not None:
        write_report(result, folder)
    parts = [summary(result)]
    if explain not in (None, "lines"):
        parts.append(str(EXPLAINED[explain](result)))
    if program:
        parts += map(text, result.programs)
    return "\n\n".join([*parts, *closing(result, folder, stats=stats)])


def read_mesh(text: str) -> dict[str, int]:
    """The mesh that `fsdp=256,tensor=8` writes. Raises PlanError for anything else."""
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
