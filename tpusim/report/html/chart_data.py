"""The data of the charts that the page draws: plain lists, times in seconds."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tpusim.base.plain_text import plain
from tpusim.costs import CORE, DCN, FROM_HOST, HBM, TO_HOST
from tpusim.engine import Record
from tpusim.program import Compute, walk_ops
from tpusim.report.figures.memory import memory_stacks
from tpusim.report.figures.time_windows import TimeWindow, timeline_data
from tpusim.report.figures.timeline import constant_loads, link_rows
from tpusim.report.figures.utilisation import resource_name
from tpusim.report.html.page_styles import HIDDEN, WAIT, PageStyle, holder_name, slot_name
from tpusim.report.link_traffic import Floats, link_series, record_starts, spread_evenly
from tpusim.report.track_slices import TrackSlice, core_slices, stream_tracks
from tpusim.results import (
    LEAST_SHOWN,
    PAUSES,
    PICO,
    Result,
    operation_of,
    operations_by_name,
    pipelined,
)
from tpusim.results.stage_uses import stage_uses

COLUMNS = 480
"""Parts of the step in which utilisation and memory are given."""

MOST_SLICES = 10_000
"""Slices of the whole step: with more, it has the first and the last iterations of its loops. Of a
row with more, those too short to be seen are joined."""

Slice = list[Any]
"""Start and length (seconds), the numbers of its style and of its name, phase, repetitions."""


class Names:
    """Texts by number, so that each is in the page once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self.texts.setdefault(plain(text), len(self.texts))


def chart_data(result: Result, styles: Mapping[str, PageStyle]) -> dict[str, Any]:
    """Return the data of all charts.

    styles: number and path of each fill, by name.
    timelines: the whole step, then one iteration of each of the longest loops.
    use: the busy share of each resource in each of `COLUMNS` parts of the step.
    memory: bytes by holder at the highest moment of each part.
    """
    names = Names()
    windows = [
        _whole(result, names),
        *_stages(result, names),
        *(_close(result, window, names) for window in timeline_data(result)),
    ]
    return {
        "step_s": result.step_time_s,
        "styles": {plain(name): [style.number, style.path] for name, style in styles.items()},
        "names": list(names.texts),
        "timelines": windows,
        "use": use_data(result),
        "memory": memory_series(result),
    }


def _whole(result: Result, names: Names) -> dict[str, Any]:
    """Return the whole step: all iterations of its loops, unless they are too many."""
    timeline = result.shown
    count = sum(each.count for each in (*timeline.tasks, *timeline.waits))
    every = count <= MOST_SLICES
    rows = [
        {"name": "core", "slices": _slices(result, core_slices(timeline, every=every), 0, names)}
    ]
    for stream, tracks in stream_tracks(timeline, every=every).items():
        for number, track in enumerate(tracks, 1):
            name = f"{stream} ({number})" if number > 1 else stream
            slices = _slices(result, track, 0, names, own=stream)
            rows.append({"name": plain(name), "slices": slices})
    return {"title": "the whole step", "length": timeline.total_ps * PICO, "rows": rows}


def _stages(result: Result, names: Names) -> Iterator[dict[str, Any]]:
    """Yield the slots of all stages of a pipeline, a row for each, if there is one."""
    planned = pipelined(result)
    if planned is None:
        return
    rows = []
    for use in stage_uses(planned):
        slices = [
            [
                _short(each.start_ps * PICO),
                _short((each.end_ps - each.start_ps) * PICO),
                slot_name(each.slot.kind),
                names.number(f"microbatch {each.slot.microbatch}, chunk {each.slot.chunk}"),
                "",
                1,
            ]
            for each in use.slots
        ]
        rows.append({"name": f"stage {use.stage}", "slices": slices})
    yield {"title": "the stages", "length": result.step_time_s, "rows": rows}


def _close(result: Result, window: TimeWindow, names: Names) -> dict[str, Any]:
    """Return an iteration of a loop: the core, and the loads of the links."""
    rows: list[dict[str, Any]] = [
        {"name": "core", "slices": _slices(result, window.core, window.start_ps, names)}
    ]
    for name, links in link_rows(window):
        slices: list[Slice] = []
        busy = 0.0
        for start, end, shares in constant_loads(window, links[0]):
            low = 0.0
            for label, share in shares.items():
                at = (_short((start - window.start_ps) * PICO), _short((end - start) * PICO))
                slices.append([*at, plain(label), names.number(label), "", 1, low, share])
                low += share
            busy += low * (end - start)
        mean = busy / (window.end_ps - window.start_ps)
        rows.append({"name": plain(name), "slices": slices, "mean": mean})
    length = (window.end_ps - window.start_ps) * PICO
    return {"title": plain(window.title), "length": length, "rows": rows}


def _slices(
    result: Result,
    track: Sequence[TrackSlice],
    origin_ps: int,
    names: Names,
    own: str = CORE,
) -> list[Slice]:
    """Return the slices of a track.

    own: the stream of records that are work; others are waits.
    """
    ops = operations_by_name(result.program)

    @cache
    def described(record: Record) -> Slice:
        op = ops.get(operation_of(record))
        name = result.called(op) if op is not None else record.name
        waits = own == CORE and record.stream != CORE and record.label not in PAUSES
        text = f"wait for {name}" if waits else name
        label = WAIT if waits else plain(record.label)
        return [label, names.number(text), str(record.phase), record.count]

    found: list[Slice] = []
    for each in joined(track):
        at = [_short((each.start_ps - origin_ps) * PICO), _short(each.length_ps * PICO)]
        if each.record is None:
            found.append([*at, HIDDEN, names.number(f"{each.trips:,} {HIDDEN}"), "", each.trips])
        else:
            found.append([*at, *described(each.record)])
    return found


def joined(track: Sequence[TrackSlice]) -> list[TrackSlice]:
    """Return about `MOST_SLICES` slices at most: neighbours too short to be seen become one.

    They keep their ends, so the time is all there.
    """
    least, found = 1, list(track)
    while len(found) > MOST_SLICES:
        least = max(2 * least, (found[-1].end_ps - found[0].start_ps) // (8 * MOST_SLICES))
        shorter: list[TrackSlice] = []
        for each in found:
            last = shorter[-1] if shorter else None
            touches = last is not None and last.end_ps == each.start_ps
            if touches and last is not None and max(last.length_ps, each.length_ps) < least:
                longest: Record | None = max((last, each), key=lambda s: s.length_ps).record
                trips = last.trips + each.trips
                shorter[-1] = TrackSlice(last.start_ps, each.end_ps, longest, trips)
            else:
                shorter.append(each)
        found = shorter
        if least > found[-1].end_ps:
            break
    return found


def use_data(result: Result) -> dict[str, Any]:
    """Return the busy share of MXU, HBM, each ICI dimension, DCN and PCIe over the step."""
    total = result.timeline.total_ps
    edges = np.linspace(0, total, COLUMNS + 1)
    mxu = _mxu(result, edges)
    busy = {use.link: use.busy_ps / total for use in result.shown.links}
    rows = [("MXU", mxu, float(mxu.mean()))]
    series = link_series(result, edges)
    for link in sorted(series, key=lambda link: (link != HBM, link.startswith(DCN), link)):
        values = series[link]
        other = series.get(f"{link[:-1]}{'-' if link.endswith('+') else '+'}")
        alike = other is not None and np.array_equal(values, other)
        if alike and link.endswith("-"):
            continue
        if busy[link] < LEAST_SHOWN and (link.startswith(DCN) or link in (TO_HOST, FROM_HOST)):
            continue
        rows.append((resource_name(link[:-1] if alike else link), values, busy[link]))
    return {
        "edges": [float(f"{edge * PICO:.7g}") for edge in edges],
        "rows": [
            {"name": plain(name), "values": _rounded(values), "mean": mean}
            for name, values, mean in rows
        ],
    }


def _short(seconds: float) -> float:
    """Return seconds with as many digits as a chart can show after much zooming."""
    return float(f"{seconds:.8g}")


def _rounded(values: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _mxu(result: Result, edges: Floats) -> Floats:
    """Return the matrix FLOP/s of one device over its bf16 peak."""
    devices = len(result.programs) and result.pod.devices // len(result.programs)
    flops: dict[str, float] = {}
    for op, _ in walk_ops(result.program.body, result.program.segments):
        if isinstance(op, Compute):
            flops[op.name] = float(op.flops.total) / devices
    peak = result.peak_flops / result.pod.devices * PICO
    flows = []
    for record in result.shown.tasks:
        if record.stream == CORE and flops.get(operation_of(record)):
            starts = record_starts(record)
            flows.append((starts, starts + record.duration_ps, flops[operation_of(record)] / peak))
    return spread_evenly(flows, edges)


def memory_series(result: Result) -> dict[str, Any]:
    """Return bytes by holder, at the highest moment of each part of the step."""
    stacks = memory_stacks(result, COLUMNS)
    return {
        "limit": result.hbm_bytes,
        "peak": result.hbm_peak_bytes,
        "rows": [
            {"name": plain(name), "values": list(values), "style": plain(holder_name(name))}
            for name, values in stacks.items()
        ],
    }
