"""The exchange of halos: the rows that windows read beyond a device's shard.

GSPMD writes a permute for each side of a halo and each neighbour that has rows of it; what two
readers ask for alike is sent once. The permutes are asynchronous, and the operation that reads the
rows joins them to the shard itself, without a copy of it in memory: 14 forward and backward passes
of one to three convolutions and pools over `space` (taps 1 to 7, strides 1 and 2, dilations up to
24, 4 to 16 shards) on v5e, and 5 of them on v4, v5p and v6e, libtpu 0.0.42.1. (The program's own
input, which comes in another layout, is the exception: it is joined in memory.)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tpusim.base.errors import PlanError
from tpusim.graph import Convolution
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.network import MAX_HALO_DISTANCE, Algorithm, at_distance
from tpusim.partition import (
    Buffer,
    CollectiveNode,
    ComputeNode,
    Edge,
    LocalShape,
    LoopNode,
    Node,
)
from tpusim.plan import Axes
from tpusim.program import CollectiveKind, Mode


def exchange_halos(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Return the nodes with a permute per side and neighbour of each halo.

    Sides without rows are dropped, and rows that were received before are read again. Halos that
    need the whole dimension become its all-gather. Raise PlanError for one that reaches further
    than `MAX_HALO_DISTANCE` neighbours.
    """
    exchange = _Exchange(body)
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, CollectiveNode) and node.payload.edge:
            made += exchange.of(node, node.payload.edge)
        else:
            made.append(_reading(node, exchange.received))
    return made


class _Exchange:
    """The rows received so far in a body.

    received: for each buffer of one side, the buffers in its place.
    """

    def __init__(self, body: Body) -> None:
        self.body = body
        self.received: dict[str, tuple[str, ...]] = {}
        self._known: dict[tuple[object, ...], str] = {}

    def of(self, node: CollectiveNode, edge: Edge) -> list[CollectiveNode]:
        """Return the collectives that bring one side of a halo."""
        shards = self.body.ask(_shards, node.axes)
        reads = _replaced(node.reads, self.received)
        if edge.halo.gathered(shards):
            wanted = [_gather(node)]
        else:
            _check_distance(node, edge, shards)
            wanted = _permutes(node, edge, shards)
        kept, sent = [], []
        for each in wanted:
            rows = each.payload.edge.rows(shards) if each.payload.edge else 0
            same = (reads, each.kind, each.axes, each.dim, _place(each.payload.edge), rows)
            if same not in self._known:
                self._known[same] = each.writes[0]
                sent.append(self._declared(replace(each, reads=reads)))
            kept.append(self._known[same])
        self.received[node.writes[0]] = tuple(kept)
        return sent

    def _declared(self, node: CollectiveNode) -> CollectiveNode:
        self.body.buffers[node.writes[0]] = Buffer(node.payload, node.dtype, "activations")
        return node


def _shards(decisions: LoweringDecisions, axes: Axes) -> int:
    return int(decisions.sizes.group(axes))


def _place(edge: Edge | None) -> tuple[bool, int] | None:
    return (edge.after, edge.distance) if edge else None


def _gather(node: CollectiveNode) -> CollectiveNode:
    local = node.payload
    split = {**local.split(), node.dim: ()}
    whole = LocalShape(local.dims, tuple(split[dim] for dim in local.dims), local.halos)
    key = f"{node.writes[0]} gathered"
    name = f"{CollectiveKind.ALL_GATHER}/{key}"
    return replace(node, name=name, kind=CollectiveKind.ALL_GATHER, payload=whole, writes=(key,))


def _permutes(node: CollectiveNode, edge: Edge, shards: int) -> list[CollectiveNode]:
    """Return a permute for each neighbour that has rows of one side."""
    made = []
    for distance, rows in enumerate(edge.halo.hops(shards), 1):
        if not rows[edge.after]:
            continue
        far = f" {distance} away" if distance > 1 else ""
        payload = replace(node.payload, edge=replace(edge, distance=distance))
        key, name = f"{node.writes[0]}{far}", f"{node.name}{far}"
        made.append(replace(node, name=name, payload=payload, writes=(key,)))
    return made


def _check_distance(node: CollectiveNode, edge: Edge, shards: int) -> None:
    reached = len(edge.halo.hops(shards))
    if reached > MAX_HALO_DISTANCE:
        rows, own = edge.halo.rows(shards)[edge.after], edge.halo.shard(shards)
        raise PlanError(
            f"{node.tensor}: a window needs {rows} of {node.dim} beyond a shard of {own}, which "
            f"reaches over {reached} neighbours; at most {MAX_HALO_DISTANCE} are modelled: shard "
            f"{node.dim} over fewer than {shards} devices"
        )


def _replaced(keys: Sequence[str], made: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for key in keys for each in made.get(key, (key,))))


def _reading(node: Node, made: Mapping[str, tuple[str, ...]]) -> Node:
    """Return a node that reads the rows that were received."""
    if isinstance(node, LoopNode):
        outside = _replaced(node.outside, made)
        body = tuple(_reading(each, made) for each in node.body) if made else node.body
        if outside == node.outside:
            return node
        return replace(node, outside=outside, reads=_replaced(node.reads, made), body=body)
    reads = _replaced(node.reads, made)
    if reads == node.reads:
        return node
    if isinstance(node, ComputeNode):
        parts = tuple(replace(part, reads=_replaced(part.reads, made)) for part in node.parts)
        return replace(node, reads=reads, parts=parts)
    return replace(node, reads=reads)


def kernel_gradients_first(nodes: Sequence[Node]) -> list[Node]:
    """Move the gradient of a kernel to between the halo of its input's gradient and that.

    Where that has no halo, but the kernel's has, or reads mirrored operands, those are moved before
    it. What moves takes along what it depends on, such as a gather of the gradient.
    """
    made = list(nodes)
    for node in nodes:
        if not _makes(node, kernel=False):
            continue
        assert isinstance(node, ComputeNode)
        place = made.index(node)
        later = (at for at in range(place + 1, len(made)) if _same_convolution(made[at], node))
        at = next(later, None)
        if at is None:
            continue
        between = made[place:at]
        moved = _needed(between, made[at].reads)
        if place and _is_permute(made[place - 1]):
            moved.append(made[at])
        else:
            rows = [each for each in moved if _is_permute(each)]
            moved = _needed(between, [key for each in rows for key in each.writes])
        stay = [each for each in made[place : at + 1] if each not in moved]
        made[place : at + 1] = [*moved, *stay]
    return made


def _needed(nodes: Sequence[Node], keys: Iterable[str]) -> list[Node]:
    """Return the nodes that the buffers `keys` depend on, in order."""
    wanted = set(keys)
    found = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.writes):
            found.append(node)
            wanted.update(node.reads)
    return found[::-1]


def _makes(node: Node, kernel: bool) -> bool:
    op = node.op if isinstance(node, ComputeNode) else None
    return isinstance(op, Convolution) and bool(op.given) and op.makes_kernel is kernel


def _same_convolution(node: Node, other: ComputeNode) -> bool:
    """Return True if a node makes the gradient of the kernel that `other` reads."""
    if not (isinstance(node, ComputeNode) and _makes(node, kernel=True)):
        return False
    assert isinstance(node.op, Convolution)
    assert isinstance(other.op, Convolution)
    return node.op.kernel == other.op.kernel and node.op.given[0] == other.op.given[0]


def _is_permute(node: Node) -> bool:
    return isinstance(node, CollectiveNode) and node.kind is CollectiveKind.PERMUTE


def planned_permute(node: CollectiveNode) -> PlannedCollective:
    """Return the permute of one side of a halo, or of mirrored shards."""
    edge = node.payload.edge
    algorithm = at_distance(Algorithm.STEP, edge.distance) if edge else Algorithm.MIRROR
    return PlannedCollective((node,), Mode.ASYNC, algorithm)


def both_ways(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with the two sides of a halo in one: they use opposite links.

    Where the sides differ, each counts with half of the sum of both.
    """
    made: list[Entry] = []
    for entry in entries:
        place = _other_side(made, entry)
        if place is None:
            made.append(entry)
        else:
            made[place] = _joined(made[place], entry)
    return made


def _joined(one: Entry, other: Entry) -> PlannedCollective:
    assert isinstance(one, PlannedCollective)
    assert isinstance(other, PlannedCollective)
    collectives = (*one.collectives, *other.collectives)
    edge = collectives[0].payload.edge
    assert edge is not None
    return replace(
        one, collectives=collectives, algorithm=at_distance(Algorithm.HALO, edge.distance)
    )


def _other_side(made: Sequence[Entry], entry: Entry) -> int | None:
    """Return the place of the other side's permute from the same distance, if one has none yet.

    It is among the permutes at the end of `made`.
    """
    for place in range(len(made) - 1, -1, -1):
        if not (_one_side(entry) and _one_side(made[place])):
            return None
        if _sides(made[place])[1:] == _sides(entry)[1:] and _sides(made[place]) != _sides(entry):
            return place
    return None


def _one_side(entry: Entry) -> bool:
    return isinstance(entry, PlannedCollective) and bool(entry.collectives[0].payload.edge)


def _sides(entry: Entry) -> tuple[object, ...]:
    """Return the side of a permute, and what the other side's has alike."""
    assert isinstance(entry, PlannedCollective)
    (first, *others) = entry.collectives
    edge = first.payload.edge
    assert edge is not None
    side = "both" if others else edge.after
    return side, len(others), edge.distance, first.dim, first.axes, first.reads
