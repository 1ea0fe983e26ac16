"""From a graph and a plan to the program of one device: a small GSPMD.

`structure` decides what is sharded and communicated, from the rules alone; `lower` puts in the
sizes, and how the compiler carries it out on the torus.
"""

from tpusim.partition.circular import Pieces, check_circular, circular_program
from tpusim.partition.copies import kernel_copies
from tpusim.partition.keys.pipeline import CIRCULAR
from tpusim.partition.lower import lower
from tpusim.partition.pipeline import schedule_of, stage_programs
from tpusim.partition.plan import Plan, check_together
from tpusim.partition.sizes import Sizes
from tpusim.partition.stages import edge_plan, part_bounds, stage_plan
from tpusim.partition.structure import part_structures, structure
from tpusim.partition.template import Template
from tpusim.partition.tiles import loss_parts

__all__ = [
    "CIRCULAR",
    "Pieces",
    "Plan",
    "Sizes",
    "Template",
    "check_circular",
    "check_together",
    "circular_program",
    "edge_plan",
    "kernel_copies",
    "loss_parts",
    "lower",
    "part_bounds",
    "part_structures",
    "schedule_of",
    "stage_plan",
    "stage_programs",
    "structure",
]
