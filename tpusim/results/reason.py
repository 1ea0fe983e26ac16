"""Why a part of a step takes as long as it does, and a change of the run that was simulated."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tpusim.base.short_repr import ShortRepr


class ReasonKind(StrEnum):
    """What a reason is about."""

    ATTENTION = "attention"
    NARROW_MATMULS = "narrow matmuls"
    RECOMPUTATION = "recomputation"
    LAUNCHES = "launches"
    OPTIMIZER = "optimizer"
    COLLECTIVES = "collectives"
    TORUS = "torus"
    DCN = "DCN"
    BUBBLE = "pipeline bubble"
    INPUT = "input"
    HOST = "host"
    SLOW_PARTS = "slow parts"
    REPEATED_WORK = "repeated work"
    PADDING = "padding"
    RESHARDING = "resharding"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reason(ShortRepr):
    """Why a part of a step takes as long as it does.

    share: the fraction of the step that the reason is about.
    because: the reason in words, with its numbers.
    evidence: the numbers, by name; times in seconds, sizes in bytes, shares as fractions.
    axes: the mesh axes of the collectives that it is about.
    change: the change of the run in words that was simulated, takes less time, and fits in HBM as
        surely as the run; empty if none does.
    settings: the change for `--set`, a text each; () for one of the machine.
    step_time_s: of the changed run, on the placement of the run unless the change has another.
    saves: the fraction of the step that the change saves.
    """

    kind: ReasonKind
    share: float
    because: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    axes: tuple[str, ...] = ()
    change: str = ""
    settings: tuple[str, ...] = ()
    step_time_s: float | None = None
    saves: float = 0.0

    def __str__(self) -> str:
        return f"{self.because}; {self.gain}" if self.change else self.because

    @property
    def gain(self) -> str:
        """The change and what it saves, in words; empty without one."""
        return f"{self.change} saves {self.saves:.1%} (simulated)" if self.change else ""

    def facts(self) -> dict[str, Any]:
        """Return the reason as plain data."""
        return {
            "kind": str(self.kind),
            "share": self.share,
            "sentence": str(self),
            "because": self.because,
            "evidence": dict(self.evidence),
            "change": self.change,
            "settings": list(self.settings),
            "step_time_s": self.step_time_s,
            "saves": self.saves,
        }


def best_change(reasons: Iterable[Reason]) -> Reason | None:
    """Return the reason whose change saves most; None if none has one."""
    able = [reason for reason in reasons if reason.change]
    return max(able, key=lambda reason: reason.saves, default=None)
