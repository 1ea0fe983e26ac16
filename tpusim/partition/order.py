"""The order of the backward pass: products that only the optimizer waits for come last.

In compiled steps the gradients of weights, the MLP's too, are multiplied behind the backward pass
of attention, so that what they read is held until then (12 plain models on v3 to 7x, and models
with MaxText's flags on v5p and v6e; libtpu 0.0.42.1). Only where activations are gathered for them
do they run at once, which gives the copies back (an encoder with its embedding dimension sharded
over `tensor`, v4 2x2x4).
"""

from collections.abc import Collection, Sequence
from itertools import groupby
from re import search
from typing import TypeVar

from tpusim.graph import Attention, Convolution, Einsum
from tpusim.partition.passes import Entry, Planned, Ring
from tpusim.partition.template import Calc, Comm, Nest, Node, Purpose
from tpusim.phase import Phase
from tpusim.program import CollectiveKind

_Step = TypeVar("_Step", Node, Entry)


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
        kept, late = _with_readers(layer, {i for i, node in enumerate(layer) if node in products})
        result += [*kept, *late]
    return result


def gradients_after_loop(entries: Sequence[Entry]) -> list[Entry]:
    """Multiply for gradients that only the optimizer waits for when the last loop is done.

    Compiled programs do so with the head's in 12 of 19 looked at (libtpu 0.0.42.1), and so hold the
    gradient of the logits until then. What reads such a gradient follows it.
    """
    last = max((i for i, entry in enumerate(entries) if isinstance(entry, Nest)), default=0)
    unread = _unread_before(entries[: last + 1])
    products = {place for place in unread if isinstance(entries[place], Calc | Ring)}
    kept, moved = _with_readers(entries[:last], products)
    return [*kept, *entries[last : last + 1], *moved, *entries[last + 1 :]]


def _unread_before(entries: Sequence[Entry]) -> set[int]:
    """The places of the backward pass whose results neither the last entry nor its sources read."""
    needed: set[str] = set()
    unread: set[int] = set()
    for place, entry in reversed(list(enumerate(entries))):
        waits = place < len(entries) - 1 and not isinstance(entry, Nest)
        if waits and _phase(entry) is Phase.BACKWARD and needed.isdisjoint(entry.writes):
            unread.add(place)
        else:
            needed.update(entry.reads)
    return unread


def _phase(entry: Entry) -> Phase:
    """The part of the step that an entry belongs to."""
    match entry:
        case Planned():
            return entry.comms[0].phase
        case Ring():
            return entry.calc.phase
        case Nest():
            return entry.scan.phase
    return entry.phase


def _with_readers(steps: Sequence[_Step], chosen: Collection[int]) -> tuple[list[_Step], ...]:
    """The steps that stay, and those at the `chosen` places with all that reads their results."""
    kept: list[_Step] = []
    moved: list[_Step] = []
    made: set[str] = set()
    for place, step in enumerate(steps):
        if place in chosen or not made.isdisjoint(step.reads):
            moved.append(step)
            made.update(step.writes)
        else:
            kept.append(step)
    return kept, moved


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
