"""Copies of the stack of the layers' inputs, which backward loops that cross slices read.

Where a device's part of a sequence is no shorter than the embedding dimension, which no axis
shards, the layers' inputs have their positions in the lanes, and so has their stack. The first
layer of the backward pass, which stands before its loop, reads the stack as it is, the loop a copy
with the embedding dimension in the lanes (12 of 13 programs on v4, v5e, v5p and v6e, and none of 36
others; libtpu 0.0.42.1).
"""

from collections.abc import Sequence

from tpusim.graph import LAYER_IN, is_sequence
from tpusim.lowering.decisions import BodyChoices
from tpusim.lowering.offload import NO_LOOP
from tpusim.lowering.op_work import Buffers, buffer_bytes
from tpusim.partition import LoopNode, Sizes, is_across
from tpusim.program import Alloc, Collective, Compute, Number, Op, VectorWork


def copied_stacks(
    loop_node: LoopNode, body: Sequence[Op], sizes: Sizes, buffers: Buffers, choices: BodyChoices
) -> tuple[Compute, ...]:
    """Return the copies of stacks that a backward loop with this body reads."""
    remat = choices.remat
    saves_more = remat.policy != "full" or remat.save or remat.offload
    crosses = any(isinstance(op, Collective) and is_across(op.axes) for op in body)
    if saves_more or not crosses or loop_node.scan.trips <= NO_LOOP or loop_node.scan.unrolled:
        return ()
    pairs = zip(loop_node.scan.loads, loop_node.loads, strict=True)
    inputs = [key for tensor, key in pairs if tensor.short == LAYER_IN]
    return tuple(
        _copy(loop_node, key, buffer_bytes(buffers[key], sizes))
        for key in inputs
        if _is_long(key, sizes, buffers, choices)
    )


def _copy(loop_node: LoopNode, key: str, nbytes: Number) -> Compute:
    stack = loop_node.scan.trips * nbytes
    return Compute(
        name=f"copy/{key}",
        phase=loop_node.scan.phase,
        scope=loop_node.scan.name,
        work=VectorWork(stack, stack, 0),
        allocs=(Alloc(f"{key} (copy)", stack, "saved activations"),),
    )


def _is_long(key: str, sizes: Sizes, buffers: Buffers, choices: BodyChoices) -> bool:
    """Return True for tokens of a sequence no fewer than their features, sharded nowhere."""
    local = buffers[key].local
    if len(local.dims) < 2 or not is_sequence(local.dims[-2]):
        return False
    whole = not {"tensor", "expert"}.intersection(choices.sharding.active_axes)
    tokens, features = (
        sizes.extent(dim, axes)
        for dim, axes in zip(local.dims[-2:], local.layout[-2:], strict=True)
    )
    return whole and bool(tokens >= features)
