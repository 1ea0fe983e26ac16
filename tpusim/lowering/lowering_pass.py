"""A pass over a body: its effect, its scope, and the program that shows it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from tpusim.base.shipped_table import shipped_table
from tpusim.lowering.body_entries import Step
from tpusim.lowering.decisions import Body


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringPass(Generic[Step]):
    """One rewrite of a body.

    does: its effect, in the imperative.
    when: the bodies that it changes, in words.
    shown_by: the compiled program that shows it; empty if the plan itself asks for it.
    run: from the steps and their body to the new steps.
    applies: False for bodies on which it does not run.
    observed: True if compiled programs alone showed it.
    """

    name: str
    does: str
    when: str
    run: Callable[[Sequence[Step], Body], list[Step]]
    applies: Callable[[Body], bool]
    shown_by: str = ""
    observed: bool = False

    @property
    def optional(self) -> bool:
        """True if it can be switched off."""
        return bool(self.shown_by)


_TABLE = shipped_table("lowering", "passes.toml")


def described(
    name: str,
    run: Callable[[Sequence[Step], Body], list[Step]],
    applies: Callable[[Body], bool] = lambda body: True,
) -> LoweringPass[Step]:
    """Return a pass as `passes.toml` describes it."""
    return LoweringPass(name=name, run=run, applies=applies, **_TABLE[name])
