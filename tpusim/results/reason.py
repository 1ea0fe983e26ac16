"""Why a part of a step takes as long as it does, and a change of the run that was simulated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpusim.base.short_repr import ShortRepr


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reason(ShortRepr):
    """Why a part of a step takes as long as it does.

    kind: what it is about, such as `attention` or `few rows`.
    share: the fraction of the step that the part takes on the critical path.
    because: the reason in words, with its numbers.
    evidence: the numbers, by name.
    change: the change of the run in words that was simulated and takes less time; empty if none
        does.
    settings: the change for `--set`, a text each.
    step_time_s: of the changed run; None without a change.
    saves: the fraction of the time that the change saves, for as many examples.
    fits: True if the changed run fits as surely as the run itself.
    but: what the changed run needs of HBM, in words, where it does not.
    """

    kind: str
    share: float
    because: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    change: str = ""
    settings: tuple[str, ...] = ()
    step_time_s: float | None = None
    saves: float = 0.0
    fits: bool = True
    but: str = ""

    def __str__(self) -> str:
        return f"{self.because}; {self.gain}" if self.change else self.because

    @property
    def gain(self) -> str:
        """The change and what it saves, in words; empty without one."""
        if not self.change:
            return ""
        return f"{self.change} saves {self.saves:.1%} (simulated){self.but}"

    def facts(self) -> dict[str, Any]:
        """Return the reason as plain data."""
        return {
            "kind": self.kind,
            "share": self.share,
            "sentence": str(self),
            "because": self.because,
            "evidence": dict(self.evidence),
            "change": self.change,
            "settings": list(self.settings),
            "step_time_s": self.step_time_s,
            "saves": self.saves,
            "fits": self.fits,
        }


def best_change(reasons: tuple[Reason, ...]) -> Reason | None:
    """Return the reason whose change fits and saves most; None if there is none."""
    able = [reason for reason in reasons if reason.change and reason.fits]
    return max(able, key=lambda reason: reason.saves, default=None)
