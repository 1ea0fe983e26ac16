"""A pass over a body: its effect, its scope, and the program that shows it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tpusim.lowering.body_entries import Entry
from tpusim.lowering.decisions import Body
from tpusim.partition import Node

Step = TypeVar("Step", Node, Entry)


@dataclass(frozen=True, slots=True)
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
    shown_by: str
    run: Callable[[Sequence[Step], Body], list[Step]]
    applies: Callable[[Body], bool] = lambda body: True
    observed: bool = False

    @property
    def optional(self) -> bool:
        """True if it can be switched off."""
        return bool(self.shown_by)
