"""Least seconds of a body whose order is known: its core in order, its transfers beside it.

Operations start when the core is free and their operands are there, transfers when theirs are; all
take at least their seconds alone. Each of these only adds and takes the later of two, so with less
of any of them the body takes no longer: lower bounds of the seconds give one of the body.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpusim.bounds.surroundings import Transfers
from tpusim.engine.lane import MAX_OPEN_TRANSFERS
from tpusim.graph import Convolution, Einsum
from tpusim.partition import CollectiveNode, ComputeNode, Node, Purpose, is_across
from tpusim.plan import Plan
from tpusim.program import CollectiveKind, Number, largest, smallest


@dataclass(frozen=True, slots=True)
class OrderedSeconds:
    """Least seconds of a body from its start.

    core: until the core is done.
    drained: until its transfers are, too.
    """

    core: Number = 0.0
    drained: Number = 0.0


def is_ordered(nodes: Sequence[Node], plan: Plan) -> bool:
    """Return True if nothing but the order of gradients may change in the body of a loop.

    Other passes add, drop or move operations of convolutions, of quantised and grouped matmuls, of
    scattered activations, of copies on the host and of what crosses slices.
    """
    if plan.remat.offload or plan.dtypes.quantised or plan.active_schedule:
        return False
    return plan.compiler.lowering != "ideal" and all(map(_is_plain, nodes))


def _is_plain(node: Node) -> bool:
    if isinstance(node, ComputeNode):
        grouped = isinstance(node.op, Einsum) and node.op.ragged
        return not grouped and not isinstance(node.op, Convolution)
    if not isinstance(node, CollectiveNode) or is_across(node.axes):
        return False
    scattered = node.kind is CollectiveKind.REDUCE_SCATTER and node.purpose is not Purpose.GRADIENT
    return node.kind is not CollectiveKind.PERMUTE and not scattered


def ordered_seconds(
    nodes: Sequence[Node],
    seconds: Mapping[str, Number],
    found: Mapping[str, Transfers],
) -> OrderedSeconds:
    """Return the seconds of the body of a loop, all of whose transfers run beside the core.

    seconds: of its operations.
    found: its transfers.

    Matmuls for gradients of weights that may come last are where the graph has them: the earlier
    what waits for nothing runs, the sooner the rest is done. Left out is what follows a reduction
    of a gradient.
    """
    gathered = _gathered_at_once(nodes, found)
    ready: dict[str, Number] = {}
    late: set[str] = set()
    core: Number = 0.0
    drained: Number = 0.0
    for node in nodes:
        if not late.isdisjoint(node.reads):
            late.update(node.writes)
            continue
        start: Number = 0.0
        for key in node.reads:
            start = largest(start, ready.get(key, 0.0))
        if isinstance(node, ComputeNode):
            done = core = largest(core, start) + seconds[node.name]
        elif isinstance(node, CollectiveNode) and node.purpose is Purpose.GRADIENT:
            late.update(node.writes)
            drained = largest(drained, start + found[node.name].drained)
            continue
        elif node.name in gathered:
            done = gathered[node.name]
        else:
            own = found[node.name]
            waits = np.asarray(own.core) > 0
            core = np.where(waits, largest(core, start) + own.core, core)
            done = np.where(waits, core, start + own.alone)
        ready |= dict.fromkeys(node.writes, done)
    for axes in {node.axes for node in nodes if isinstance(node, CollectiveNode)}:
        alike = [found[each.name] for each in nodes if getattr(each, "axes", None) == axes]
        drained = largest(drained, sum(each.at_once + each.drained_links for each in alike))
    return OrderedSeconds(core, largest(core, drained))


def _gathered_at_once(nodes: Sequence[Node], found: Mapping[str, Transfers]) -> dict[str, Number]:
    """Return when gathers of weights that start together with the body are done.

    Those over the same axes share their links evenly. When one is done, each of the others has
    moved as many bytes, or all of its own.
    """
    made = {key for node in nodes for key in node.writes}
    gathers = [
        node
        for node in nodes
        if isinstance(node, CollectiveNode)
        and node.purpose is Purpose.WEIGHT
        and node.kind is CollectiveKind.ALL_GATHER
        and made.isdisjoint(node.reads)
    ]
    done: dict[str, Number] = {}
    for node in gathers:
        alike = [each for each in gathers if each.axes == node.axes]
        own = found[node.name]
        shared: Number = 0.0
        if len(alike) <= MAX_OPEN_TRANSFERS:
            for each in alike:
                shared = shared + smallest(found[each.name].at_once, own.at_once)
        done[node.name] = largest(own.alone, own.fixed + shared)
    return done
