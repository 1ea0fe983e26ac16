"""The first half of partitioning: a graph and its rules become a structure, once for all sizes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tpusim.graph import Graph, Part
from tpusim.partition.emit import emit
from tpusim.partition.layout import Layout
from tpusim.partition.plan import Plan
from tpusim.partition.propagate import layouts
from tpusim.partition.rules import resolve
from tpusim.partition.template import Nest, Node, Template


def structure(graph: Graph, plan: Plan) -> Template:
    """The structure of `graph`'s training step under `plan`.

    It is the same for all plans whose rules give the same layouts: only which axes are larger than
    one matters, and which dimensions are too small for theirs. Raises PlanError for a plan that
    the graph does not admit.
    """
    rules = resolve(plan, graph)
    found = tuple(sorted(layouts(graph, plan, rules).items()))
    return replace(_emitted(graph, found), axes=tuple(plan.active_axes), dropped=rules.dropped)


def part_structures(graph: Graph, plan: Plan, parts: Sequence[Part]) -> list[Template]:
    """The structure of each of the parts of the model whose training step is `graph`.

    Their tensors lie as the whole model's do. Raises PlanError as `structure` does.
    """
    rules = resolve(plan, graph)
    whole = layouts(graph, plan, rules)
    made: dict[int, Template] = {}
    for part in {id(part): part for part in parts}.values():
        own = {name: whole[like] for name, like in part.origin if like in whole}
        found = tuple(sorted((whole | own).items()))
        template = _emitted(part.graph, found, part.passes)
        axes = tuple(plan.active_axes)
        made[id(part)] = replace(template, axes=axes, dropped=rules.dropped)
    return [made[id(part)] for part in parts]


@lru_cache(maxsize=64)
def _emitted(
    graph: Graph, found: tuple[tuple[str, Layout], ...], passes: tuple[int, ...] = ()
) -> Template:
    template = emit(graph, dict(found), passes)
    nodes = (
        _shared(node) if passes and isinstance(node, Nest) else node for node in template.nodes
    )
    return replace(template, nodes=tuple(nodes))


def _shared(nest: Nest) -> Nest:
    """A loop whose body is one object in all parts of a model that have the same layers."""
    carries = tuple((before, before, after, after) for _, before, after, _ in nest.scan.carries)
    scan = replace(nest.scan, trips=1, carries=carries)
    return replace(nest, body=_body_of(replace(nest, scan=scan, reads=(), writes=())))


@lru_cache(maxsize=256)
def _body_of(nest: Nest) -> tuple[Node, ...]:
    return nest.body
