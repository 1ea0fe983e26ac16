"""A pipeline over the step, as a figure: a row a stage, a bar a slot, and bubbles left empty."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tpusim.partition import CIRCULAR
from tpusim.partition.plan import STAGE_AXES
from tpusim.phase import Phase
from tpusim.plan_result import PlanResult
from tpusim.program import Pass
from tpusim.report.canvas import (
    DIGIT,
    SMALL,
    boxes,
    fill,
    head,
    legend,
    new_figure,
    nothing,
    quiet,
    scale,
    style_of,
)
from tpusim.report.palette import INK, PASS_STYLES, PHASE_SHADES, UNREAD_STYLE, Style
from tpusim.result import PICO
from tpusim.stages import StageUse, stage_uses
from tpusim.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path

WIDTH = 11.0
PLOT = 0.82 * WIDTH * 72
"""Inches of the figure, and points that the axes have of them."""

HIGHEST, LOWEST, ROOM = 0.34, 0.13, 6.0
"""Inches: of the row of a stage at most and at least, and of all rows where they are many."""

BAR = 0.84
"""The height of a bar, in rows."""

TEXT, LEAST_TEXT = 6.0, 4.2
"""Points of a number at most and at least."""

THIN = 2.0
"""Points of a bar that is drawn without an edge, as it would be nothing but that."""

NAMES = {Pass.FORWARD: "forward", Pass.BACKWARD: "backward", Pass.WEIGHTS: "weight gradients"}
SENT, UNREAD, OTHER = "waits for a transfer", "computes for nobody", "other work"
PALER = 0.5
"""How much of its colour the last of several chunks has lost."""

Bar: TypeAlias = tuple[int, int, int]
"""Stage, and start and end in picoseconds."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of a pipeline over the step.

    bubble: the share of the step that they wait for others, or compute what nobody reads.
    """

    schedule: str
    stages: tuple[StageUse, ...]
    step_ps: int

    @property
    def bubble(self) -> float:
        """The mean over the stages of the share of the step that is lost."""
        lost = sum(stage.bubble_ps for stage in self.stages)
        return lost / self.step_ps / len(self.stages) if self.stages else 0.0


def pipeline_data(result: PlanResult) -> Pipeline:
    """What each stage does when; no stages where the plan has no pipeline."""
    return Pipeline(result.plan.pipeline, stage_uses(result), result.timeline.total_ps)


def plot_pipeline(result: PlanResult, ax: "Axes | None" = None) -> "Axes":
    """Draw `pipeline_data` on `ax`, or on a new figure; returns the axes.

    Slots have the number of their microbatch where there is room. Of several chunks that a stage
    has, later ones are paler.
    """
    data = pipeline_data(result)
    count = len(data.stages)
    if not count:
        return nothing(result, "no pipeline", ax)
    row = min(HIGHEST, max(LOWEST, ROOM / count))
    ax = new_figure(WIDTH, 1.15 + row * count).add_subplot() if ax is None else ax
    factor, unit = scale(data.step_ps * PICO)
    drawn = list(_kinds(result, data))
    for _, style, bars in drawn:
        _bars(ax, style, bars, data.step_ps, PICO * factor)
    for kind in Pass:
        _numbers(ax, data, kind, PICO * factor)
    ax.set_xlim(0, data.step_ps * PICO * factor)
    ax.set_ylim(count - 0.5, -0.5)
    places = range(0, count, max(1, round(0.15 / row)))
    ax.set_yticks(places, [_name(result, at) for at in places])
    _shares(ax, data, places)
    ax.set_xlabel(f"time in the step [{unit}]", color=INK)
    quiet(ax, rows=True)
    head(ax, f"{result.title}: {_finding(result, data)}")
    legend(ax, {name: style for name, style, _ in drawn if name})
    return ax


def _finding(result: PlanResult, data: Pipeline) -> str:
    """The schedule, what it loses, and the step."""
    lost = "of it computing what nobody reads" if data.schedule == CIRCULAR else "of it bubble"
    return f"{data.schedule}, {format_seconds(result.step_time_s)} a step, {data.bubble:.1%} {lost}"


def _name(result: PlanResult, stage: int) -> str:
    """A stage, and its slice where stages are on several."""
    inner, across = (result.plan.mesh.get(axis, 1) for axis in reversed(STAGE_AXES))
    return f"slice {stage // inner}, stage {stage}" if across > 1 else f"stage {stage}"


def _kinds(result: PlanResult, data: Pipeline) -> Iterator[tuple[str, Style, list[Bar]]]:
    """What is drawn alike: its name in the legend, if it has one, its style and its bars.

    Of several chunks the legend has the first and the last.
    """
    chunks = result.plan.virtual_stages
    for kind, style in PASS_STYLES.items():
        for chunk in range(chunks):
            bars = [(use.stage, ran.start_ps, ran.end_ps) for use in data.stages for ran in use.ran
                    if (ran.slot.kind, ran.slot.chunk) == (kind, chunk)]  # fmt: skip
            part = f" (chunk {chunk})" if chunks > 1 else ""
            name = NAMES[kind] + part if chunk in (0, chunks - 1) else ""
            if bars:
                yield name, _paler(style, chunk / max(1, chunks - 1)), bars
    transfer = next(
        (style for label, style in style_of(result).items() if label in STAGE_AXES), None
    )
    rest = (
        (SENT, transfer, [(use.stage, *span) for use in data.stages for span in use.sent]),
        (UNREAD, UNREAD_STYLE, [(use.stage, *span) for use in data.stages for span in use.unread]),
        (OTHER, Style(PHASE_SHADES[Phase.OPTIMIZER]),
         [(use.stage, *span) for use in data.stages for span in use.other]),
    )  # fmt: skip
    for name, look, bars in rest:
        if bars and look:
            yield name, look, bars


def _paler(style: Style, share: float) -> Style:
    """A style nearer to white, the more the greater the share."""
    keep = 1 - PALER * share
    parts = (int(style.face[at : at + 2], 16) for at in (1, 3, 5))
    face = "".join(f"{round(255 - keep * (255 - part)):02x}" for part in parts)
    return replace(style, face=f"#{face}")


def _bars(ax: "Axes", style: Style, bars: Sequence[Bar], step_ps: int, times: float) -> None:
    """All bars of a style."""
    stage, start, end = np.array(bars, dtype=float).T
    sides = np.stack([start * times, end * times, stage - BAR / 2, stage + BAR / 2], axis=1)
    widths = (end - start) / step_ps * PLOT
    edge = INK if style.hatch else "white"
    look = fill(style) | {"edgecolor": edge, "linewidth": 0.3 if np.median(widths) > THIN else 0}
    boxes(ax, sides, look)


def _numbers(ax: "Axes", data: Pipeline, kind: Pass, times: float) -> None:
    """The microbatches of the bars of a kind that have room for them, as large as most have.

    Their shapes are one collection, as hundreds of texts would take longer than all the rest.
    """
    from matplotlib.collections import PathCollection
    from matplotlib.transforms import IdentityTransform

    slots = [(ran, use.stage) for use in data.stages for ran in use.ran if ran.slot.kind is kind]
    rooms = [(ran.end_ps - ran.start_ps) / data.step_ps * PLOT for ran, _ in slots]
    texts = [str(ran.slot.microbatch) for ran, _ in slots]
    fair = float(np.median(rooms)) / DIGIT / max(map(len, texts)) if slots else 0.0
    size = min(TEXT, max(LEAST_TEXT, fair))
    named = [
        (text, ((ran.start_ps + ran.end_ps) / 2 * times, stage))
        for text, room, (ran, stage) in zip(texts, rooms, slots, strict=True)
        if DIGIT * size * len(text) <= room
    ]
    if named:
        shapes = {text: _shape(text, size) for text in dict.fromkeys(texts)}
        numbers = PathCollection(
            [shapes[text] for text, _ in named], sizes=[1.0], offsets=[at for _, at in named],
            offset_transform=ax.transData, transform=IdentityTransform(), linewidths=0,
            facecolors=PASS_STYLES[kind].text,
        )  # fmt: skip
        ax.add_collection(numbers, autolim=False)


def _shape(text: str, size: float) -> "Path":
    """The outline of a text around (0, 0), in points."""
    from matplotlib.path import Path
    from matplotlib.textpath import TextPath

    outline = TextPath((0, 0), text, size=size)
    low, high = outline.vertices.min(axis=0), outline.vertices.max(axis=0)
    return Path(outline.vertices - (low + high) / 2, outline.codes)


def _shares(ax: "Axes", data: Pipeline, places: Sequence[int]) -> None:
    """What each stage loses of the step, right of its row."""
    for at in places:
        text = f"{data.stages[at].bubble_ps / data.step_ps:.1%}"
        ax.annotate(
            text, (1, at), xycoords=("axes fraction", "data"), xytext=(5, 0), va="center",
            textcoords="offset points", fontsize=SMALL, color=INK,
        )  # fmt: skip
    what = "lost" if data.schedule == CIRCULAR else "bubble"
    ax.annotate(
        what, (1, 0), xycoords="axes fraction", xytext=(5, -4), textcoords="offset points",
        va="top", fontsize=SMALL, color=INK,
    )  # fmt: skip
