"""Expert parallelism of a plan: the routing of tokens, and how unevenly it loads the experts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from tpusim.base.errors import PlanError
from tpusim.base.value_checks import check_words, is_list, is_number

Dispatch: TypeAlias = Literal["", "sort", "one_hot"]
ExpertExchange: TypeAlias = Literal["all-to-all", "gather", "ring"]
SortGradient: TypeAlias = Literal["gather", "scatter"]
DEFAULT_TILES = (512, 1024, 1024)
"""Tiles of MaxText's kernels, unless a config says otherwise (its base.yml)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The routing of tokens to experts.

    capacity_factor: slots of an expert over its even share of a sequence's tokens; 0 drops no
        token. Tokens without a slot are dropped.
    group: sequences that share the slots of each expert (the groups of GShard and Switch). A mask
        has a place for each token of a group in each slot, so matmuls with the mask grow with the
        group. Only with a capacity.
    dispatch: slots by `sort` or by a `one_hot` mask; empty for `one_hot` with a capacity, `sort`
        without. A sort goes through HBM; a mask is multiplied by matmuls.
    exchange: how tokens reach experts on other devices: `all-to-all`, `gather` or `ring`. With
        `gather` each device gathers all tokens and picks those of its experts, and results are
        scattered; `ring` is a gather in a collective matmul for the dispatch and an all-to-all for
        the combine.
    sort_gradient: the gradient of sorted tokens: a `gather` in the inverse order, or a `scatter`.
        JAX's own gradient of picking rows is the scatter, which adds one row after the other
        (MaxText until mid-2025); MaxText's `use_custom_sort_vjp` gathers.
    buffer: rows of a device's expert buffer over the mean, without drops; 0 for all possible rows.
        Shapes are fixed, so passes through HBM and memory have all rows, and only grouped kernels
        skip the empty ones. MaxText's `ragged_buffer_factor` drops what does not fit; here nothing
        is dropped.
    skew: unevenness of the experts' load without drops, from 0 (even) to 1 (random choice). The
        busiest device decides.
    seed: seed of the one draw for all layers.
    tiles: tiles of the grouped kernels: rows, `embed`, width of an expert; empty for Tokamax's
        choice on 7x. Kernels compute whole tiles. MaxText: `tile_batch_seq`, `tile_embed_dim`,
        `tile_mlp_dim`, `use_tokamax_gmm`.
    """

    capacity_factor: float = 0.0
    group: int = 1
    dispatch: Dispatch = ""
    exchange: ExpertExchange = "all-to-all"
    sort_gradient: SortGradient = "gather"
    buffer: float = 0.0
    skew: float = 0.0
    seed: int = 0
    tiles: Sequence[int] = DEFAULT_TILES

    def __post_init__(self) -> None:
        capacity, skew, buffer = self.capacity_factor, self.skew, self.buffer
        check_words("plan.experts", self)
        if not is_number(capacity) or not 0 <= capacity < inf:
            raise PlanError(
                f"plan.experts.capacity_factor is {capacity!r}; write a number above 0, such as "
                "1.25, or 0 to drop no token"
            )
        if type(self.group) is not int or self.group < 1:
            raise PlanError(
                f"plan.experts.group is {self.group!r}; write how many sequences share the slots "
                "of each expert, such as 8, or 1 for slots of each sequence"
            )
        if not is_number(skew) or not 0 <= skew <= 1:
            raise PlanError(
                f"plan.experts.skew is {skew!r}; write a number from 0, even, to 1, as chance has "
                "it"
            )
        if not is_number(buffer) or not (buffer == 0 or 1 <= buffer < inf):
            raise PlanError(
                f"plan.experts.buffer is {buffer!r}; write a number of at least 1, such as 1.5, or "
                "0 for buffers that hold all rows that could arrive"
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise PlanError(f"plan.experts.seed is {self.seed!r}; it must be a whole number")
        object.__setattr__(self, "tiles", _checked_tiles(self.tiles))

    def check_together(self) -> None:
        """Raise PlanError for keys that contradict each other."""
        capacity, skew, buffer = self.capacity_factor, self.skew, self.buffer
        if self.dispatch == "one_hot" and not capacity:
            raise PlanError(
                "plan.experts.dispatch is 'one_hot', but plan.experts.capacity_factor is 0: a mask "
                "has a fixed number of slots; write a capacity_factor, such as 1.25, or dispatch = "
                "'sort'"
            )
        if self.group > 1 and not capacity:
            raise PlanError(
                f"plan.experts.group is {self.group}, but plan.experts.capacity_factor is 0: "
                "without a capacity no sequence has slots of its own; write a capacity_factor, "
                "such as 1.25, or group = 1"
            )
        if buffer and capacity:
            raise PlanError(
                f"plan.experts.buffer is {buffer!r}, but plan.experts.capacity_factor is "
                f"{capacity!r}: a capacity gives buffers their size; leave one of them out"
            )
        if skew and capacity:
            raise PlanError(
                f"plan.experts.skew is {skew!r}, but plan.experts.capacity_factor is {capacity!r}: "
                "a capacity gives all experts as many slots; leave one of them out"
            )

    def phrases(self) -> Iterator[str]:
        """Yield the phrases of a plan's text: everything that is not the default."""
        if self.capacity_factor:
            yield f"capacity {self.capacity_factor:g}"
        if self.group > 1:
            yield f"slots of {self.group} sequences together"
        if self.dispatch:
            yield f"dispatch by {self.dispatch}"
        if self.exchange != "all-to-all":
            yield f"experts by {self.exchange}"
        if self.sort_gradient != "gather":
            yield f"gradients of the sort by {self.sort_gradient}"
        if self.buffer:
            yield f"buffers x{self.buffer:g}"
        if self.skew:
            yield f"skew {self.skew:g} of seed {self.seed}"
        if self.tiles != DEFAULT_TILES:
            yield f"tiles of {' x '.join(map(str, self.tiles)) or 'Tokamax'}"


def _checked_tiles(tiles: Sequence[int]) -> tuple[int, ...]:
    """Return the tiles as a tuple: none, or three whole multiples of 8, or raise PlanError."""
    given: tuple[int, ...] = tuple(tiles) if is_list(tiles) else (0,)
    whole = all(type(one) is int and one > 0 and one % 8 == 0 for one in given)
    if not whole or len(given) not in (0, 3):
        raise PlanError(
            f"plan.experts.tiles is {tiles!r}; write three multiples of 8: rows, elements of embed "
            "and elements of the experts' width, such as [512, 1024, 1024], or [] for those that "
            "Tokamax chooses"
        )
    return given
