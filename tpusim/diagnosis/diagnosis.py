"""A diagnosis: where a measured and a predicted step differ, and the sentences that say so."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_table import folded_table
from tpusim.base.text_width import wrapped
from tpusim.diagnosis.alignment import TIMES
from tpusim.diagnosis.finding import Finding, duration
from tpusim.diagnosis.stragglers import section_lines
from tpusim.profiles.profile import PS
from tpusim.report.figures.canvas import time_scale
from tpusim.report.figures.two_timelines import CoreBar, plot_timelines
from tpusim.results import entry
from tpusim.training import Stragglers

FINDINGS_SHOWN = 5
KINDS_SHOWN = 12
REST = "(none)"
LEAST_LAYERS = 0.3
"""The fraction of a step that layers take, from which one of them is drawn alone."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(ShortRepr):
    """The differences of a measured and a predicted step. Times in whole picoseconds.

    profile: the name of its file.
    program: of its steps.
    devices, executions: how many were profiled, the latter on all devices together.
    prediction: what predicted the step, in words; empty if nothing did.
    measured_ps: from the begin of a step to that of the next one, a mean.
    predicted_ps: 0 if nothing predicted it.
    parts: one row for each operation and layer that either side has, with `operation`, `layer`
        (-1 outside of layers), `kind`, `axis`, `phase`, `scope`, `line`, `bound` and the times
        `measured_ps`, `predicted_ps` and `difference_ps`, which sum to those of the steps;
        `measured_order` and `predicted_order` are places in the order of time, -1 for none.
    findings: in sentences: first what varies, then what differs, each the largest first.
    stragglers: what varies, as the section [stragglers] of a training run; None for none.
    notes: what is unknown, in sentences.
    """

    profile: str
    program: str
    devices: int
    executions: int
    prediction: str
    measured_ps: int
    predicted_ps: int
    parts: pd.DataFrame
    findings: tuple[Finding, ...]
    stragglers: Stragglers | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sums = self.parts[[*TIMES]].sum()
        whole = (self.measured_ps, self.predicted_ps, self.difference_ps)
        assert tuple(map(int, sums)) == whole, "the parts do not sum to the steps"

    @property
    def title(self) -> str:
        """Program and profile."""
        return f"{self.program} in {self.profile}"

    @property
    def runs(self) -> str:
        """The executions and the devices in words."""
        many = f"{self.devices} device{'s' * (self.devices > 1)}"
        return f"{self.executions} execution{'s' * (self.executions > 1)} on {many}"

    @property
    def difference_ps(self) -> int:
        """What the measured step takes more than the predicted one."""
        return self.measured_ps - self.predicted_ps

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_ps / self.predicted_ps

    @property
    def times(self) -> tuple[str, ...]:
        """The columns of times that say something: without a prediction the measured ones."""
        return TIMES if self.prediction else TIMES[:1]

    @property
    def by_kind(self) -> pd.DataFrame:
        """The times by kind of work, the largest differences first."""
        return self.by("kind")

    @property
    def by_layer(self) -> pd.DataFrame:
        """The times by layer: its number, or that of the loop's iteration; -1 is all else."""
        return self.by("layer").sort_index()

    @property
    def by_line(self) -> pd.DataFrame:
        """The times by line of the user's code; `(none)` is what has no line."""
        return self.by("line")

    @property
    def by_axis(self) -> pd.DataFrame:
        """The times of collectives by mesh axes; `(none)` is all else."""
        return self.by("axis")

    @property
    def by_operation(self) -> pd.DataFrame:
        """The times by operation."""
        return self.by("operation")

    def by(self, *columns: str) -> pd.DataFrame:
        """Return the sums of the times by columns of `parts`, the largest differences first."""
        parts = self.parts.replace({name: {"": REST} for name in columns if name != "layer"})
        found = parts.groupby([*columns], sort=False)[[*TIMES]].sum()
        return found.sort_values("difference_ps", key=abs, ascending=False, kind="stable")

    def largest(self, column: str, most: int) -> pd.DataFrame:
        """Return the first rows of a table that are not zero, with `times` alone."""
        found = (self.by_layer if column == "layer" else self.by(column))[[*self.times]]
        return found[(found != 0).any(axis=1)].head(most)

    @property
    def layer(self) -> int:
        """The middle one of the layers that both sides have; -1, the whole step, for few."""
        found = self.by_layer
        found = found[(found.index >= 0) & (found[[*self.times[:2]]] > 0).all(axis=1)]
        if found["measured_ps"].sum() < LEAST_LAYERS * self.measured_ps:
            return -1
        return int(found.index[len(found) // 2])

    def timelines(self) -> dict[str, list[CoreBar]]:
        """Return what a core does in `layer`, by side, in order: means of all steps and devices."""
        parts = self.parts if self.layer < 0 else self.parts[self.parts["layer"] == self.layer]
        found = {}
        for side in ("measured", "predicted"):
            mine = parts[parts[f"{side}_ps"] > 0].sort_values(f"{side}_order")
            rows = zip(mine["operation"], mine["kind"], mine[f"{side}_ps"], strict=True)
            found[side] = [CoreBar(*row) for row in rows]
        return {side: bars for side, bars in found.items() if bars}

    def plot(self) -> Any:
        """Draw one layer on the measured and on the predicted timeline; returns matplotlib axes."""
        where = "the step" if self.layer < 0 else f"layer {self.layer}"
        return plot_timelines(f"{self.title}: {where}, a mean", self.timelines())

    def facts(self) -> Mapping[str, Any]:
        """Return the content of `diagnose.json`, as plain data."""
        tables = ("by_kind", "by_layer", "by_line", "by_axis", "by_operation")
        return {
            "profile": self.profile,
            "program": self.program,
            "devices": self.devices,
            "executions": self.executions,
            "prediction": self.prediction,
            **{name: int(getattr(self, name)) for name in TIMES},
            "findings": [asdict(each) for each in self.findings],
            **{name: getattr(self, name).reset_index().to_dict("records") for name in tables},
            **({} if self.stragglers is None else {"stragglers": self.stragglers.written}),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        table = folded_table([*self._table()])
        notes = [line for note in self.notes for line in entry("note", note)]
        return "\n".join([*self._head(), "", *self._found(), "", *table, *notes, *self._snippet()])

    def _head(self) -> Iterator[str]:
        yield from wrapped(f"{self.profile}: {self.program}, {self.runs}")
        yield from entry("measured", f"{duration(self.measured_ps)} per step")
        if self.prediction:
            yield from entry("predicted", f"{duration(self.predicted_ps)}: {self.prediction}")
            yield from entry("ratio", f"{self.ratio:.3f} measured over predicted")

    def _found(self) -> Iterator[str]:
        shown = self.findings[:FINDINGS_SHOWN]
        for number, finding in enumerate(shown, 1):
            yield from wrapped(f"{finding}", f"{number:>3}. ", " " * 5)
        if not shown:
            yield "  no cause of half a percent of the step or more"

    def _snippet(self) -> Iterator[str]:
        """Yield what varies as a section of a run file."""
        if self.stragglers is not None:
            yield ""
            yield "# of a run file with [train]: what training on gives if this goes on"
            yield from section_lines(self.stragglers)

    def _table(self) -> Iterator[Sequence[str]]:
        """Yield a row for each kind, and their sum."""
        factor, unit = time_scale(self.measured_ps * PS)
        shown, whole = self.largest("kind", KINDS_SHOWN), self.parts[[*self.times]].sum()
        rows = {f"  {kind}": row for kind, row in shown.iterrows()}
        if (rest := whole - shown.sum()).any():
            rows["  others"] = rest
        yield (f"by kind [{unit}]", *(name.removesuffix("_ps") for name in self.times))
        signs = dict.fromkeys(TIMES[:2], "") | {TIMES[2]: "+"}
        for name, row in {**rows, "  sum": whole}.items():
            yield (name, *(f"{row[each] * PS * factor:{signs[each]}.3f}" for each in self.times))
