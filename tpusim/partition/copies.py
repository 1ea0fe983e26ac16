"""How often K/V heads are repeated, so that all axes of a kernel's heads can share them."""

from math import prod

from tpusim.graph import NARROW, Graph
from tpusim.partition.plan import Plan
from tpusim.partition.rules import resolve


def kernel_copies(plan: Plan, graph: Graph) -> int:
    """To how many the K/V heads of `graph`, a forward pass, are repeated; 0 where they are not.

    To as many as there are devices that share the heads of a kernel, where tokens are exchanged for
    heads and each device has several K/V heads before, but too few for all. A single one is
    gathered: exchanging copies of it moves no less.
    """
    rules = resolve(plan, graph)
    table, count = dict(rules.table), graph.sizes[NARROW]
    inside = table.get(f"kernel_{NARROW}", ())
    if not rules.exchanged or set(rules.exchanged) <= set(inside):
        return 0
    copies = prod(plan.active_axes[axis] for axis in table.get("kernel_heads", ()))
    each = count // prod(plan.active_axes[axis] for axis in table[f"act_{NARROW}"])
    return copies if each > 1 and copies % count == 0 else 0
