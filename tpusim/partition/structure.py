"""The first half of partitioning: a graph and its rules become a structure, once for all sizes."""

from dataclasses import replace
from functools import lru_cache

from tpusim.graph import Graph
from tpusim.partition.emit import emit
from tpusim.partition.layout import Layout
from tpusim.partition.plan import Plan
from tpusim.partition.propagate import layouts
from tpusim.partition.rules import resolve
from tpusim.partition.template import Template


def structure(graph: Graph, plan: Plan) -> Template:
    """The structure of `graph`'s training step under `plan`.

    It is the same for all plans whose rules give the same layouts: only which axes are larger than
    one matters, and which dimensions are too small for theirs. Raises PlanError for a plan that
    the graph does not admit.
    """
    rules = resolve(plan, graph)
    found = tuple(sorted(layouts(graph, plan, rules).items()))
    return replace(_emitted(graph, found), axes=tuple(plan.active_axes), dropped=rules.dropped)


@lru_cache(maxsize=64)
def _emitted(graph: Graph, found: tuple[tuple[str, Layout], ...]) -> Template:
    return emit(graph, dict(found))
