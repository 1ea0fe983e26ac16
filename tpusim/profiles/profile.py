"""A profile: the steps and the operations that a profiler recorded on TPUs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from tpusim.base.errors import TpusimError, nearest
from tpusim.base.plain_text import plain
from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_table import padded
from tpusim.base.text_width import wrapped
from tpusim.base.units import format_bytes, format_rate, format_seconds
from tpusim.compiler.compiled import Compiled

PS = 1e-12
"""Seconds of a picosecond."""

KINDS_SHOWN = 10
IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile(ShortRepr):
    """A profile of TPUs. Times in picoseconds since the profile began.

    name: of the file, without its folder.
    kind: the devices as the profiler states them, such as `TPU v6 Lite`; empty if unknown.
    chip: the name of their chip, as a run file has it; empty if unknown.
    clock_hz: of their arrays, from the peak that the profiler states; 0 if unknown.
    operations: one row per operation and device; `docs/profiles.md` has its columns.
    steps: one row per execution of a program and device: `device`, `step`, `program`, `start_ps`,
        `duration_ps`, and `busy_ps`, the self times of the operations in it.
    programs: HLO protos by the names of programs; empty for a trace.
    notes: what is missing, in sentences.
    """

    name: str
    kind: str
    chip: str
    clock_hz: float
    operations: pd.DataFrame
    steps: pd.DataFrame
    programs: Mapping[str, bytes]
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, such as `TPU:0`."""
        return tuple(dict.fromkeys(self.steps["device"]))

    @property
    def main(self) -> str:
        """The program that takes most of the time: that of the steps."""
        return str(self.steps.groupby("program", sort=False)["duration_ps"].sum().idxmax())

    def program(self, name: str = "") -> Compiled | None:
        """Return a program as `simulate` replays it; None if the profile does not hold it.

        name: as in `steps`; by default the one of the steps.
        """
        name = name or self.main
        data = self.programs.get(name)
        return None if data is None else Compiled(name=short_name(name), data=data)

    def by_category(self, program: str = "") -> pd.Series:
        """Return the picoseconds of a step by category, idle time included: means of all devices.

        Raise TpusimError for a program that did not run.

        program: as in `steps`; by default the one of the steps.
        """
        program = program or self.main
        if program not in set(self.steps["program"]):
            choice = nearest(program, self.steps["program"].unique())
            raise TpusimError(f"{self.name} has no program {program!r}; {choice}")
        mine = self.operations[self.operations["program"] == program]
        mine = mine[~mine["asynchronous"]]
        steps = self.steps[self.steps["program"] == program]
        found = mine.groupby("category", observed=True)["self_ps"].sum()
        found[IDLE] = steps["duration_ps"].sum() - found.sum()
        return (found / len(steps)).sort_values(ascending=False)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        kind = self.kind or "TPUs whose kind is not stated"
        clock = f" at {format_rate(self.clock_hz, 'Hz')}" if self.clock_hz else ""
        yield f"{plain(self.name)}: {len(self.devices)} x {plain(kind)}{clock}"
        for program, executions in self.steps.groupby("program", sort=False):
            yield f"  {short_name(str(program))}: {self._executions(str(program), executions)}"
        yield f"  of {short_name(self.main)}, per execution:"
        found = self.by_category()
        rows = [
            (plain(str(kind)), format_seconds(took * PS), f"{took / max(found.sum(), 1):.1%}")
            for kind, took in found.head(KINDS_SHOWN).items()
        ]
        yield from padded(rows, indent="    ")
        for note in self.notes:
            yield from wrapped(note, "  note: ", "    ")

    def _executions(self, program: str, executions: pd.DataFrame) -> str:
        """Return how often a program ran, and how long it took."""
        each = [PS * float(duration) for duration in executions["duration_ps"]]
        devices = executions["device"].nunique()
        count = len(each) // devices if len(each) % devices == 0 else len(each)
        times = f"{count} time{'s' * (count != 1)}"
        times += f" on each of {devices} devices" if len(each) != count else ""
        least, mean, most = (format_seconds(value) for value in (min(each), fmean(each), max(each)))
        spread = f" ({least} to {most})" if least != most else ""
        held = self.programs.get(program)
        hlo = f", HLO of {format_bytes(len(held))}" if held else ""
        return f"{times}, {mean}{spread}{hlo}"


def short_name(program: str) -> str:
    """Return the name of a program without its fingerprint, to be shown."""
    return plain(program.partition("(")[0] or program)
