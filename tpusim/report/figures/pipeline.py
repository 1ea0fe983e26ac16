"""A pipeline over the step: a row for each stage, a bar for each slot, and bubbles left empty."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tpusim.base.phase import Phase
from tpusim.base.units import format_seconds
from tpusim.plan import CIRCULAR, STAGE_AXES
from tpusim.program import PassKind
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import (
    DIGIT,
    INK,
    PASS_STYLES,
    PHASE_SHADES,
    UNREAD_STYLE,
    FillStyle,
)
from tpusim.report.figures.registry import of_result, register_figure
from tpusim.results import PICO, PlanResult, Result, StageUse, pipelined
from tpusim.results.stage_uses import stage_uses

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path

PIPELINE_WIDTH = 11.0
PIPELINE_POINTS = 0.82 * PIPELINE_WIDTH * 72
"""Width of the figure in inches, and of its axes in points."""

TALLEST_ROW, SHORTEST_ROW, ROWS_HEIGHT = 0.34, 0.13, 6.0
"""Inches: the height of a stage's row at most and at least, and of all rows where they are many."""

SLOT_HEIGHT = 0.84
"""The height of a bar, in rows."""

LARGEST_NUMBER, SMALLEST_NUMBER = 6.0, 4.2
"""Points of a number at most and at least."""

VISIBLE_WIDTH, EDGELESS_WIDTH = 0.25, 2.0
"""Points: the width from which on a bar is visible, and has an edge that leaves something of it."""

DRAWN_WIDTH = 0.01
"""Points: a narrower bar is left out, as a file rounds its two sides to the same place."""

PASS_NAMES = {
    PassKind.FORWARD: "forward",
    PassKind.BACKWARD: "backward",
    PassKind.WEIGHTS: "weight gradients",
}
SEND_NAME, UNREAD_NAME, OTHER_NAME = "waits for a transfer", "computes for nobody", "other work"
LAST_CHUNK_FADE = 0.5
"""The fraction of its colour that the last of several chunks loses."""

StageBar: TypeAlias = tuple[int, int, int]
"""Stage, and start and end in picoseconds."""


@dataclass(frozen=True, slots=True)
class PipelineFigure:
    """The stages of a pipeline over the step."""

    schedule: str
    stages: tuple[StageUse, ...]
    step_ps: int

    @property
    def bubble(self) -> float:
        """The fraction of the step in which stages wait or compute unread results, on average.

        0 without stages.
        """
        lost = sum(stage.bubble_ps for stage in self.stages)
        return lost / self.step_ps / len(self.stages) if self.stages else 0.0


def pipeline_data(result: Result) -> PipelineFigure:
    """Return the timed slots of each stage; no stages without a pipeline."""
    planned = pipelined(result)
    schedule = planned.plan.active_schedule if planned else ""
    return PipelineFigure(schedule, stage_uses(result), result.timeline.total_ps)


@of_result
def plot_pipeline(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw the slots of each pipeline stage.

    Slots have the number of their microbatch where it fits. Of several chunks of a stage, later
    ones are paler.
    """
    data, planned = pipeline_data(result), pipelined(result)
    count = len(data.stages)
    if planned is None or not count:
        return canvas.plot_nothing(result, "no pipeline", ax)
    row = min(TALLEST_ROW, max(SHORTEST_ROW, ROWS_HEIGHT / count))
    ax = canvas.new_figure(PIPELINE_WIDTH, 1.15 + row * count).add_subplot() if ax is None else ax
    factor, unit = canvas.time_scale(data.step_ps * PICO)
    groups = [group for group in _bar_groups(planned, data) if _is_visible(group[2], data)]
    for _, style, bars in groups:
        _draw_bars(ax, style, bars, data.step_ps, PICO * factor)
    for kind in PassKind:
        _draw_numbers(ax, data, kind, PICO * factor)
    ax.set_xlim(0, data.step_ps * PICO * factor)
    ax.set_ylim(count - 0.5, -0.5)
    labelled = range(0, count, max(1, round(0.15 / row)))
    ax.set_yticks(labelled, [_stage_name(planned, stage) for stage in labelled])
    _draw_losses(ax, data, labelled)
    ax.set_xlabel(f"time in the step [{unit}]", color=INK)
    canvas.simplify_axes(ax, rows=True)
    lost = "of it computing what nobody reads" if data.schedule == CIRCULAR else "of it bubble"
    step = f"{format_seconds(result.step_time_s)} per step"
    canvas.draw_title(ax, f"{result.title}: {data.schedule}, {step}, {data.bubble:.1%} {lost}")
    canvas.draw_legend(ax, {name: style for name, style, _ in groups if name})
    return ax


def _is_visible(bars: Sequence[StageBar], data: PipelineFigure) -> bool:
    """Return True if one of the bars is wide enough to be seen."""
    longest = max(end - start for _, start, end in bars)
    return longest / data.step_ps * PIPELINE_POINTS >= VISIBLE_WIDTH


def _stage_name(result: PlanResult, stage: int) -> str:
    """Return a stage, and its slice where stages are on several."""
    inner, across = (result.plan.mesh.get(axis, 1) for axis in reversed(STAGE_AXES))
    return f"slice {stage // inner}, stage {stage}" if across > 1 else f"stage {stage}"


def _bar_groups(
    result: PlanResult, data: PipelineFigure
) -> Iterator[tuple[str, FillStyle, list[StageBar]]]:
    """Yield the bars of one style, with their name in the legend and the style.

    Of several chunks only the first and the last have a name.
    """
    chunks = result.plan.pipeline.virtual_stages
    for kind, style in PASS_STYLES.items():
        for chunk in range(chunks):
            bars = [
                (use.stage, timed.start_ps, timed.end_ps)
                for use in data.stages
                for timed in use.slots
                if (timed.slot.kind, timed.slot.chunk) == (kind, chunk)
            ]
            part = f" (chunk {chunk})" if chunks > 1 else ""
            name = PASS_NAMES[kind] + part if chunk in (0, chunks - 1) else ""
            if bars:
                yield name, _faded(style, chunk / max(1, chunks - 1)), bars
    known = canvas.label_styles(result)
    transfer = next((style for label, style in known.items() if label in STAGE_AXES), None)
    others = (
        (SEND_NAME, transfer, [use.send_waits for use in data.stages]),
        (UNREAD_NAME, UNREAD_STYLE, [use.unread for use in data.stages]),
        (OTHER_NAME, FillStyle(PHASE_SHADES[Phase.OPTIMIZER]), [use.other for use in data.stages]),
    )
    for name, look, spans in others:
        bars = [
            (use.stage, *span) for use, of in zip(data.stages, spans, strict=True) for span in of
        ]
        if bars and look:
            yield name, look, bars


def _faded(style: FillStyle, share: float) -> FillStyle:
    """Return a style closer to white, the more the greater the share."""
    keep = 1 - LAST_CHUNK_FADE * share
    parts = (int(style.face[at : at + 2], 16) for at in (1, 3, 5))
    face = "".join(f"{round(255 - keep * (255 - part)):02x}" for part in parts)
    return replace(style, face=f"#{face}")


def _draw_bars(
    ax: "Axes", style: FillStyle, bars: Sequence[StageBar], step_ps: int, times: float
) -> None:
    """Draw all bars of a style."""
    stage, start, end = np.array(bars, dtype=float).T
    drawn = (end - start) / step_ps * PIPELINE_POINTS >= DRAWN_WIDTH
    stage, start, end = stage[drawn], start[drawn], end[drawn]
    rows = [stage - SLOT_HEIGHT / 2, stage + SLOT_HEIGHT / 2]
    sides = np.stack([start * times, end * times, *rows], axis=1)
    widths = (end - start) / step_ps * PIPELINE_POINTS
    edge = INK if style.hatch else "white"
    line = 0.3 if np.median(widths) > EDGELESS_WIDTH else 0
    canvas.draw_boxes(ax, sides, style.arguments | {"edgecolor": edge, "linewidth": line})


def _draw_numbers(ax: "Axes", data: PipelineFigure, kind: PassKind, times: float) -> None:
    """Write the microbatch on the bars of a kind, where most are wide enough for the last number.

    The bars of one number are one collection, as hundreds of texts would take longer than all the
    rest, and the shape of a number is then written once.
    """
    from matplotlib.collections import PathCollection
    from matplotlib.transforms import IdentityTransform

    every = ((timed, use.stage) for use in data.stages for timed in use.slots)
    slots = [(timed, stage) for timed, stage in every if timed.slot.kind is kind]
    if not slots:
        return
    widths = [(each.end_ps - each.start_ps) / data.step_ps * PIPELINE_POINTS for each, _ in slots]
    width = float(np.median(widths))
    last = max(timed.slot.microbatch for timed, _ in slots)
    size = min(LARGEST_NUMBER, width / DIGIT / len(str(last)))
    if size < SMALLEST_NUMBER:
        return
    places: dict[int, list[tuple[float, int]]] = {}
    for (timed, stage), own in zip(slots, widths, strict=True):
        number = timed.slot.microbatch
        if DIGIT * size * len(str(number)) <= own:
            middle = (timed.start_ps + timed.end_ps) / 2 * times
            places.setdefault(number, []).append((middle, stage))
    for number, offsets in places.items():
        numbers = PathCollection(
            [_outline(str(number), size)],
            sizes=[1.0],
            offsets=offsets,
            offset_transform=ax.transData,
            transform=IdentityTransform(),
            linewidths=0,
            facecolors=PASS_STYLES[kind].text,
            clip_on=False,
        )
        ax.add_collection(numbers, autolim=False)


def _outline(text: str, size: float) -> "Path":
    """Return the outline of a text around (0, 0), in points."""
    from matplotlib.path import Path
    from matplotlib.textpath import TextPath

    outline = TextPath((0, 0), text, size=size)
    low, high = outline.vertices.min(axis=0), outline.vertices.max(axis=0)
    return Path(outline.vertices - (low + high) / 2, outline.codes)


def _draw_losses(ax: "Axes", data: PipelineFigure, labelled: Sequence[int]) -> None:
    """Write the fraction of the step that each labelled stage loses, to the right of its row."""
    for stage in labelled:
        text = f"{data.stages[stage].bubble_ps / data.step_ps:.1%}"
        canvas.draw_note(
            ax, text, (1, stage), (5, 0), xycoords=("axes fraction", "data"), va="center"
        )
    head = "lost" if data.schedule == CIRCULAR else "bubble"
    canvas.draw_note(ax, head, (1, 0), (5, -4), xycoords="axes fraction", va="top")


register_figure(
    "pipeline", pipeline_data, plot_pipeline, lambda result: pipelined(result) is not None
)
