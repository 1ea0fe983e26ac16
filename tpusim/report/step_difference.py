"""The difference of two steps, and its causes.

A step's breakdown sums to the step, so the differences of its parts sum to that of the steps. This
says where the time is spent, not what would be saved: a collective that is hidden in one step and
exposed in the other is a difference of exposed communication, whatever made room for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpusim.base.units import format_seconds
from tpusim.report.compared_step import ComparedStep
from tpusim.results import PICO

TIMES_AS_LONG = 2
"""The ratio of two steps from which it is said as such."""


@dataclass(frozen=True, slots=True)
class StepDifference:
    """What step `b` takes more than step `a`, and less where it is negative.

    names: of the two steps.
    """

    a: ComparedStep
    b: ComparedStep
    names: tuple[str, str]

    @property
    def difference_ps(self) -> int:
        """Whole picoseconds."""
        return self.b.step_ps - self.a.step_ps

    @property
    def parts_ps(self) -> dict[str, int]:
        """Whole picoseconds by cause, the largest first; they sum to the difference.

        The causes are the labels of a breakdown: kinds of work, exposed communication by mesh axes,
        waits and bubbles.
        """
        return _differences(self.a.breakdown_ps, self.b.breakdown_ps)

    @property
    def phases_ps(self) -> dict[str, int]:
        """Whole picoseconds by phase, the largest first; they sum to the difference."""
        return _differences(self.a.phases_ps, self.b.phases_ps)

    def facts(self) -> Mapping[str, Any]:
        """Return the difference as plain data, in seconds, and exactly in picoseconds."""
        return {
            "a": self.names[0],
            "b": self.names[1],
            "a_s": self.a.step_time_s,
            "b_s": self.b.step_time_s,
            "difference_s": self.difference_ps * PICO,
            "parts_s": in_seconds(self.parts_ps),
            "phases_s": in_seconds(self.phases_ps),
            "a_ps": self.a.step_ps,
            "b_ps": self.b.step_ps,
            "difference_ps": self.difference_ps,
            "parts_ps": self.parts_ps,
        }

    def __str__(self) -> str:
        a, b = self.names
        times = f"{format_seconds(self.b.step_time_s)} against {format_seconds(self.a.step_time_s)}"
        if not self.difference_ps:
            return f"{b} takes as long as {a}: {format_seconds(self.a.step_time_s)}"
        ratio = self.b.step_ps / self.a.step_ps
        how = f"{abs(ratio - 1):.1%} {'longer' if ratio > 1 else 'less'} than"
        if ratio >= TIMES_AS_LONG:
            how = f"{ratio:.1f} times as long as"
        sign = 1 if ratio > 1 else -1
        cause, most = max(self.parts_ps.items(), key=lambda part: sign * part[1])
        part = f"{'-+'[most > 0]}{format_seconds(abs(most) * PICO)}"
        return f"{b} takes {how} {a} ({times}); the largest cause is {cause} ({part})"


def _differences(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    """Return what `b` has more of each part, the largest first."""
    parts = {name: b.get(name, 0) - a.get(name, 0) for name in {**a, **b}}
    return dict(sorted(parts.items(), key=lambda part: -abs(part[1])))


def in_seconds(parts: Mapping[str, int]) -> dict[str, float]:
    """Return whole picoseconds as seconds."""
    return {name: picoseconds * PICO for name, picoseconds in parts.items()}
