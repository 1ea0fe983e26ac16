"""A pipeline as a chart of its timed slots and a table of its stages."""

from collections.abc import Iterator
from dataclasses import dataclass

from tpusim.base.checked_call import checked_call
from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_entry import entry
from tpusim.base.text_table import wrapped_table
from tpusim.base.text_width import text_width
from tpusim.base.units import format_bytes, format_seconds
from tpusim.program import CHART_MARGIN, PassKind, chart_rows
from tpusim.results.plan_result import PlanResult
from tpusim.results.result import PICO, check_result
from tpusim.results.stage_uses import StageUse, stage_uses

SEND_MARK, UNREAD_MARK, OTHER_MARK = ">", "x", "="
CHART_LEGEND = (
    f"F forward, B backward, W weight gradients, {SEND_MARK} waits for a transfer, "
    f"{OTHER_MARK} other work, {UNREAD_MARK} computes what nobody reads, . bubble"
)


@dataclass(frozen=True, slots=True, repr=False)
class PipelineTable(ShortRepr):
    """The stages of a pipeline, none if the plan has none.

    head: the schedule, in words.
    """

    head: str
    stages: tuple[StageUse, ...]
    step_ps: int

    def __str__(self) -> str:
        if not self.stages:
            return "pipeline    none, as no axis of the mesh is called stage or dcn_stage"
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        column = format_seconds(self.step_ps / (text_width() - CHART_MARGIN) * PICO)
        yield from entry("pipeline", f"{self.head}; a column is {column}")
        yield from chart_rows(
            [sorted(_parts(use), key=_start) for use in self.stages], self.step_ps, text_width()
        )
        yield from entry("", CHART_LEGEND)
        yield ""
        heads = ("stage", "layers", "F", "B", "W", "bubble", "transfers", "HBM peak", "besides")
        rows = [heads, *(_row(use, self.step_ps) for use in self.stages)]
        yield from wrapped_table(rows, left=0)


@checked_call
def explain_pipeline(result: PlanResult) -> PipelineTable:
    """Return the stages of a simulated step: layers, slots, bubble and memory of each."""
    check_result(result, "explain_pipeline", PlanResult)
    plan, stages = result.plan, stage_uses(result)
    chunks = f" x {plan.pipeline.virtual_stages} chunks" if plan.pipeline.virtual_stages > 1 else ""
    lost = sum(use.bubble_ps for use in stages) / result.timeline.total_ps / max(1, len(stages))
    head = (
        f"{plan.active_schedule}, {plan.stages} stages{chunks}, {plan.microbatches} microbatches, "
        f"{lost:.1%} bubble"
    )
    return PipelineTable(head, stages, result.timeline.total_ps)


def _parts(use: StageUse) -> Iterator[tuple[str, int, int]]:
    """Yield the work and the waits of a stage, with their letters in the chart."""
    for slot, start, end in use.slots:
        yield str(slot), start, end
    for mark, spans in (
        (SEND_MARK, use.send_waits),
        (UNREAD_MARK, use.unread),
        (OTHER_MARK, use.other),
    ):
        yield from ((mark, *span) for span in spans)


def _start(part: tuple[str, int, int]) -> int:
    return part[1]


def _row(use: StageUse, step_ps: int) -> tuple[str, ...]:
    means = (use.mean_ps(kind) * PICO for kind in PassKind)
    return (
        str(use.stage),
        "+".join(map(str, use.layers)),
        *(format_seconds(mean) if mean else "-" for mean in means),
        f"{use.bubble_ps / step_ps:.1%}",
        f"{use.send_wait_ps / step_ps:.1%}",
        format_bytes(use.hbm_peak_bytes),
        use.besides or "-",
    )
