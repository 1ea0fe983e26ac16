"""A plan's twin: the same step through the real compiler, and the two side by side."""

from tpusim.twin.compare import compare
from tpusim.twin.comparison import Comparison

__all__ = ["Comparison", "compare"]
