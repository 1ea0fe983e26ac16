"""The complete gradients of weights after a backward pass."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpusim.program import Dep


@dataclass(frozen=True, slots=True)
class GradientDeps:
    """The complete gradients of weights: the buffers that hold them, and their last operations.

    held: weight -> tensor that holds the gradients of all its layers.
    after: weight -> operation to wait for, where it is not in program order.
    """

    held: Mapping[str, str]
    after: Mapping[str, str]

    def deps(self, weight: str) -> tuple[Dep, ...]:
        """Return the dependencies of a reader of a weight's gradient."""
        return (Dep(self.after[weight]),) if weight in self.after else ()
