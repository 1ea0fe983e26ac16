"""Halos: the rows beside its shard of a spatial dimension that a device needs for its windows.

As GSPMD partitions windowed operations (arXiv:2105.04663, section 4.3; `ExchangeHalo` in XLA's
`spmd_partitioner_util.cc`): outputs are sharded as inputs are, each device computes its shard of
the outputs, and all devices receive as many rows as the one that needs most.
"""

from dataclasses import dataclass
from functools import lru_cache

from tpusim.graph import ConvolutionWindow


@dataclass(frozen=True, slots=True)
class Halo:
    """The rows that windows over one sharded dimension read beyond the shard.

    dim: the dimension; `size` is its inputs, `outputs` the number of windows.
    stride, input_dilation: of the windows.
    reach: inputs from a window's first tap to its last.
    low: elements that pad the inputs before the first.
    beyond: the halo of what the outputs are read with, if a device computes those too (a maximum's
        gradient finds the maxima of all windows that reach into its shard).
    """

    dim: str
    size: int
    outputs: int
    stride: int
    input_dilation: int
    reach: int
    low: int
    beyond: "Halo | None" = None

    @classmethod
    def of(
        cls, window: ConvolutionWindow, size: int, taps: int, beyond: "Halo | None" = None
    ) -> "Halo":
        """Return the halo of `size` inputs read in a window."""
        return cls(
            window.in_dim,
            size,
            window.output_size(size, taps),
            window.stride,
            window.input_dilation,
            window.reach(taps),
            window.pads(size, taps)[0],
            beyond,
        )

    @property
    def empty(self) -> bool:
        """True if no device needs more than its shard, however many there are."""
        one_to_one = self.stride == self.input_dilation == self.reach == 1
        return one_to_one and self.low == 0 and self.outputs == self.size and not self.beyond

    def rows(self, shards: int) -> tuple[int, int]:
        """Return the rows that a device receives from before its shard and from after it.

        Where outputs and inputs divide alike these are `low` and reach - stride - low. Otherwise
        the shards drift apart, and the device that needs most decides.
        """
        return _rows(self, shards)

    def shard(self, shards: int) -> int:
        """Return the rows of a shard; the last is padded."""
        return -(-self.size // shards)

    def gathered(self, shards: int) -> bool:
        """Return True if the whole dimension is gathered instead.

        GSPMD does if a halo is wider than a shard and shard and halo together are all there is.
        """
        own, rows = self.shard(shards), self.rows(shards)
        return max(rows) > own and sum(rows) + own >= shards * own

    def hops(self, shards: int) -> tuple[tuple[int, int], ...]:
        """Return the rows from each distance, (before, after), of the next neighbours first."""
        own, (before, after) = self.shard(shards), self.rows(shards)
        count = -(-max(before, after) // own)
        return tuple(
            (min(max(before - hop * own, 0), own), min(max(after - hop * own, 0), own))
            for hop in range(count)
        )

    def extended(self, shards: int) -> int:
        """Return the rows of a shard with its halo, or of the gathered dimension."""
        own = self.shard(shards)
        return self.size if self.gathered(shards) else own + sum(self.rows(shards))


@dataclass(frozen=True, slots=True)
class Edge:
    """One side of a halo.

    after: the rows after the shard, not those before it.
    distance: of the neighbour that they come from; 0 for those of all neighbours together.
    """

    halo: Halo
    after: bool
    distance: int = 0

    def rows(self, shards: int) -> int:
        """Return its rows, also if the dimension is gathered instead."""
        if not self.distance:
            return self.halo.rows(shards)[self.after]
        hops = self.halo.hops(shards)
        return hops[self.distance - 1][self.after] if self.distance <= len(hops) else 0


@lru_cache(maxsize=4096)
def _rows(halo: Halo, shards: int) -> tuple[int, int]:
    own, made = halo.shard(shards), -(-halo.outputs // shards)
    more = halo.beyond.rows(shards) if halo.beyond else (0, 0)
    before = after = 0
    for at in range(shards):
        first = (at * made - more[0]) * halo.stride - halo.low
        last = ((at + 1) * made - 1 + more[1]) * halo.stride - halo.low + halo.reach - 1
        if at > 0:
            before = max(before, at * own + -first // halo.input_dilation)
        if at < shards - 1:
            after = max(after, last // halo.input_dilation + 1 - (at + 1) * own)
    return before, after
