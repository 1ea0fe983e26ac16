"""One palette for all figures: shades that keep their order in greyscale and in print."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tpusim.costs.bind import SKEW
from tpusim.costs.host import DISPATCH, INPUT
from tpusim.phase import Phase
from tpusim.program import Pass, TransferKind
from tpusim.result import BUBBLE, COMPUTE_LABELS

INK = "#1f2933"
MUTED = "#7b8794"
GRID = "#e4e7eb"
ALARM = "#b3261e"
BEST = "#f2a541"
"""The frame of the best of many."""

HEAT_SHADES = ("#e3f0f8", "#a3d0ea", "#328cc1", "#0b3c5d")
"""Pale to dark for low to high: an MFU, the use of a link."""

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
SKEW_STYLE = Style("#c3c9d0", "....")
"""Waiting for other slices: no work and no transfer."""

HOST_STYLES: Mapping[str, Style] = {
    DISPATCH: Style("#e4e7eb", "oo"),
    INPUT: Style("#aab4be", "xx"),
}
"""Waiting for the host to start the step, and to make and send its batch."""

ON_CHIP_STYLES: Mapping[str, Style] = {
    str(TransferKind.DMA): Style("#b9cfae", "//"),
    str(TransferKind.SPARSECORE): Style("#8fae8b", "\\\\"),
}
"""Copies on the chip: to and from VMEM and CMEM, and those of the SparseCores."""

BUBBLE_STYLE = Style("white")
"""Waiting for other stages: nothing happens."""

PASS_STYLES: Mapping[Pass, Style] = {
    Pass.FORWARD: Style("#0b3c5d", text="white"),
    Pass.BACKWARD: Style("#a3d0ea"),
    Pass.WEIGHTS: Style("#328cc1", text="white"),
}
"""The slots of a pipeline; a backward pass as light as its phase, and its second half between."""

UNREAD_STYLE = Style("#e4e7eb", "xxx")
"""Computing what nobody reads."""

TRANSFER_STYLES = (
    Style("#f2a541", "////"),
    Style("#e07b53", "\\\\\\\\"),
    Style("#f7dba7", "----"),
    Style("#c9b458", "++++"),
)


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """A style for each label of tasks.

    Kinds of compute are blue, mesh axes amber and hatched, waits for other slices and the host
    grey, and for other stages white; copies on the chip are green.
    """
    ordered = sorted(set(labels), key=_rank)
    grey = {SKEW: SKEW_STYLE, **HOST_STYLES}
    fixed = {**COMPUTE_STYLES, **grey, BUBBLE: BUBBLE_STYLE, **ON_CHIP_STYLES}
    moving = [label for label in ordered if label not in fixed]
    hatched = {label: TRANSFER_STYLES[at % len(TRANSFER_STYLES)] for at, label in enumerate(moving)}
    return {label: hatched.get(label) or fixed[label] for label in ordered}


def _rank(label: str) -> tuple[int, str]:
    known = label in COMPUTE_LABELS
    last = len(COMPUTE_LABELS) + (label in (SKEW, *HOST_STYLES, BUBBLE, *ON_CHIP_STYLES))
    return (COMPUTE_LABELS.index(label) if known else last, label)
