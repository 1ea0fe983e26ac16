"""What breaks during a run, and what the run does about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, nearest
from tpusim.base.html_text import html_fields
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import (
    check_count,
    check_flag,
    check_positive,
    is_number,
    seconds,
)
from tpusim.failures.causes import CAUSES, Cause

MOST_RUNS = 100_000
MOST_SPARES = 100_000
MOST_SEED = 2**63 - 1


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures of a training run, and its recovery from them.

    runs: random runs that are simulated.
    seed: of their random numbers; each run has its own.
    spares: cubes in reserve; slices, where slices are not made of cubes. By default there is
        always one when it is needed.
    elastic: the run goes on with fewer slices while one is away.
    displaces: a smaller job gives up a cube or slice when no spare is left.
    routed: broken optical links are routed around, where the chip can and no spare takes its place.
    slowdown: time of a step on a torus with a broken link or switch over that on a healthy one; by
        default as simulated.
    restart_s: seconds until the devices are there again; by default `train.initialization_s`.
    compile_s: seconds to compile the step again; 0 for a compilation cache.
    restore_s: seconds to read a checkpoint; by default its bytes over what hosts read.
    replace_s: seconds until a spare is in the place of what failed.
    reshard_s: seconds until an elastic run has its state on other slices, without the restore.
    causes: numbers of causes by name, each a rate per unit and day or a table of keys of `Cause`.
    """

    runs: int = 1000
    seed: int = 0
    spares: int | None = None
    elastic: bool = False
    displaces: bool = False
    routed: bool = True
    slowdown: float | None = None
    restart_s: float | None = None
    compile_s: float = 0.0
    restore_s: float | None = None
    replace_s: float = 10.0
    reshard_s: float = 12.7
    causes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive("failures.runs", self.runs)
        for name, most in (("runs", MOST_RUNS), ("seed", MOST_SEED), ("spares", MOST_SPARES)):
            if getattr(self, name) is not None:
                check_count(f"failures.{name}", getattr(self, name), 0, most)
        if self.slowdown is not None and not (is_number(self.slowdown) and self.slowdown >= 1):
            raise PlanError(
                f"failures.slowdown is {shown(self.slowdown)}; write the time of a step on a "
                "broken torus over that on a healthy one, such as 1.03"
            )
        for name in ("elastic", "displaces", "routed"):
            check_flag(f"failures.{name}", getattr(self, name))
        for name in ("restart_s", "compile_s", "restore_s", "replace_s", "reshard_s"):
            if getattr(self, name) is not None:
                value = seconds(f"failures.{name}", getattr(self, name))
                object.__setattr__(self, name, value)
        if not isinstance(self.causes, Mapping):
            raise PlanError(
                f"failures.causes is {shown(self.causes)}; write a table such as "
                "{ machine = 0.0008 }, failures per machine and day"
            )
        _changed_causes(self.causes)
        if self.elastic and self.displaces:
            raise PlanError(
                "failures has both elastic and displaces: a run either goes on with fewer slices "
                "or takes those of smaller jobs; write one of the two"
            )

    @property
    def all_causes(self) -> Mapping[str, Cause]:
        """Every cause with its numbers, by name."""
        return _changed_causes(self.causes)

    def _repr_html_(self) -> str:
        """Return what is given, for a notebook."""
        return html_fields("Failures", self)


def _changed_causes(given: Mapping[str, Any]) -> Mapping[str, Cause]:
    for name in given:
        if name not in CAUSES:
            raise PlanError(f"failures.causes has no {name!r}; {nearest(str(name), CAUSES)}")
    return {
        name: cause.changed(f"failures.causes.{name}", given[name]) if name in given else cause
        for name, cause in CAUSES.items()
    }
