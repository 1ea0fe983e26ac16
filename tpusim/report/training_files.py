"""The files of a training run: text, JSON, figures and page."""

from functools import partial
from pathlib import Path

from tpusim.base.json_text import json_text
from tpusim.base.text_files import path_of, write_files
from tpusim.results.result import check_result
from tpusim.training import RunAdvice, TrainingResult


def write_training(
    result: TrainingResult,
    folder: Path | str,
    *,
    advice: RunAdvice | None = None,
    html: bool = True,
) -> None:
    """Write `training.txt`, `.json`, figures and `report.html` of a training run.

    The figures are `training`, with failures `failures`, and with checkpoints too `interval`. Each
    file is written beside its place and then moved there. The same result gives the same bytes.
    Raise FileError if one cannot be written.

    advice: what `failure_advice` returns; without it, the files have no simulated changes.
    html: False leaves out the page.
    """
    check_result(result, "write_training", TrainingResult)
    write_files(path_of(folder, "write_training"), training_files(result, advice, html=html))


def training_files(
    result: TrainingResult, advice: RunAdvice | None = None, *, html: bool = True
) -> dict[str, bytes]:
    """Return the content of each file, by name."""
    figures = _figures(result)
    files = {
        "training.txt": f"{training_text(result, advice)}\n".encode(),
        "training.json": f"{training_json(result, advice)}\n".encode(),
    } | figures
    if html:
        from tpusim.report.html.training_page import training_page

        files["report.html"] = training_page(result, advice, figures).encode()
    return files


def training_text(result: TrainingResult, advice: RunAdvice | None = None) -> str:
    """Return a training run as it is printed, and the advice below."""
    return str(result) if advice is None else f"{result}\n\n{advice}"


def training_json(result: TrainingResult, advice: RunAdvice | None = None) -> str:
    """Return a training run as JSON, with the advice in it."""
    told = {} if advice is None else {"advice": advice.facts()}
    return json_text(result.facts() | told)


def _figures(result: TrainingResult) -> dict[str, bytes]:
    """Render each figure that the run has."""
    from tpusim.report.figures.render import figure_files
    from tpusim.report.figures.run_life import plot_run_life, run_life_data
    from tpusim.report.figures.save_interval import interval_data, plot_interval
    from tpusim.report.figures.training import plot_training, training_data

    curves = training_data(result)
    files = figure_files("training", partial(plot_training, curves), curves.title)
    if result.failures is not None:
        life = run_life_data(result)
        files |= figure_files("failures", partial(plot_run_life, life), life.title)
    if (curve := interval_data(result)) is not None:
        files |= figure_files("interval", partial(plot_interval, curve), curve.title)
    return files
