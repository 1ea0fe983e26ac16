"""The palette and sizes of all figures: shades that keep their order in greyscale and in print."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from zlib import crc32

from tpusim.base.phase import Phase
from tpusim.costs import DISPATCH, INPUT, SKEW
from tpusim.hardware import DCN_PREFIX
from tpusim.program import PassKind, TransferKind
from tpusim.results import BUBBLE_LABEL, COMPUTE_LABELS

SMALL = 8
EDGE = 0.4
"""Points: the font size of labels, and the width of the lines around bars."""

DIGIT = 0.65
"""The width of a digit and its margin, relative to the font size."""

INK = "#1f2933"
MUTED = "#7b8794"
GRID_LINE = "#e4e7eb"
ALARM = "#b3261e"
BEST_FRAME = "#f2a541"
"""The colour of the frame around the best of many."""

HEAT_SHADES = ("#e3f0f8", "#a3d0ea", "#328cc1", "#0b3c5d")
"""Pale to dark for low to high, of an MFU or the utilisation of a link."""

PHASE_SHADES: Mapping[Phase, str] = {
    Phase.FORWARD: "#0b3c5d",
    Phase.RECOMPUTE: "#328cc1",
    Phase.BACKWARD: "#a3d0ea",
    Phase.OPTIMIZER: "#f5f0e1",
}
"""Dark to light in the order of the step."""


Style: TypeAlias = dict[str, Any]
"""Keyword arguments of a matplotlib artist."""


@dataclass(frozen=True, slots=True)
class FillStyle:
    """The fill of a kind of work: colour for the screen, hatching for print without colour."""

    face: str
    hatch: str = ""
    text: str = INK

    @property
    def arguments(self) -> Style:
        """The arguments of a patch in this style."""
        return {"facecolor": self.face, "hatch": self.hatch, "edgecolor": INK, "linewidth": EDGE}


COMPUTE_STYLES: Mapping[str, FillStyle] = {
    "matmul": FillStyle("#0b3c5d", text="white"),
    "attention": FillStyle("#328cc1", text="white"),
    "convolution": FillStyle("#5f8fb0", "||", text="white"),
    "vector": FillStyle("#cfe6f4"),
}
SKEW_STYLE = FillStyle("#c3c9d0", "..")
"""Waiting for other slices: no work and no transfer."""

HOST_STYLES: Mapping[str, FillStyle] = {
    DISPATCH: FillStyle("#e4e7eb", "oo"),
    INPUT: FillStyle("#aab4be", "xx"),
}
"""Waiting for the host to start the step, and to prepare and send its batch."""

ON_CHIP_STYLES: Mapping[str, FillStyle] = {
    str(TransferKind.DMA): FillStyle("#b9cfae", "//"),
    str(TransferKind.SPARSECORE): FillStyle("#8fae8b", "\\\\"),
}
"""Copies on the chip: to and from VMEM and CMEM, and those of the SparseCores."""

BUBBLE_STYLE = FillStyle("#ffffff")
"""Waiting for other stages: nothing happens."""

PASS_STYLES: Mapping[PassKind, FillStyle] = {
    PassKind.FORWARD: FillStyle("#0b3c5d", text="white"),
    PassKind.BACKWARD: FillStyle("#a3d0ea"),
    PassKind.WEIGHTS: FillStyle("#328cc1", text="white"),
}
"""The slots of a pipeline; backward passes have the shade of their phase, weight gradients one
between."""

UNREAD_STYLE = FillStyle("#e4e7eb", "xxx")
"""Computing results that are never read."""

AXIS_STYLES: Mapping[str, FillStyle] = {
    "fsdp": FillStyle("#f2a541", "////"),
    "tensor": FillStyle("#e07b53", "\\\\\\\\"),
    "data": FillStyle("#f7dba7", "----"),
    "context": FillStyle("#c9b458", "++++"),
    "expert": FillStyle("#d9a0b4", "xxxx"),
    "stage": FillStyle("#b88a5e", "||||"),
}
"""The styles of the axes that most meshes have."""

OTHER_AXES = (
    FillStyle("#e6c229", "**"),
    FillStyle("#d17a86", "//--"),
    FillStyle("#c98f3d", "\\\\||"),
    FillStyle("#efb89a", "OO"),
)
"""The styles of axes with other names: which one follows from the name alone."""

DCN_HATCH = ".."
"""Added to the hatching of an axis that runs across slices."""


def axis_style(label: str) -> FillStyle:
    """Return the style of a mesh axis, or of several joined by `+`, which its name alone decides.

    So two reports of different meshes can be compared. An axis `dcn_data` has the colour of `data`
    and dots in its hatching; of several axes the first gives the colour, the last the hatching.
    """
    first, *rest = map(_one_axis, label.split("+"))
    return replace(first, hatch=rest[-1].hatch + first.hatch[:1]) if rest else first


def _one_axis(axis: str) -> FillStyle:
    bare = axis.removeprefix(DCN_PREFIX)
    found = AXIS_STYLES.get(bare) or OTHER_AXES[crc32(bare.encode()) % len(OTHER_AXES)]
    return replace(found, hatch=found.hatch[:2] + DCN_HATCH) if bare != axis else found


def styles(labels: Iterable[str]) -> dict[str, FillStyle]:
    """Return a style for each label of tasks.

    Compute is blue, mesh axes are amber and hatched (`axis_style`), waits for other slices and the
    host grey, and for other stages white; copies on the chip are green.
    """
    grey = {SKEW: SKEW_STYLE, **HOST_STYLES}
    fixed = {**COMPUTE_STYLES, **grey, BUBBLE_LABEL: BUBBLE_STYLE, **ON_CHIP_STYLES}
    ordered = sorted(set(labels), key=_rank)
    return {label: fixed.get(label) or axis_style(label) for label in ordered}


def _rank(label: str) -> tuple[int, str]:
    known = label in COMPUTE_LABELS
    last = len(COMPUTE_LABELS) + (label in (SKEW, *HOST_STYLES, BUBBLE_LABEL, *ON_CHIP_STYLES))
    return (COMPUTE_LABELS.index(label) if known else last, label)
