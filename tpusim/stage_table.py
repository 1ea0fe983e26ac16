"""A pipeline as a chart of its slots as they ran, and a table of what each stage has and does."""

from collections.abc import Iterator
from dataclasses import dataclass

from tpusim.plan_result import PlanResult
from tpusim.program import Pass
from tpusim.program.chart import COLUMNS, MARGIN, painted
from tpusim.result import PICO
from tpusim.stages import StageUse, stage_uses
from tpusim.summary import aligned, entry
from tpusim.units import format_bytes, format_seconds

SENT, UNREAD, OTHER = ">", "x", "="
LEGEND = (
    f"F forward, B backward, W weight gradients, {SENT} waits for a transfer, {OTHER} other work, "
    f"{UNREAD} computes what nobody reads, . bubble"
)


@dataclass(frozen=True, slots=True)
class PipelineTable:
    """The stages of a pipeline, none where the plan has none; head: what it is."""

    head: str
    stages: tuple[StageUse, ...]
    step_ps: int

    def __str__(self) -> str:
        if not self.stages:
            return "pipeline    none, as no axis of the mesh is called stage or dcn_stage"
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        column = format_seconds(self.step_ps / (COLUMNS - MARGIN) * PICO)
        yield from entry("pipeline", f"{self.head}; a column is {column}")
        yield from painted([sorted(_parts(use), key=_start) for use in self.stages], self.step_ps)
        yield from entry("", LEGEND)
        yield ""
        heads = ("stage", "layers", "F", "B", "W", "bubble", "transfers", "HBM peak", "besides")
        rows = [heads, *(_row(use, self.step_ps) for use in self.stages)]
        yield from aligned(rows, left=0)


def explain_pipeline(result: PlanResult) -> PipelineTable:
    """What each stage of a simulated step has and does: layers, slots, bubble, memory."""
    plan, stages = result.plan, stage_uses(result)
    chunks = f" x {plan.virtual_stages} chunks" if plan.virtual_stages > 1 else ""
    lost = sum(use.bubble_ps for use in stages) / result.timeline.total_ps / max(1, len(stages))
    head = (
        f"{plan.pipeline}, {plan.stages} stages{chunks}, {plan.microbatches} microbatches, "
        f"{lost:.1%} bubble"
    )
    return PipelineTable(head, stages, result.timeline.total_ps)


def _parts(use: StageUse) -> Iterator[tuple[str, int, int]]:
    """All that a stage does, with the letters of the chart."""
    for slot, start, end in use.ran:
        yield str(slot), start, end
    for mark, spans in ((SENT, use.sent), (UNREAD, use.unread), (OTHER, use.other)):
        yield from ((mark, *span) for span in spans)


def _start(part: tuple[str, int, int]) -> int:
    return part[1]


def _row(use: StageUse, step_ps: int) -> tuple[str, ...]:
    means = (use.mean_ps(kind) * PICO for kind in Pass)
    return (
        str(use.stage), "+".join(map(str, use.layers)),
        *(format_seconds(mean) if mean else "-" for mean in means),
        f"{use.bubble_ps / step_ps:.1%}", f"{use.sent_ps / step_ps:.1%}",
        format_bytes(use.hbm_peak_bytes), use.besides or "-",
    )  # fmt: skip
