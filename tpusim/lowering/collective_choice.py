"""How a collective that no matmul takes in runs: one decision, of its place in a body alone.

The lowering knows that of the group, and takes the way in it. Where the placement is not known, a
group may have any of several lowerings, and the collective runs in one of their ways.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tpusim.graph import Attention, Einsum, Op, is_sequence
from tpusim.lowering.collective_lowering import Lowering
from tpusim.partition import CollectiveNode, Purpose, is_across
from tpusim.program import CollectiveKind, Mode

REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
"""Kinds of collectives that add up."""

_MLP = frozenset({"mlp", "expert_mlp"})
"""The dimensions of which the weights of an MLP have one."""


class Way(NamedTuple):
    """How a collective runs: whether the core waits, and the algorithm; empty for the default."""

    mode: Mode
    algorithm: str = ""


@dataclass(frozen=True, slots=True)
class CollectiveChoice:
    """The choice of the way of a collective.

    across: it spans slices.
    beside_loop, looped: its body has a loop, or is a loop's.
    in_ring: a collective matmul makes its operand.
    grouped: a grouped matmul does.
    made: an operation does.
    leading: it scatters another dimension than the last one.
    of_mlp: its weight is an MLP's.
    sums_keys: it sums and scatters gradients of keys or values that were gathered for a kernel. A
        kernel runs in a `shard_map`, whose transpose of an operand that all devices have whole is
        a `psum`: an all-reduce, of which each device then takes its part.
    asked: it gathers a gradient since the plan asks for it.
    """

    kind: CollectiveKind
    purpose: Purpose
    across: bool
    beside_loop: bool
    looped: bool
    in_ring: bool
    grouped: bool
    made: bool
    leading: bool
    of_mlp: bool
    sums_keys: bool
    asked: bool

    @classmethod
    def of(
        cls,
        node: CollectiveNode,
        maker: Op | None,
        *,
        beside_loop: bool,
        looped: bool,
        in_ring: bool = False,
    ) -> "CollectiveChoice":
        """Return the choice of a collective. maker: the operation that makes its operand."""
        scatters = node.kind is CollectiveKind.REDUCE_SCATTER and is_sequence(node.dim)
        dims = node.payload.dims
        return cls(
            kind=node.kind,
            purpose=node.purpose,
            across=is_across(node.axes),
            beside_loop=beside_loop,
            looped=looped,
            in_ring=in_ring,
            grouped=isinstance(maker, Einsum) and maker.ragged,
            made=maker is not None,
            leading=bool(dims) and node.dim != dims[-1],
            of_mlp=not _MLP.isdisjoint(dims),
            sums_keys=scatters and isinstance(maker, Attention),
            asked=node.asked,
        )

    def way(self, low: Lowering) -> Way:
        """Return how the collective runs in a lowering of its group.

        Of one across slices, a gather of weights runs as the one that gathers its result further
        within the slice, whose lowering counts. Across slices there is one algorithm.
        """
        gathers = self.kind is CollectiveKind.ALL_GATHER
        if self.purpose is Purpose.WEIGHT and gathers:
            return Way(self._gather_mode(low), "" if self.across else low.gather_algorithm)
        if self.across:
            return Way(self._mode_across(low))
        reduce = Mode.SYNC if low.reduce is Mode.RING else low.reduce
        if self.purpose is Purpose.GRADIENT and self.kind in REDUCTIONS:
            return Way(reduce, self._reduction(low))
        if self.purpose is Purpose.GRADIENT and self.asked and gathers:
            return Way(reduce, low.gather_algorithm)
        # The SparseCore of 7x gathers, scatters and reduces activations, tables and the head as
        # well, and exchanges nothing (47 compiled plans, 99.9 % of whose bytes follow this; libtpu
        # 0.0.42.1).
        beside = low.offloaded and self.kind is not CollectiveKind.ALL_TO_ALL
        algorithm = low.keys_algorithm if self.sums_keys else ""
        return Way(Mode.ASYNC if beside else Mode.SYNC, algorithm)

    def waits(self, low: Lowering) -> bool:
        """Return True if the core waits for the collective in a lowering of its group."""
        return self.way(low).mode is not Mode.ASYNC

    def _gather_mode(self, low: Lowering) -> Mode:
        """Return the mode of a gather of weights."""
        if self.beside_loop and not low.overlap.outside_layers:
            return Mode.SYNC
        if self.across:
            return Mode.SYNC if low.gather is Mode.RING else low.gather
        if low.only_mlp and not self.of_mlp:
            return Mode.SYNC
        return low.twice if low.gather is Mode.RING else low.gather

    def _mode_across(self, low: Lowering) -> Mode:
        """Return the mode of a collective across slices that is no gather of weights.

        The gradients of a layer cross beside the next layer's backward pass; those outside of the
        loop are synchronous (compiled programs for two slices of v5e 4x4, libtpu 0.0.42.1).
        """
        if self.purpose is not Purpose.GRADIENT or self.kind not in REDUCTIONS:
            return Mode.SYNC
        return Mode.ASYNC if self.looped or low.reduce is Mode.ASYNC else Mode.SYNC

    def _reduction(self, low: Lowering) -> str:
        """Return the algorithm of a gradient reduction.

        A gradient that a collective matmul computes is not fused with its scatter: all-reduce, then
        slice. Nor is one that a grouped matmul computes where other matmuls would be collective
        ones (megablox over 16 chips of v6e 4x4, libtpu 0.0.42.1; over 4 of them it is).
        """
        if self.kind is CollectiveKind.ALL_REDUCE:
            return ""
        if not self.made:
            return low.reduce_algorithm
        if low.major_algorithm and self.leading:
            return low.major_algorithm
        grouped = self.grouped and low.reduce is Mode.RING
        return "all-reduce" if grouped or self.in_ring else low.reduce_algorithm
