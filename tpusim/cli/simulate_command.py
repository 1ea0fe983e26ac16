"""The command `tpusim simulate`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tpusim.base.errors import FileError, blame
from tpusim.base.json_text import json_text
from tpusim.base.text_width import printed_on, unbroken
from tpusim.base.units import format_bytes
from tpusim.cli.explanations import Explanation, find_explanation
from tpusim.cli.progress import show_work
from tpusim.program import program_heap, program_text
from tpusim.report import as_maxtext, check_folder, document, perfect_compiler, write_report
from tpusim.results import PlanResult, Result, entry
from tpusim.results.summary import summary
from tpusim.runfile import ServingRun, SimulationRun, read_step
from tpusim.simulation import simulate


def read_arguments(
    words: Sequence[str],
    settings: Sequence[str],
    maxtext: str | None,
    pod: str | None,
    *,
    verbose: bool,
) -> SimulationRun | ServingRun:
    """Return the run of the one file in `words`, or of a MaxText config that they override."""
    if maxtext is not None:
        from tpusim.maxtext import from_maxtext

        return from_maxtext(maxtext, words, pod=pod, settings=settings, verbose=verbose)
    if pod is not None or verbose:
        instead = f": write --set slice.name={pod}" if pod is not None else ""
        raise FileError(
            f"--slice and --verbose are for --maxtext; a run file names its slice{instead}"
        )
    if not words:
        raise FileError(
            "Missing argument 'RUN.toml'; give a run file, or --maxtext and a MaxText config"
        )
    if len(words) > 1:
        key = next((each for each in settings if "=" not in each), None)
        setting = next((word for word in words[1:] if "=" in word), None)
        setting = f"{key}={words[1]}" if key else setting
        hint = f"write --set {setting}" if setting else "give one"
        raise FileError(
            f"{len(words)} run files are given; {hint}, or --maxtext and a MaxText config"
        )
    return read_step(words[0], settings)


def simulate_run_file(
    run: SimulationRun,
    folder: Path | None,
    *,
    stats: bool,
    fold: bool,
    program: bool,
    explain: str | None = None,
    network: str = "flows",
    as_json: bool = False,
    html: bool = True,
    quiet: bool = False,
) -> str:
    """Simulate a run and return its report, which a folder gets too."""
    explanation = find_explanation(explain)
    if folder is not None:
        check_folder(folder)
    with blame(run.where):
        result = simulate(run.model, run.plan, run.pod, fold=fold, network=network, input=run.input)
        ideal, maxtext = perfect_compiler(result), as_maxtext(result)
    find_ways_to_fit(result, quiet=quiet)
    if folder is not None:
        with printed_on(None):
            write_report(result, folder, ideal, maxtext=maxtext, html=html)
    if as_json:
        return result_json(result, ideal, maxtext)
    parts = [summary(result, ideal, maxtext)]
    said = [
        *(("note", note) for note in run.notes),
        *([("FLOPs", run.counts)] if run.counts else []),
        *([("memory", printed_memory(result))] if run.counts else []),
    ]
    if said:
        parts.append("\n".join(line for label, text in said for line in entry(label, text)))
    if run.measured is not None:
        parts.append("\n".join(run.measured.beside(result.step_time_s)))
    parts += extra_parts(result, folder, explanation, program=program, stats=stats)
    return "\n\n".join(parts)


def printed_memory(result: PlanResult) -> str:
    """Return the sentence with the HBM that MaxText prints of its compiled step."""
    total, temp = result.reported_hbm_bytes, result.reported_temp_bytes
    over = temp - program_heap(result.program)
    twice = f", which counts {format_bytes(over)} twice up to libtpu 0.0.42.1" * (over > 0)
    return (
        f"MaxText prints {format_bytes(total)} per device: arguments {format_bytes(total - temp)}, "
        f"temp size {format_bytes(temp)}{twice}"
    )


def find_ways_to_fit(result: Result, *, quiet: bool) -> None:
    """Search for what makes a result fit, which its report then has at once."""
    if not result.fits:
        with show_work("trying what makes it fit", quiet=quiet):
            result.ways_to_fit()


def result_json(result: Result, ideal: Result | None = None, maxtext: Result | None = None) -> str:
    """Return the content of `result.json`."""
    return json_text(document(result, ideal, maxtext))


def extra_parts(
    result: Result,
    folder: Path | None,
    explanation: Explanation | None,
    *,
    program: bool,
    stats: bool,
) -> Iterator[str]:
    """Yield the parts of an answer that options add to the summary."""
    if explanation is not None:
        yield str(explanation.table(result))
    if program:
        yield from map(program_text, result.programs)
    if folder is not None:
        yield f"report      {folder}"
    if stats:
        yield "\n".join(_stats_lines(result))


def _stats_lines(result: Result) -> Iterator[str]:
    stats = result.timeline.stats
    yield from unbroken(
        f"stats       {stats.events:,} events, {stats.trips_simulated:,} trips simulated of "
        f"{stats.trips:,}, engine {stats.seconds * 1e3:.1f} ms"
    )
    for fold in stats.folds:
        yield f"  folded    {fold.loop}: {fold.repeats} x {fold.trips} trips"
