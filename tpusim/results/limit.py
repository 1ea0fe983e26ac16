"""What bounds a step: a resource, and its part of the critical path."""

from dataclasses import dataclass

PICO = 1e-12


@dataclass(frozen=True, slots=True)
class Limit:
    """A resource, and its part of the critical path of a step (`critical_path`).

    resource: `MXU`, `vector unit`, `HBM`, `ICI y` (or `ICI y,z`, where both are loaded alike),
        `die to die`, `DCN`, `PCIe`, `launches and latency`, `host`, `pipeline bubble`,
        `slice skew` or `stragglers`.
    does_ps: picoseconds by label, such as `matmul` or mesh axes, the longest first.
    step_ps: the length of the step.
    """

    resource: str
    does_ps: dict[str, int]
    step_ps: int

    @property
    def picoseconds(self) -> int:
        """Its part of the step; those of all limits sum to the step."""
        return sum(self.does_ps.values())

    @property
    def seconds(self) -> float:
        """Its part of the step in seconds."""
        return self.picoseconds * PICO

    @property
    def share(self) -> float:
        """Its fraction of the step."""
        return self.picoseconds / self.step_ps

    @property
    def what(self) -> str:
        """What it does, with the fraction of the step of each, in words.

        The largest three, and none but the first below `LEAST_SHOWN`.
        """
        first, *more = list(self.does_ps.items())[:LABELS_SHOWN]
        shown = [first, *(each for each in more if each[1] >= LEAST_SHOWN * self.step_ps)]
        return ", ".join(f"{label} {ps / self.step_ps:.1%}" for label, ps in shown)

    def __str__(self) -> str:
        verb = "bound" if self.resource.startswith("launches") else "bounds"
        return f"{self.resource} {verb} {self.share:.1%} of the step"


LABELS_SHOWN = 3
"""Labels that are printed with a limit."""

LEAST_SHOWN = 0.0005
"""The smallest fraction that prints as more than 0.0 %."""
