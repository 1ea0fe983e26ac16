"""The sizes that an engine compiles its steps for, and pads tokens and sequences to."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tpusim.base.errors import PlanError
from tpusim.server.step_load import StepLoad

Sizes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """The sizes of an engine's steps, of each data-parallel rank, ascending; empty for any size.

    tokens: tokens of a step with prompts; of an engine without `decodes`, of every step.
    decodes: sequences of a step that only decodes, which are its rows of logits too.
    rows: rows of logits of the other steps.
    cache: tokens of the cache that attention reads of each sequence of a step that decodes, however
        many it holds; 0 where it reads those that it holds.
    """

    tokens: Sizes = ()
    decodes: Sizes = ()
    rows: Sizes = ()
    cache: int = 0

    def of(self, load: StepLoad, ranks: int = 1, drafted: int = 1) -> tuple[int, int]:
        """Return the tokens and the rows of logits of each rank, padding included.

        load: of all ranks together.
        ranks: data-parallel ranks.
        drafted: tokens of a sequence that decodes in a step, 1 without speculation.

        Raise PlanError for a load that is larger than the largest size.

        >>> Buckets(tokens=(16, 32, 64), rows=(8, 32)).of(StepLoad(20, 2000))
        (32, 32)
        """
        tokens = -(-(load.decodes + load.prefills) // ranks) or 1
        rows = -(-load.decodes // (ranks * drafted)) or 1
        if self.decodes and not load.prefills:
            rows = _up_to(self.decodes, rows, "sequences")
            return rows * drafted, rows
        return _up_to(self.tokens, tokens, "tokens"), _up_to(self.rows, rows, "rows of logits")

    def read(self, load: StepLoad, ranks: int = 1, drafted: int = 1) -> StepLoad:
        """Return a load with the keys that attention reads; see `of` for the parameters.

        >>> Buckets(decodes=(32,), cache=2048).read(StepLoad(3, 90)).context
        65536
        """
        if not (self.cache and load.decodes):
            return load
        _, rows = self.of(StepLoad(load.decodes, load.context), ranks, drafted)
        slots = rows * ranks
        return load._replace(decodes=slots * drafted, context=slots * self.cache)


def bucket_sizes(rule: Mapping[str, Any], limit: int, least: int = 1) -> Sizes:
    """Return the sizes of a rule of `engines.toml`.

    rule: `sizes`, or the powers of two from `least` to `most` (0: to the limit). With `with_limit`
        the limit itself is one, and the largest.
    limit: the most that a step can have.
    least: no size is less, except for the limit.

    >>> bucket_sizes({"least": 16, "with_limit": True}, limit=100)
    (16, 32, 64, 100)
    """
    sizes = [*rule.get("sizes", ())]
    size, most = rule.get("least", 0), rule.get("most", 0)
    while 0 < size <= (most or limit):
        sizes.append(size)
        size *= 2
    sizes = [each for each in sizes if each >= least]
    if rule.get("with_limit"):
        sizes = [each for each in sizes if each < limit] + [limit]
    return tuple(sizes)


def divided(sizes: Sizes, ranks: int) -> Sizes:
    """Return the sizes of each rank of those of all ranks, rounded up.

    >>> divided((8, 16, 64), 16)
    (1, 4)
    """
    return tuple(sorted({-(-size // ranks) for size in sizes}))


def _up_to(sizes: Sizes, wanted: int, what: str) -> int:
    """Return the smallest size that is not less."""
    if not sizes:
        return wanted
    place = bisect_left(sizes, wanted)
    if place == len(sizes):
        raise PlanError(
            f"a step has {wanted:,} {what} of a rank, and the largest bucket holds "
            f"{sizes[-1]:,}; give a larger bucket, or a smaller max_num_batched_tokens"
        )
    return sizes[place]
