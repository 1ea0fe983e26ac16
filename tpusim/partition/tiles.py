"""Into how many parts each dimension of the tokens is cut for a loss in tiles."""

from math import gcd, prod

from tpusim.errors import PlanError
from tpusim.graph import Graph
from tpusim.partition.plan import Plan
from tpusim.partition.rules import resolve


def loss_parts(plan: Plan, graph: Graph) -> dict[str, int]:
    """The parts of each dimension of the loss of `graph`, a forward pass; `vocab_tiles` in all.

    A tile is an equal part of every device's own tokens, so nothing moves to make it: sequences are
    cut first, and the batch where that leaves some. Raises PlanError where the tokens of a device
    do not divide.
    """
    layout = resolve(plan, graph).layout(graph.loss)
    local: dict[str, int] = {}
    for dim, axes in zip(graph.loss.dims, layout, strict=True):
        shards = prod(plan.active_axes[axis] for axis in axes)
        size = graph.sizes[dim]
        local[dim] = 1 if size % shards else size // shards
    left, parts = plan.vocab_tiles, dict.fromkeys(local, 1)
    for dim in reversed(local):
        parts[dim] = gcd(left, local[dim])
        left //= parts[dim]
    if left > 1:
        raise PlanError(_does_not_divide(plan.vocab_tiles, local))
    return parts


def _does_not_divide(tiles: int, local: dict[str, int]) -> str:
    """The sentence, with the nearest numbers that divide."""
    tokens = prod(local.values())
    below = next(n for n in range(min(tiles, tokens), 0, -1) if tokens % n == 0)
    above = next((n for n in range(tiles, tokens + 1) if tokens % n == 0), below)
    of = " x ".join(f"{size} of {dim}" for dim, size in local.items())
    nearby = " or ".join(map(str, dict.fromkeys((below, above))))
    return (
        f"plan.vocab_tiles is {tiles}, which does not divide the {tokens} tokens that a device has "
        f"at a time ({of}); write {nearby}"
    )
