"""The changes that each pass of the lowering made to a step."""

from dataclasses import dataclass

from tpusim.base.text_table import wrapped_table
from tpusim.base.text_width import unbroken
from tpusim.lowering import Entry, LoweringPass, PassRecord, all_passes, record_passes, switched_off
from tpusim.partition import Node
from tpusim.pipeline.planned_step import planned_step
from tpusim.results import PlanResult

CHANGES = ("added", "removed", "changed", "moved")
"""The columns of counts: fields of a `PassRecord`."""


@dataclass(frozen=True, slots=True)
class PassRow:
    """One pass, and what it did to each body.

    off: True if the plan switches it off.
    """

    rewrite: LoweringPass[Node] | LoweringPass[Entry]
    off: bool
    records: tuple[PassRecord, ...]

    @property
    def name(self) -> str:
        """Name of the pass."""
        return self.rewrite.name

    @property
    def bodies(self) -> tuple[str, ...]:
        """Names of the bodies that it changed."""
        return tuple(dict.fromkeys(record.body for record in self.records if record.count))

    def count(self, change: str) -> int:
        """Return the entries of all bodies with a change, one of `CHANGES`."""
        return sum(len(getattr(record, change)) for record in self.records)


@dataclass(frozen=True, slots=True)
class PassTable:
    """The passes in the order in which they run."""

    rows: tuple[PassRow, ...]

    def __str__(self) -> str:
        acting = sum(bool(row.bodies) for row in self.rows)
        head = unbroken(
            f"passes      {len(self.rows)}, of which {acting} changed something; without_passes "
            "(--without NAME) switches off those with a program"
        )
        heads = ("pass", *CHANGES, "what it does, and where")
        return "\n".join([*head, *wrapped_table([heads, *map(_cells, self.rows)], left=1)])


def _cells(row: PassRow) -> tuple[str, ...]:
    rewrite, counts = row.rewrite, (row.count(change) for change in CHANGES)
    where = f"in {', '.join(row.bodies)}" if row.bodies else f"here nothing ({rewrite.when})"
    shown = f"; program: {rewrite.shown_by}" if rewrite.shown_by else ""
    kind = "off; " if row.off else "observed; " if rewrite.observed else ""
    cells = (str(count) if count else "-" for count in counts)
    return (row.name, *cells, f"{kind}{rewrite.does}: {where}{shown}")


def explain_passes(result: PlanResult) -> PassTable:
    """Lower the step of a result once more, and return the changes that each pass made."""
    with record_passes() as log:
        planned_step(result.model, result.plan, result.pod).programs_on(result.placement)
    without = result.plan.compiler.without_passes
    rows = (
        PassRow(
            rewrite=each,
            off=switched_off(each, without),
            records=tuple(one for one in log if one.pass_name == each.name),
        )
        for each in all_passes()
    )
    return PassTable(tuple(rows))
