"""Choices that change a model's graph before it is partitioned: loss tiles, repeated K/V heads."""

from collections.abc import Mapping
from math import gcd, prod

from tpusim.base.divisors import divisor_from, divisor_up_to
from tpusim.base.errors import PlanError
from tpusim.graph import NARROW, Graph
from tpusim.partition.rules import ShardingRules


def loss_parts(
    tiles: int, graph: Graph, rules: ShardingRules, axes: Mapping[str, int]
) -> dict[str, int]:
    """Return the tiles of each dimension of the loss; their product is `tiles`.

    graph: a forward pass.
    rules: in force for it.
    axes: sizes of the mesh axes.

    A tile is an equal part of every device's own tokens, so making it moves nothing: sequences are
    cut first, and the batch if that leaves some. Raise PlanError if the tokens of a device do not
    divide.
    """
    layout = rules.layout(graph.loss)
    local: dict[str, int] = {}
    for dim, over in zip(graph.loss.dims, layout, strict=True):
        shards = prod(axes[axis] for axis in over)
        size = graph.sizes[dim]
        local[dim] = 1 if size % shards else size // shards
    left, parts = tiles, dict.fromkeys(local, 1)
    for dim in reversed(local):
        parts[dim] = gcd(left, local[dim])
        left //= parts[dim]
    if left > 1:
        raise PlanError(_does_not_divide(tiles, local))
    return parts


def _does_not_divide(tiles: int, local: dict[str, int]) -> str:
    """Return the message, with the nearest numbers that divide."""
    tokens = prod(local.values())
    below, above = divisor_up_to(tokens, tiles), divisor_from(tokens, tiles)
    of = " x ".join(f"{size} of {dim}" for dim, size in local.items())
    nearby = " or ".join(map(str, dict.fromkeys((below, above))))
    return (
        f"plan.vocab_tiles is {tiles}, which does not divide the {tokens} tokens that a device has "
        f"at a time ({of}); write {nearby}"
    )


def kernel_copies(graph: Graph, rules: ShardingRules, axes: Mapping[str, int]) -> int:
    """Return the number to which the K/V heads are repeated; 0 if they are not.

    They are repeated to the number of devices that share the heads of a kernel, where tokens are
    exchanged for heads and each device has several K/V heads before, but too few for all. A single
    K/V head is gathered: exchanging copies of it moves no less.
    """
    table, count = dict(rules.table), graph.sizes.get(NARROW, 0)
    inside = table.get(f"kernel_{NARROW}", ())
    if not count or not rules.exchanged or set(rules.exchanged) <= set(inside):
        return 0
    copies = prod(axes[axis] for axis in table.get("kernel_heads", ()))
    each = count // prod(axes[axis] for axis in table[f"act_{NARROW}"])
    return copies if each > 1 and copies % count == 0 else 0
