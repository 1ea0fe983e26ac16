"""One palette for all figures: shades that keep their order in greyscale and in print."""

from collections.abc import Mapping

from tpusim.phase import Phase

INK = "#1f2933"
MUTED = "#7b8794"
GRID = "#e4e7eb"

PHASE_SHADES: Mapping[Phase, str] = {
    Phase.FORWARD: "#0b3c5d",
    Phase.RECOMPUTE: "#328cc1",
    Phase.BACKWARD: "#a3d0ea",
    Phase.OPTIMIZER: "#f5f0e1",
}
"""Dark to light in the order of the step."""
