"""Labels by index: logits are gathered, and gradients scattered into, in f32 and in HBM.

A comparison with `one_hot` is fused with the softmax, which reads logits as their matmul writes
them. A gather needs its operand in memory, in f32, and so does a scatter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.graph import Pointwise, Tensor
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.lowering.operand_dtypes import conversion, tensor_dtype
from tpusim.partition import ComputeNode, Node
from tpusim.plan import Axes

FLAT_TILE = 1024
"""Elements of a tile of an array of one dimension."""

WIDE = "f32"
"""The dtype of logits that a gather reads and of gradients that a scatter adds to."""


def pick_logits(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Return the nodes with the gather of the labels' logits, and with the steps of its gradient.

    The head's matmul writes its logits in f32 too, for the gather alone. The gradient of the
    softmax is written in f32, copied to the layout of one dimension, in which the scatter runs in
    place, converted, and copied back (libtpu 0.0.42.1: 31 of 31 programs with labels by index on
    v4, v5e, v5p, v6e and 7x; `take_along_axis` gathers too, and its gradient is fused, 6 of 6).

    With one sequence on a device, whose dimension is dropped, a pass of its own casts the logits.
    Where those of a token fill whole tiles of one dimension, which are gathered without a copy, the
    gather then runs last, as nothing but the value of the loss needs it: the logits in f32 are held
    until then, and the gradient of the others is written over them (6 of 6 programs on v5e, v5p,
    v6e and 7x, but for the latter on 7x; of two sequences, or of other vocabularies, 9 of 9 gather
    at once).
    """
    result: list[Node] = []
    last: list[Node] = []
    over_logits: set[str] = set()
    for node in nodes:
        if not (isinstance(node, ComputeNode) and _picks(node)):
            result.append(_element_by_element(node) if node.name in over_logits else node)
        elif node.phase is Phase.BACKWARD:
            result.extend(_scattered(node, body))
        else:
            local = body.buffers[node.reads[0]].local
            alone = body.ask(_is_alone, local.dims[0], local.layout[0])
            gather = _gathered(node, result, body, apart=alone)
            late = alone and body.ask(_fills_tiles, local.dims[-1], local.layout[-1])
            (last if late else result).append(gather)
            if late and body.ask(_has_one_tiling):
                over_logits.add(f"{node.name}/d")
            result.append(node)
    return [*result, *last]


def _picks(node: ComputeNode) -> bool:
    return isinstance(node.op, Pointwise) and bool(node.op.picks)


def _is_alone(decisions: LoweringDecisions, dim: str, axes: Axes) -> bool:
    """Return True if a device has one element of a dimension."""
    return bool(decisions.sizes.extent(dim, axes) == 1)


def _fills_tiles(decisions: LoweringDecisions, dim: str, axes: Axes) -> bool:
    return bool(decisions.sizes.extent(dim, axes) % FLAT_TILE == 0)


def _has_one_tiling(decisions: LoweringDecisions) -> bool:
    """Return True if a ring reads tiles as a matmul writes them: of 8 rows, on 7x of 16."""
    return decisions.chip.generation != "7x"


def _element_by_element(node: Node) -> Node:
    """Return a gradient of logits that is written over them, as their statistics are known."""
    assert isinstance(node, ComputeNode)
    assert isinstance(node.op, Pointwise)
    return replace(node, op=replace(node.op, over=()))


def _gathered(loss: ComputeNode, before: list[Node], body: Body, *, apart: bool) -> ComputeNode:
    """Return the gather of a loss, whose operand what makes the logits writes too.

    apart: a cast of its own makes it.
    """
    assert isinstance(loss.op, Pointwise)
    logits, ids = loss.op.inputs[:2]
    source = loss.reads[0]
    if tensor_dtype(WIDE, body.numerics) != logits.dtype:
        place, maker = next((i, one) for i, one in enumerate(before) if source in one.writes)
        wide = f"{source} {WIDE}"
        body.buffers[wide] = replace(body.buffers[source], dtype=WIDE)
        if isinstance(maker, ComputeNode) and not apart:
            before[place] = replace(maker, writes=(*maker.writes, wide))
        else:
            cast = conversion(replace(logits, dtype=WIDE), logits.dtype, loss.phase)
            before.append(_step(loss, "cast", cast, source, wide))
        source = wide
    picked = Tensor(f"{logits.name} picked", ids.dims, dtype=WIDE)
    group = Pointwise(f"{loss.op.name}/pick", (ids,), (picked,), 0.0, keeps="", phase=loss.phase)
    key = f"{source} picked"
    body.buffers[key] = replace(body.buffers[loss.writes[0]], dtype=WIDE)
    return _step(loss, "pick", group, source, key)


def _scattered(node: ComputeNode, body: Body) -> Iterator[ComputeNode]:
    """Yield the steps of the gradient of logits that are picked by their index."""
    op, (key,) = node.op, node.writes
    assert isinstance(op, Pointwise)
    (gradient,) = op.outputs
    wide = replace(gradient, dtype=tensor_dtype(WIDE, body.numerics))
    flat = replace(wide, name=f"{gradient.name} flat")
    of_softmax, in_one_dim = f"{key} of softmax", f"{key} flat"
    summed, narrow = f"{key} scattered", f"{key} converted"
    for made in (of_softmax, in_one_dim, summed):
        body.buffers[made] = replace(body.buffers[key], dtype=wide.dtype)
    plain = replace(op, outputs=(wide,), picks="")
    yield replace(node, name=f"{node.name}/softmax", op=plain, writes=(of_softmax,))
    yield _step(node, "flatten", _copy(op, wide, flat), of_softmax, in_one_dim)
    added = replace(op, inputs=(flat,), outputs=(flat,), flops=0.0, over=(), keeps="")
    yield _step(node, "scatter", added, in_one_dim, summed)
    if wide.dtype != gradient.dtype:
        body.buffers[narrow] = body.buffers[key]
        cast = conversion(replace(flat, dtype=gradient.dtype), wide.dtype, node.phase)
        yield _step(node, "convert", cast, summed, narrow)
        flat, summed = replace(flat, dtype=gradient.dtype), narrow
    yield _step(node, "reshape", _copy(op, flat, gradient), summed, key)


def _copy(op: Pointwise, source: Tensor, made: Tensor) -> Pointwise:
    """Return a copy to another layout, which is not written over its operand."""
    return Pointwise(
        f"{op.name}/{made.name}", (source,), (made,), 0.0, over=made.dims[-1:], keeps="",
        alone=True, phase=op.phase,
    )  # fmt: skip


def _step(node: ComputeNode, name: str, group: Pointwise, source: str, made: str) -> ComputeNode:
    """Return a step on its own, divided over devices as `node` is."""
    named = replace(group, name=f"{node.op.name}/{name}")
    return replace(
        node, name=f"{node.name}/{name}", op=named, reads=(source,), writes=(made,), epilogue=(),
        parts=(),
    )  # fmt: skip
