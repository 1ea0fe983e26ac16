"""What `tpusim simulate` does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tpusim.errors import FileError, PlanError, blame, nearest
from tpusim.explain import (
    CollectiveTable,
    PlacementTable,
    explain_collectives,
    explain_placement,
)
from tpusim.lines import Lines, explain_lines
from tpusim.plan_result import PlanResult
from tpusim.program.text import text
from tpusim.report import check_folder, perfect_compiler, write_report
from tpusim.result import Result
from tpusim.runfile import Run, read_run
from tpusim.simulation import simulate
from tpusim.stage_table import PipelineTable, explain_pipeline
from tpusim.summary import entry, summary

Explained: TypeAlias = PlacementTable | CollectiveTable | PipelineTable | Lines

EXPLAINED: Mapping[str, Callable[[PlanResult], Explained]] = {
    "placement": lambda result: explain_placement(result.model, result.plan, result.pod),
    "collectives": explain_collectives,
    "pipeline": explain_pipeline,
    "lines": explain_lines,
}
"""What `--explain` takes."""


def given_run(
    words: Sequence[str], settings: Sequence[str], maxtext: str | None, pod: str | None, *,
    verbose: bool,
) -> Run:  # fmt: skip
    """The run of the one file that `words` are, or of a MaxText config that they override."""
    if maxtext is not None:
        from tpusim.maxtext import from_maxtext

        return from_maxtext(maxtext, words, pod=pod, settings=settings, verbose=verbose)
    if pod is not None or verbose:
        raise FileError("--slice and --verbose are for --maxtext; a run file names its slice")
    if len(words) != 1:
        raise FileError(_not_one(words))
    return read_run(words[0], settings)


def _not_one(words: Sequence[str]) -> str:
    if not words:
        return "Missing argument 'RUN.toml'; give a run file, or --maxtext and a MaxText config"
    found = next((word for word in words[1:] if "=" in word), None)
    hint = f"write --set {found}" if found else "give one"
    return f"{len(words)} run files are given; {hint}, or --maxtext and a MaxText config"


def simulation(
    run: Run, folder: Path | None, *, stats: bool, fold: bool,
    program: bool, explain: str | None = None, network: str = "flows",
) -> str:  # fmt: skip
    """The report of a run; with a folder, written there too."""
    if explain is not None and explain not in EXPLAINED:
        raise PlanError(f"--explain is {explain!r}: {nearest(explain, EXPLAINED)}")
    if folder is not None:
        check_folder(folder)
    with blame(run.where):
        result = simulate(run.model, run.plan, run.pod, fold=fold, network=network)
        ideal = perfect_compiler(result)
    if folder is not None:
        write_report(result, folder, ideal)
    parts = [summary(result, ideal)]
    if run.notes:
        parts.append("\n".join(line for note in run.notes for line in entry("note", note)))
    if explain is not None:
        parts.append(str(EXPLAINED[explain](result)))
    if program:
        parts += map(text, result.programs)
    return "\n\n".join([*parts, *closing(result, folder, stats=stats)])


def closing(result: Result, folder: Path | None, *, stats: bool) -> Iterator[str]:
    """Where the report is, and what the simulation cost."""
    if folder is not None:
        yield f"report      {folder}"
    if stats:
        yield "\n".join(_stats(result))


def _stats(result: Result) -> Iterator[str]:
    stats = result.timeline.stats
    yield (
        f"stats       {stats.events:,} events, {stats.trips_simulated:,} trips simulated of "
        f"{stats.trips:,}, engine {stats.seconds * 1e3:.1f} ms"
    )
    for fold in stats.folds:
        yield f"  folded    {fold.loop}: {fold.repeats} x {fold.trips} trips"
