"""Products of which only the groups' own iterations run.

The compiler writes the weight gradient of a ragged dot as a product of all rows for every group,
with a mask, and skips the iterations in which the mask is empty (libtpu's pass
`masked-fusion-iteration-skipper`, whose note is the `iteration_skipper_mode` of the fusion).
"""

import re
from dataclasses import replace

from tpusim.xla.inside import Tally
from tpusim.xla.module import Instruction

_SKIPPED = re.compile(
    r'"iteration_skipper_mode":"ITERATION_SKIPPER_MODE_(?:\w+_INDICES|GROUP_\w+)"'
)
EVEN = "grouped matmul: groups taken as even"


def masked(instruction: Instruction, tally: Tally) -> int:
    """How many groups share the rows of a fusion's products, which are changed to that; else 1."""
    if not tally.products or not _SKIPPED.search(instruction.attributes):
        return 1
    groups = min(product.batch for product in tally.products)
    if groups > 1:
        tally.products = [replace(product, ragged=True) for product in tally.products]
        tally.vector /= groups
    return max(groups, 1)
