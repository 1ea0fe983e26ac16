"""The order of a layer's backward pass: products that only the optimizer waits for come last.

In compiled steps the gradients of weights, the MLP's too, are multiplied behind the backward pass
of attention, so that what they read is held until then (12 plain models on v3 to 7x, and models
with MaxText's flags on v5p and v6e; libtpu 0.0.42.1). Only where activations are gathered for them
do they run at once, which gives the copies back (an encoder with its embedding dimension sharded
over `tensor`, v4 2x2x4).
"""

from collections.abc import Collection, Sequence
from itertools import groupby
from re import search

from tpusim.graph import Attention, Convolution, Einsum
from tpusim.partition.template import Calc, Comm, Node, Purpose
from tpusim.phase import Phase
from tpusim.program import CollectiveKind


def weight_gradients_last(nodes: Sequence[Node], weights: Collection[str]) -> list[Node]:
    """The nodes of a loop's body, each layer's products for `weights` behind its other nodes.

    What reads their results follows them. Layers without attention stay as they are, and so does a
    body that gathers activations for these products.
    """
    gathered = {key for node in nodes if _gathers_activation(node) for key in node.writes}
    products = [node for node in nodes if _multiplies_for(node, weights)]
    if not all(gathered.isdisjoint(node.reads) for node in products):
        return list(nodes)
    result: list[Node] = []
    for layer in (list(group) for _, group in groupby(nodes, _layer)):
        if not any(_attends(node, weights) for node in layer):
            result += layer
            continue
        late: list[Node] = []
        made: set[str] = set()
        for node in layer:
            if node in products or not made.isdisjoint(node.reads):
                late.append(node)
                made.update(node.writes)
            else:
                result.append(node)
        result += late
    return result


def _layer(node: Node) -> str:
    """Which layer of a pattern a node belongs to; empty where a body is one layer."""
    match node:
        case Calc():
            named = node.op.name
        case Comm():
            named = node.tensor
        case _:
            named = ""
    found = search(r"\w+/\d+(?=/)", named)
    return found[0] if found else ""


def _multiplies_for(node: Node, weights: Collection[str]) -> bool:
    if not (isinstance(node, Calc) and isinstance(node.op, Einsum | Convolution)):
        return False
    return node.phase is Phase.BACKWARD and node.op.outputs[0].primal in weights


def _attends(node: Node, weights: Collection[str]) -> bool:
    """Whether it is a kernel of attention, or multiplies two activations, as attention does."""
    if not isinstance(node, Calc):
        return False
    if not isinstance(node.op, Einsum):
        return isinstance(node.op, Attention)
    tensors = (*node.op.inputs, *node.op.outputs)
    return all((tensor.primal or tensor.name) not in weights for tensor in tensors)


def _gathers_activation(node: Node) -> bool:
    if not isinstance(node, Comm):
        return False
    return node.kind is CollectiveKind.ALL_GATHER and node.purpose is Purpose.ACTIVATION
