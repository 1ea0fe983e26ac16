"""Which of the lowering's ways each collective of a body takes, and the order that this gives."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from tpusim.partition.apart import scattered_apart
from tpusim.partition.decisions import BodyNodes, Decisions
from tpusim.partition.heads import with_turned_heads
from tpusim.partition.layout import within
from tpusim.partition.lowering import Lowering
from tpusim.partition.merges import merged_gradients, small_all_reduces
from tpusim.partition.modes import planned
from tpusim.partition.order import gradients_after_loop, weight_gradients_last
from tpusim.partition.passes import Entry, merge_all_reduces, merge_gradients, regather
from tpusim.partition.prefetch import prefetch
from tpusim.partition.quantise import narrowed, with_passes
from tpusim.partition.relayout import with_relayouts
from tpusim.partition.template import Calc, Comm, Nest, Node
from tpusim.partition.travel import travelling, with_casts
from tpusim.partition.weave import kernel_rings, rings, scatters, woven


def entries(decisions: Decisions, nodes: Sequence[Node], looped: bool = False) -> list[Entry]:
    """The entries of a body, of a loop where `looped`, in the order in which they run."""
    plan, buffers, weights = decisions.plan, decisions.buffers, decisions.weights
    ideal = plan.lowering == "ideal"
    if looped and not ideal:
        nodes = weight_gradients_last(nodes, weights)
    nodes = travelling(narrowed(nodes, plan, weights), plan, weights, buffers)
    lows = _lowerings(decisions, nodes)
    again = [low.regather_after for low in lows if low.regather_after is not None]
    nodes = regather(nodes, min(again), buffers) if again else nodes
    woven_in = partial(scatters, BodyNodes(decisions, nodes, looped))
    body = BodyNodes(decisions, scattered_apart(nodes, woven_in, buffers), looped)
    found = merge_gradients(list(_chosen(body)), merged_gradients(body))
    found = merge_all_reduces(found, small_all_reduces(body))
    if not ideal:
        found = gradients_after_loop(found)
    found = prefetch(
        found,
        first_sync=all(low.first_sync for low in lows),
        kernels_carry=all(low.kernels_carry for low in lows),
    )
    if not ideal:
        found = with_relayouts(found, buffers, decisions.sizes)
        found = with_turned_heads(found, buffers)
    return with_casts(with_passes(found, buffers), buffers)


def _lowerings(decisions: Decisions, nodes: Iterable[Node]) -> list[Lowering]:
    """The lowerings of a body's collectives, of those within a slice where there are any."""
    axes = {node.axes for node in nodes if isinstance(node, Comm)}
    return [decisions.over(each)[1] for each in set(filter(within, axes)) or axes]


def _chosen(body: BodyNodes) -> Iterator[Entry]:
    """The nodes as they run: collectives in their mode, or woven into what uses them."""
    matmuls, kernels = rings(body), kernel_rings(body)
    taken = {comm.name for comm in matmuls.values()}
    taken |= {c.name for ring in kernels.values() for c in (*ring.gathers, *ring.scatters)}
    for node in body.nodes:
        match node:
            case Comm():
                if node.name not in taken:
                    yield planned(body, node, matmuls)
            case Calc() if node.name in kernels:
                yield kernels[node.name]
            case Calc():
                yield from woven(body, node, matmuls.get(node.name))
            case Nest():
                yield node
