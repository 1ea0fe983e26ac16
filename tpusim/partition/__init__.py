"""From a graph and a plan to the program of one device: a small GSPMD.

`structure` decides what is sharded and communicated, from the rules alone; `lower` puts in the
sizes, and how the compiler carries it out on the torus.
"""

from tpusim.partition.copies import kernel_copies
from tpusim.partition.lower import lower
from tpusim.partition.plan import Plan
from tpusim.partition.sizes import Sizes
from tpusim.partition.structure import structure
from tpusim.partition.template import Template
from tpusim.partition.tiles import loss_parts

__all__ = ["Plan", "Sizes", "Template", "kernel_copies", "loss_parts", "lower", "structure"]
