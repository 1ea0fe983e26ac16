"""One palette for all figures: shades that keep their order in greyscale and in print."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tpusim.phase import Phase
from tpusim.result import COMPUTE_LABELS

INK = "#1f2933"
MUTED = "#7b8794"
GRID = "#e4e7eb"
ALARM = "#b3261e"
BEST = "#f2a541"
"""The frame of the best of many."""

MFU_SHADES = ("#e3f0f8", "#a3d0ea", "#328cc1", "#0b3c5d")
"""Pale to dark for a low to a high MFU."""

PHASE_SHADES: Mapping[Phase, str] = {
    Phase.FORWARD: "#0b3c5d",
    Phase.RECOMPUTE: "#328cc1",
    Phase.BACKWARD: "#a3d0ea",
    Phase.OPTIMIZER: "#f5f0e1",
}
"""Dark to light in the order of the step."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a kind of work is filled: colour for the screen, hatching for print without colour."""

    face: str
    hatch: str = ""
    text: str = INK


COMPUTE_STYLES: Mapping[str, Style] = {
    "matmul": Style("#0b3c5d", text="white"),
    "attention": Style("#328cc1", text="white"),
    "convolution": Style("#5f8fb0", "||", text="white"),
    "vector": Style("#cfe6f4"),
}
TRANSFER_STYLES = (
    Style("#f2a541", "////"),
    Style("#e07b53", "\\\\\\\\"),
    Style("#f7dba7", "----"),
    Style("#c9b458", "++++"),
)


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """A style for each label of tasks: kinds of compute in blue, mesh axes in amber and hatched."""
    ordered = sorted(set(labels), key=_rank)
    moving = [label for label in ordered if label not in COMPUTE_STYLES]
    hatched = {label: TRANSFER_STYLES[at % len(TRANSFER_STYLES)] for at, label in enumerate(moving)}
    return {label: hatched.get(label) or COMPUTE_STYLES[label] for label in ordered}


def _rank(label: str) -> tuple[int, str]:
    known = label in COMPUTE_LABELS
    return (COMPUTE_LABELS.index(label) if known else len(COMPUTE_LABELS), label)
