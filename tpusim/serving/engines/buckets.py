"""The sizes that an engine compiles its steps for, and pads tokens and sequences to."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tpusim.server import StepLoad

Sizes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """The sizes of an engine's steps, ascending, over all data-parallel ranks; empty for any size.

    tokens: tokens of a step that has prompts; of an engine without `decodes`, of every step.
    decodes: sequences of a step that only decodes.
    logits: sequences whose next token a step with prompts samples.
    """

    tokens: Sizes = ()
    decodes: Sizes = ()
    logits: Sizes = ()

    def padded_tokens(self, load: StepLoad) -> int:
        """Return the tokens that the matmuls of a step compute, padding included.

        >>> Buckets(tokens=(16, 32, 64)).padded_tokens(StepLoad(20, 2000))
        32
        """
        if self.decodes and not load.prefills:
            return _at_least(self.decodes, load.decodes)
        return _at_least(self.tokens, load.decodes + load.prefills)

    def padded_logits(self, load: StepLoad, sampled: int) -> int:
        """Return the sequences whose logits a step computes, padding included.

        sampled: sequences of the step that get a token.
        """
        if self.decodes and not load.prefills:
            return _at_least(self.decodes, load.decodes)
        return _at_least(self.logits, sampled)


def bucket_sizes(rule: Mapping[str, Any], limit: int, ranks: int = 1, floor: int = 0) -> Sizes:
    """Return the sizes of a rule of `engines.toml`, over all ranks.

    rule: `sizes`, or the powers of two from `least` to `most` (0: to the limit); with `per_rank` of
        each rank. With `with_limit` the limit itself is one, and the largest.
    limit: the most that a step can have, over all ranks.
    floor: with `at_least_seqs`, the sequences of a step, which are its least size.

    >>> bucket_sizes({"least": 16, "with_limit": True}, limit=100, ranks=1)
    (16, 32, 64, 100)
    """
    sizes = [*rule.get("sizes", ())]
    size, most = rule.get("least", 0), rule.get("most", 0)
    while 0 < size <= (most or limit):
        sizes.append(size)
        size *= 2
    sizes = [each * ranks for each in sizes] if rule.get("per_rank") else sizes
    sizes = [each for each in sizes if each >= ranks]
    if rule.get("at_least_seqs"):
        sizes = [each for each in sizes if each >= floor]
    if rule.get("with_limit"):
        sizes = [each for each in sizes if each < limit] + [limit]
    return tuple(sizes)


def _at_least(sizes: Sizes, wanted: int) -> int:
    """Return the smallest size that is not less; without sizes, or beyond them, `wanted`."""
    at = bisect_left(sizes, wanted)
    return sizes[at] if at < len(sizes) else wanted
