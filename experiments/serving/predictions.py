"""What the simulator says of a row: a value for each of its measurements."""

from collections.abc import Callable
from typing import Any

from row_images import image_metrics
from row_setup import IMAGES, RowSetup, pairs_of_prompt, row_setup
from row_traffic import row_traffic
from serving_row import TIMES, ServingRow

from tpusim.base.errors import PlanError
from tpusim.base.shown_value import cut
from tpusim.pipeline.serving_step import StepShape
from tpusim.server import StepLoad
from tpusim.serving.decode_server import DecodeServer
from tpusim.serving.engines import Buckets
from tpusim.serving.serve import serve as served_load
from tpusim.serving.step_table import StepTable
from tpusim.simulation.serving_run import serve_step

PICO = 1e-12

NUMBERS = {
    "req_s": "requests_per_s",
    "input_tok_s": "input_tokens_per_s",
    "output_tok_s": "output_tokens_per_s",
    "total_tok_s": "total_tokens_per_s",
}
"""Metrics of a served load by columns."""

Serve = Callable[..., Any]
"""`tpusim.serving.serve`."""


def predict(row: ServingRow, serve: Serve | None = None) -> tuple[dict[str, float], list[str]]:
    """Return the predictions of a row's measurements by column, and what was assumed.

    serve: in place of the simulator.

    Raise a TpusimError with one sentence for a row that cannot be simulated.
    """
    setup = row_setup(row)
    wanted = tuple(row.measurements())
    if not wanted:
        raise PlanError("the row measures nothing that is predicted")
    _check_served(row)
    if row.text("phase") == IMAGES:
        made = image_metrics(setup)
        return {name: made[name] for name in wanted if name in made}, setup.assumed
    if row.text("arrival") == "static":
        return {name: _static(setup) for name in wanted if name == "time_s"}, setup.assumed
    return _served(setup, wanted, serve or served_load), setup.assumed


def predict_setup(setup: RowSetup, wanted: tuple[str, ...]) -> dict[str, float]:
    """Return the predictions of a served load by column, of those that its row measures."""
    measured = tuple(name for name in wanted if setup.row.text(name))
    return _served(setup, measured, served_load)


def _check_served(row: ServingRow) -> None:
    """Raise PlanError for what no simulation of a row covers."""
    if row.text("engine") == "sax":
        raise PlanError("beam search, which SAX runs here, is not simulated")


def _static(setup: RowSetup) -> float:
    """Return the model time of a static batch, in seconds."""
    kind = setup.row.text("time_kind")
    if kind == "prefill_total":
        return _prefill_s(setup)
    if kind in ("decode_total", "decode_step"):
        total = _decode_s(setup)
        return total if kind == "decode_total" else total / setup.row.whole("out_len")
    if kind in ("total", "batch_total"):
        return _prefill_s(setup) + _decode_s(setup)
    raise PlanError(f"time_kind is {cut(kind)!r}, which is not known")


def _prefill_s(setup: RowSetup) -> float:
    batch, length = setup.row.whole("batch", 1), setup.row.whole("in_len")
    ranks = setup.plan.ranks
    tokens = batch * length
    load = StepLoad(0, 0, tokens, tokens, batch * pairs_of_prompt(length))
    shape = StepShape(tokens=-(-tokens // ranks), rows=-(-batch // ranks))
    return float(serve_step(setup.model, setup.plan, setup.pod, load, shape).step_time_s)


def _decode_s(setup: RowSetup) -> float:
    """Return the seconds of as many steps as there are tokens out."""
    batch, steps = setup.row.whole("batch", 1), setup.row.whole("out_len", 1)
    table = StepTable(setup.model, setup.plan, setup.pod, Buckets())
    first = batch * (setup.row.whole("in_len") + 1)
    return table.decode_ps(batch, first, steps, batch) * PICO


def _served(setup: RowSetup, wanted: tuple[str, ...], serve: Serve) -> dict[str, float]:
    """Return the metrics of a served load by column."""
    row = setup.row
    first = {name for name in wanted if name == "ttft_out1_p50_s"}
    found: dict[str, float] = {}
    if first:
        alone = _run(setup, row_traffic(row, [], output=1), serve)
        found |= dict.fromkeys(first, alone.metrics.times["e2e"].p50)
    if rest := [name for name in wanted if name not in first]:
        result = _run(setup, row_traffic(row, setup.assumed), serve)
        found |= {name: value for name in rest if (value := _metric(result, name)) is not None}
    return found


def _run(setup: RowSetup, traffic: Any, serve: Serve) -> Any:
    row = setup.row
    speculation: dict[str, Any] = {}
    if drafted := row.whole("spec_k"):
        speculation = {"drafted": drafted, "accepted": row.number("spec_accept_len", 1.0)}
    apart = {"decode": DecodeServer()} if row.flag("disagg", False) else {}
    return serve(setup.model, setup.plan, setup.pod, traffic, setup.engine, **speculation, **apart)


def _metric(result: Any, column: str) -> float | None:
    """Return a metric of a served load; None of a column that has none."""
    metrics = result.metrics
    if column in TIMES:
        time, share, _ = column.split("_")
        return float(getattr(metrics.times[time], share))
    if column == "duration_s":
        return float(metrics.duration_s)
    return float(metrics.numbers[NUMBERS[column]]) if column in NUMBERS else None
