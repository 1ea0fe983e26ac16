"""Names that a plan saves although nothing reads them."""

from tpusim.graph import Graph, Scan
from tpusim.plan import Plan


def unread_names(graph: Graph, plan: Plan) -> tuple[str, ...]:
    """Return names of `save` and `offload` that no layer saves, as no backward pass reads them."""
    saved = {t.short for op in graph.ops if isinstance(op, Scan) for t in op.saves}
    return tuple(name for name in (*plan.remat.save, *plan.remat.offload) if name not in saved)
