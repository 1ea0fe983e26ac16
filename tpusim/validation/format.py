"""A validation as tables for a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpusim.base.text_table import fixed_table
from tpusim.base.text_width import unbroken, wrapped
from tpusim.base.units import format_bytes
from tpusim.results import COMPUTE_LABELS, EXPOSED
from tpusim.validation.outcome import RunOutcome
from tpusim.validation.pairs import NOISE, RunGroup, RunPair, cost

RUN_COLUMN_WIDTHS = {
    "measured": 11,
    "predicted": 11,
    "error": 8,
    "low": 9,
    "high": 9,
    "MFU": 7,
    "was": 7,
    "TFLOP/s": 9,
} | {"matmul": 8, "attn.": 7, "conv.": 7, "vector": 8}
RANGE_HEADS = ("in range", "half-width")
"""Of ranges: how many runs are in theirs, and the median of half its width over the prediction."""
RUNS_LEGEND = (
    "error: predicted over measured, less one. low, high: the range that holds 80 % of the runs "
    "like this one, in seconds, made without its family; ! where the measured step is not in it. "
    "MFU: predicted and measured, by the model's FLOPs, causal attention at half, against the bf16 "
    "peak. TFLOP/s: a device, as MaxText logs them, predicted. matmul, attention, convolution, "
    "vector and exposed communication: percent of the predicted step."
)


def validation_text(
    outcomes: Sequence[RunOutcome],
    groups: Sequence[RunGroup],
    statistics: Mapping[str, Any],
    unread: Sequence[str],
) -> str:
    """Return a row per run, then the statistics, the pairs, their orders and the notes.

    statistics: as `Validation.statistics`.
    unread: columns of the table that nothing reads.
    """
    parts = (
        _runs(outcomes),
        wrapped(RUNS_LEGEND),
        _statistics(statistics),
        _memory(outcomes),
        _spans(outcomes),
        _pairs([pair for group in groups for pair in group.pairs], statistics["pairs"]),
        _orders(statistics["pairs"]),
        _wrong_orders(groups),
        _notes(outcomes, unread),
    )
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part)


def _runs(outcomes: Sequence[RunOutcome]) -> Iterator[str]:
    width = max(len(one.run.id) for one in outcomes)
    rows = [(f"{'run':<{width}} chip", *RUN_COLUMN_WIDTHS, "exposed, status")]
    for one in outcomes:
        head = f"{one.run.id:<{width}} {one.run.chip}"
        rows.append((head, *_run_cells(one), _exposed_and_status(one)))
    yield from fixed_table(rows, (width + 5, *RUN_COLUMN_WIDTHS.values()))


def _run_cells(one: RunOutcome) -> Iterator[str]:
    yield f"{one.run.step_s:.3f} s"
    yield "-" if one.predicted_s is None else f"{one.predicted_s:.3f} s"
    yield signed(one.error)
    yield "-" if one.low_s is None else f"{one.low_s:.3f}"
    yield "-" if one.high_s is None else f"{one.high_s:.3f}{' ' if one.in_range else '!'}"
    yield percent(one.mfu)
    yield percent(one.measured_mfu)
    yield "-" if one.tflops_per_device is None else f"{one.tflops_per_device:.1f}"
    for label in COMPUTE_LABELS:
        yield f"{one.shares.get(label, 0):.0%}" if one.ok else "-"


def _exposed_and_status(one: RunOutcome) -> str:
    """Return exposed communication by axes, and the status or its reason."""
    if not one.ok:
        return f"{one.status}: {one.reason}"
    others = [label for label in one.shares if label not in COMPUTE_LABELS]
    exposed = ", ".join(f"{name.removeprefix(EXPOSED)} {one.shares[name]:.0%}" for name in others)
    return "; ".join(filter(None, (exposed or "none", one.reason or "ok")))


TAU_B = (
    "Kendall's tau-b says how well the prediction orders runs: 1 if every pair is in the measured "
    "order, 0 if as many are in the opposite one, -1 if all are."
)
"""What the last column of the table of errors is."""


def _statistics(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a row per group of runs: count, failures, errors, ranges, and tau-b of the MFU."""
    heads = ("runs", "failed", "median", "mean", "p90", "bias", *RANGE_HEADS, "tau-b")
    rows = [("absolute error", *heads), _group("all", found)]
    for kind in ("by_chip", "by_family", "by_kind"):
        rows += [_group(f"  {name}", group) for name, group in found[kind].items()]
    guess = found["baseline"]
    rows.append(_group("guess: the chip's median MFU", guess["all_runs"]))
    rows.append(_group("  for the simulated runs", guess["simulated_runs"]))
    yield from fixed_table(rows, (30, *[12] * len(heads)))
    tau = _tau_text(found["tau_b_within_chips"])
    yield from wrapped(
        f"tau-b of predicted and measured MFU within chips: {tau}. {TAU_B}", rest="  "
    )


def _group(name: str, group: Mapping[str, Any]) -> tuple[str, ...]:
    errors = (percent(group[f"{kind}_abs_error"]) for kind in ("median", "mean", "p90"))
    cells = (str(group["runs"]), str(group["failed"]), *errors, signed(group["mean_error"]))
    if "tau_b" in group:
        ranges = (percent(group["coverage_80"]), percent(group["median_half_width"]))
        cells = (*cells, *ranges, _tau_text(group["tau_b"]))
    return (name, *cells)


def _pairs(pairs: Sequence[RunPair], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ratios of pairs of runs that differ in one decision."""
    if not pairs:
        return
    yield from unbroken(
        f"{len(pairs)} pairs that differ in one decision (chip-seconds per sequence, second over "
        f"first): ratio off by {percent(found['median_abs_error'])} in the median, "
        f"{signed(found['mean_error'])} in the mean"
    )
    names = [f"{pair.second} / {pair.first}" for pair in pairs]
    width = max(map(len, names))
    rows = [("", "measured", "predicted", "error", "order", "differ in")]
    for name, pair in zip(names, pairs, strict=True):
        ratio = "-" if pair.predicted_ratio is None else f"{pair.predicted_ratio:.3f}"
        also = f"; also {', '.join(pair.also)}" if pair.also else ""
        numbers = (f"{pair.measured_ratio:.3f}", ratio, signed(pair.error), _order(pair))
        rows.append((name, *numbers, f"{pair.decision}, {pair.change}{also}"))
    yield from fixed_table(rows, (width, 10, 11, 8, 7))


def _order(pair: RunPair) -> str:
    """Return whether a pair is ordered right; `near` where its measured costs hardly differ."""
    if pair.right is None:
        return "-"
    return ("right" if pair.right else "wrong") if pair.differs else "near"


def _orders(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield how well pairs are ordered, in all and by decision."""
    if not found["by_decision"]:
        return
    heads = ("order of runs that differ in", "groups", "pairs", "tau-b", "differ", "right", "share")
    yield from fixed_table([heads, *order_rows(found)], (34, *[8] * 6))
    yield from wrapped(
        "tau-b: of all pairs, 1 where all are in the measured order. differ: pairs whose measured "
        f"costs differ by more than {NOISE:.0%}; right and share: those of them that are "
        "predicted in the measured order."
    )


def order_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the table of orders: all pairs, the sharp ones, and each decision.

    found: statistics of pairs; the columns are name, groups, pairs, tau-b, pairs whose measured
        costs differ, those of them that are ordered right, and their share.
    """
    yield _order_row("one decision", found)
    yield _order_row("  and sources state the same", found["sharp"])
    yield from (_order_row(f"  {name}", group) for name, group in found["by_decision"].items())


def _order_row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (str(found[key]) for key in ("differing", "ordered_right"))
    share = percent(found["share_ordered_right"])
    tau = _tau_text(found["tau_b"])
    return (name, str(found["groups"]), str(found["pairs"]), tau, *counts, share)


def _wrong_orders(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield the pairs that are ordered wrong though their measured costs differ."""
    rows = list(wrong_rows(groups))
    if rows:
        heads = ("ordered wrong, chip-seconds per sequence", "measured", "predicted", "differ in")
        width = max(len(row[0]) for row in (heads, *rows))
        yield from fixed_table([heads, *rows], (width, 20, 20))


def wrong_rows(groups: Sequence[RunGroup]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each pair that is ordered wrong: names, both costs twice, decision."""
    for group in groups:
        runs = {one.run.id: one for one in group.outcomes}
        for pair in group.pairs:
            if pair.differs and pair.right is False:
                both = (runs[pair.first], runs[pair.second])
                measured = " to ".join(f"{cost(one, one.run.step_s):.4g}" for one in both)
                predicted = " to ".join(f"{cost(one, one.predicted_s or 0):.4g}" for one in both)
                name = f"{pair.first} to {pair.second}"
                yield name, measured, predicted, f"{pair.decision}, {pair.change}"


def _notes(outcomes: Sequence[RunOutcome], unread: Sequence[str]) -> Iterator[str]:
    """Yield what sources leave open and what is not modelled, each once with its runs."""
    for head, name in (("assumed", "assumed"), ("not modelled", "unmodelled")):
        about = _runs_by_note((one.run.id, getattr(one.run.measured, name)) for one in outcomes)
        if about:
            listed = (f"{note} ({_shortened(names)})" for note, names in about.items())
            yield from wrapped(f"{head}: {'; '.join(listed)}", "", "  ")
    if unread:
        yield from unbroken(f"note: nothing reads the columns {', '.join(unread)}")


def _memory(outcomes: Sequence[RunOutcome]) -> Iterator[str]:
    """Yield the HBM that sources print beside what is predicted that they do, and the need."""
    rows = {one.run.id: one for one in outcomes if one.hbm_error is not None}
    if not rows:
        return
    width = max(map(len, rows))
    table: list[tuple[str, ...]] = [("HBM of a device", "printed", "predicted", "error", "needed")]
    for name, one in rows.items():
        both = (one.printed_hbm_bytes or 0, one.reported_hbm_bytes or 0)
        needed = format_bytes(one.hbm_peak_bytes or 0)
        table.append((name, *map(format_bytes, both), signed(one.hbm_error), needed))
    yield from fixed_table(table, (width, 12, 12, 8, 12))


def _spans(outcomes: Sequence[RunOutcome]) -> Iterator[str]:
    """Yield the span of each prediction whose source leaves values open."""
    rows = [(one, one.span) for one in outcomes if one.span is not None]
    if not rows:
        return
    width = max(len(one.run.id) for one, _ in rows)
    heads = ("span over what the source leaves open", "low", "high", "measured", "", "open")
    table: list[tuple[str, ...]] = [heads]
    for one, span in rows:
        seconds = (span.low_s, span.high_s, one.run.step_s)
        inside = "inside" if one.in_span else "outside"
        keys = ", ".join(one.run.measured.open)
        left = f"; {span.left_out} more do not fit in HBM" if span.left_out else ""
        table.append((one.run.id, *(f"{s:.3f} s" for s in seconds), inside, f"{keys}{left}"))
    yield from fixed_table(table, (max(width, len(heads[0])), 11, 11, 11, 9))


def _runs_by_note(noted: Iterable[tuple[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Return the ids of the runs that have each note, in the order of the table."""
    about: dict[str, list[str]] = {}
    for name, notes in noted:
        for note in notes:
            about.setdefault(note, []).append(name)
    return about


def _shortened(names: Sequence[str]) -> str:
    """Return the first run, and how many others there are."""
    others = len(names) - 1
    return f"{names[0]} and {others} other{'s' * (others > 1)}" if others else names[0]


def percent(fraction: float | None) -> str:
    """Return a fraction as a percentage, `-` for None."""
    return "-" if fraction is None else f"{fraction:.1%}"


def signed(fraction: float | None) -> str:
    """Return a fraction as a percentage with its sign, `-` for None."""
    return "-" if fraction is None else f"{fraction:+.1%}"


def _tau_text(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"
