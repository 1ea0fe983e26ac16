"""The files of a report, written completely or refused with one sentence."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeGuard

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.json_text import json_text
from tpusim.base.text_files import blame_writing, make_folder, path_of, write_files
from tpusim.program import program_text
from tpusim.report.result_json import document
from tpusim.results import PlanResult, Result
from tpusim.results.result import check_result
from tpusim.results.summary import summary
from tpusim.simulation import simulate


@checked_call
def write_report(
    result: Result,
    folder: Path | str,
    ideal: Result | None = None,
    *,
    maxtext: Result | None = None,
    html: bool = True,
) -> None:
    """Write summary, `result.json`, three tables, the program, trace, figures and `report.html`.

    Each file is written beside its place and then moved there, so that none is ever half written.
    The same result gives the same bytes. The figures are those of `register_figure`.
    Raise FileError if the folder or a file cannot be written.

    folder: to write them into.
    ideal, maxtext: what `perfect_compiler` and `as_maxtext` return; simulated if not given.
    html: False leaves out the page.
    """
    check_result(result, "write_report")
    folder = path_of(folder, "write_report")
    ideal, maxtext = ideal or perfect_compiler(result), maxtext or as_maxtext(result)
    files = render_files(result, ideal, maxtext, html=html)
    write_files(folder, files)


def render_files(
    result: Result, ideal: Result | None, maxtext: Result | None = None, *, html: bool = True
) -> Mapping[str, bytes]:
    """Return the content of each file, by name."""
    from tpusim.report.csv_tables import lines_csv, operations_csv, transfers_csv
    from tpusim.report.figures.render import figure_bytes
    from tpusim.report.step_trace import trace_bytes

    texts = {
        "summary.txt": f"{summary(result, ideal, maxtext)}\n",
        "result.json": f"{json_text(document(result, ideal, maxtext))}\n",
        "operations.csv": operations_csv(result),
        "transfers.csv": transfers_csv(result),
        "lines.csv": lines_csv(result),
        "program.txt": "\n\n".join(map(program_text, result.programs)) + "\n",
    }
    figures = figure_bytes(result)
    if html:
        from tpusim.report.html import report_page

        advice = result.advice(quick=True) if result.adviser else None
        texts["report.html"] = report_page(result, ideal, advice, figures)
    files = {name: content.encode() for name, content in texts.items()}
    return files | {"trace.json.gz": trace_bytes(result)} | figures


def perfect_compiler(result: Result) -> PlanResult | None:
    """Return the faster of a result and the same plan under the lowering `ideal`.

    A perfect compiler could also do what today's does, so it is never slower: `ideal` is where it
    spreads a collective over links that others need at the same time.
    None if the plan has that lowering, or one of its own, for a compiled program, and for a step
    that does not train.
    """
    if not _trains(result) or result.plan.compiler.lowering != "xla":
        return None
    return min(result, _with(result, lowering="ideal"), key=lambda each: each.step_time_s)


def as_maxtext(result: Result) -> PlanResult | None:
    """Return the result of the same plan as a program of MaxText.

    None where the plan is no plain JAX program of a language model, or MaxText's rules refuse it.
    """
    if not _trains(result) or not result.model.measured:
        return None
    if "style" not in dict(result.defaults()):
        return None
    try:
        return _with(result, style="maxtext")
    except PlanError:
        return None


def _trains(result: Result) -> TypeGuard[PlanResult]:
    """Return True for a training step of a plan."""
    return isinstance(result, PlanResult) and result.verdicts.trained


def _with(result: PlanResult, **keys: str) -> PlanResult:
    """Return the result of the same run under a plan with some keys changed."""
    fed_by = None if result.input is None else result.input.given
    return simulate(result.model, result.plan.replace(**keys), result.pod, input=fed_by)


def check_folder(folder: Path) -> None:
    """Raise FileError unless files can be written into `folder`; leave nothing of the trial."""
    with blame_writing(folder):
        made = [part for part in (folder, *folder.parents) if not part.exists()]
        make_folder(folder)
        with TemporaryFile(dir=folder):
            pass
        for part in made:
            part.rmdir()
