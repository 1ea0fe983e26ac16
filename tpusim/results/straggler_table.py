"""Devices that differ, by class: how long each waits for others, and for whom."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tpusim.base.text_entry import entry
from tpusim.base.text_table import wrapped_table
from tpusim.base.units import format_seconds
from tpusim.costs import STRAGGLERS
from tpusim.results.result import PICO, Result

ROWS_SHOWN = 12
"""Classes of a printed table: those that wait least and most."""

NAMES_SHOWN = 2
"""Classes that a row of the table says it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Devices that do the same at the same time. Times in picoseconds of one of them.

    name: coordinates of the first, and what is left of its speed.
    waits: by the class (in a run of every device, the device) that arrived last.
    """

    name: str
    devices: int
    waits: tuple[tuple[str, int], ...]

    @property
    def wait_ps(self) -> int:
        """The core's waits for stragglers."""
        return sum(ps for _, ps in self.waits)


@dataclass(frozen=True, slots=True)
class StragglerTable:
    """The classes of the devices of a step, those first that wait least."""

    rows: tuple[DeviceClass, ...]
    step_ps: int

    def __str__(self) -> str:
        devices = sum(row.devices for row in self.rows)
        head = f"{devices:,} in {len(self.rows)} that differ, with the time they wait for others"
        heads = ("devices", "such as", "waits", "of the step", "for")
        hidden = max(0, len(self.rows) - ROWS_SHOWN)
        half = (len(self.rows) - hidden) // 2
        rows = (*self.rows[:half], *self.rows[half + hidden :])
        cells = [heads, *(_cells(row, self.step_ps) for row in rows)]
        lines = [*entry("classes", head), *wrapped_table(cells, left=0)]
        return "\n".join([*lines, *_more(hidden)])


def stragglers(result: Result) -> StragglerTable | None:
    """Return the classes of devices of a result; None where all devices are alike."""
    timeline = result.timeline
    if not timeline.devices:
        return None
    waits: list[Counter[str]] = [Counter() for _ in timeline.lanes]
    for wait in timeline.waits:
        if wait.label == STRAGGLERS:
            waits[wait.lane][wait.stream] += wait.total_ps
    rows = [
        DeviceClass(name=name, devices=devices, waits=tuple(found.most_common()))
        for (name, _), devices, found in zip(timeline.lanes, timeline.devices, waits, strict=True)
    ]
    return StragglerTable(tuple(sorted(rows, key=lambda row: row.wait_ps)), timeline.total_ps)


def _cells(row: DeviceClass, step_ps: int) -> tuple[str, ...]:
    names = [f"{name} {format_seconds(ps * PICO)}" for name, ps in row.waits[:NAMES_SHOWN]]
    names += ["others"] if len(row.waits) > NAMES_SHOWN else []
    return (
        f"{row.devices:,}",
        row.name,
        format_seconds(row.wait_ps * PICO),
        f"{row.wait_ps / step_ps:.1%}",
        ", ".join(names) or "nobody",
    )


def _more(hidden: int) -> Iterator[str]:
    if hidden > 0:
        yield f"  and {hidden:,} in between"
