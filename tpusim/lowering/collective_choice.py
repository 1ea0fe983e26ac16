"""How a collective that no matmul takes in runs: one decision, of its place in a body alone.

The lowering knows that of the group, and takes the way in it. Where the placement is not known, a
group may have any of several lowerings, and the collective runs in one of their ways.
"""

from typing import NamedTuple, TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Attention, Einsum, Op, is_sequence
from tpusim.lowering.collective_lowering import Lowering
from tpusim.partition import CollectiveNode, Node, Purpose, is_across
from tpusim.program import CollectiveKind, Mode

REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
"""Kinds of collectives that add up."""

_MLP = frozenset({"mlp", "expert_mlp"})
"""The dimensions of which the weights of an MLP have one."""


def is_of_experts(node: CollectiveNode) -> bool:
    """Return True if a collective moves weights or slots of sharded experts."""
    return bool(node.payload.split().get("expert"))


def gathers_activation(node: Node) -> TypeGuard[CollectiveNode]:
    """Return True for a gather of an activation."""
    if not isinstance(node, CollectiveNode):
        return False
    return node.kind is CollectiveKind.ALL_GATHER and node.purpose is Purpose.ACTIVATION


def is_for_backward(node: CollectiveNode) -> bool:
    """Return True if a collective gathers an activation for the backward pass alone."""
    return gathers_activation(node) and node.phase is Phase.BACKWARD


class Way(NamedTuple):
    """How a collective runs: whether the core waits, and the algorithm; empty for the default."""

    mode: Mode
    algorithm: str = ""


class CollectiveChoice(NamedTuple):
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
    in_order: the keys were put in order besides, as each device has an early and a late part of
        the sequence. Their gradients are put back by index, which no reduce-scatter does: the
        SparseCore all-reduces them whole (three plans with `context` on 7x; one without balanced
        shards scatters them).
    asked: it gathers a gradient since the plan asks for it.
    for_backward: it gathers an activation for the backward pass alone.
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
    in_order: bool
    asked: bool
    for_backward: bool

    @classmethod
    def of(
        cls,
        node: CollectiveNode,
        maker: Op | None,
        *,
        beside_loop: bool,
        looped: bool,
        balanced: bool,
        in_ring: bool = False,
    ) -> "CollectiveChoice":
        """Return the choice of a collective, with what does not matter to it left False.

        maker: the operation that makes its operand.
        balanced: devices have parts of causal sequences that see as many keys.
        """
        across, dims = is_across(node.axes), node.payload.dims
        gathers = node.purpose is Purpose.WEIGHT and node.kind is CollectiveKind.ALL_GATHER
        scatters = node.kind is CollectiveKind.REDUCE_SCATTER
        summed = scatters and node.purpose is Purpose.GRADIENT
        keys = scatters and not summed and is_sequence(node.dim)
        return cls(
            kind=node.kind,
            purpose=node.purpose,
            across=across,
            beside_loop=gathers and beside_loop,
            looped=across and looped,
            in_ring=summed and in_ring,
            grouped=summed and isinstance(maker, Einsum) and maker.ragged,
            made=summed and maker is not None,
            leading=summed and node.dim != dims[-1],
            of_mlp=gathers and not _MLP.isdisjoint(dims),
            sums_keys=keys and isinstance(maker, Attention),
            in_order=keys and isinstance(maker, Attention) and maker.causal and balanced,
            asked=node.asked,
            for_backward=is_for_backward(node),
        )

    @property
    def gathers_weight(self) -> bool:
        """True for a gather of a weight."""
        return self.purpose is Purpose.WEIGHT and self.kind is CollectiveKind.ALL_GATHER

    @property
    def reduces_gradient(self) -> bool:
        """True for a reduction of a gradient."""
        return self.purpose is Purpose.GRADIENT and self.kind in REDUCTIONS

    def way(self, low: Lowering) -> Way:
        """Return how the collective runs in a lowering of its group.

        Of one across slices, a gather of weights runs as the one that gathers its result further
        within the slice, whose lowering counts. Across slices there is one algorithm.
        """
        if self.gathers_weight:
            return Way(self._gather_mode(low), "" if self.across else low.gather_algorithm)
        if self.across:
            return Way(self._mode_across(low))
        reduce = Mode.SYNC if low.reduce is Mode.RING else low.reduce
        if self.reduces_gradient:
            return Way(reduce, self._reduction(low))
        gathers = self.kind is CollectiveKind.ALL_GATHER
        if self.purpose is Purpose.GRADIENT and self.asked and gathers:
            return Way(reduce, low.gather_algorithm)
        # The SparseCore of 7x gathers, scatters and reduces activations, tables and the head as
        # well, and exchanges nothing (47 compiled plans, 99.9 % of whose bytes follow this; libtpu
        # 0.0.42.1).
        beside = low.offloaded and self.kind is not CollectiveKind.ALL_TO_ALL
        keys = (
            str(CollectiveKind.ALL_REDUCE)
            if self.in_order and low.offloaded
            else low.keys_algorithm
        )
        return Way(Mode.ASYNC if beside else Mode.SYNC, keys if self.sums_keys else "")

    def waits(self, low: Lowering) -> bool:
        """Return True if the core waits for the collective in a lowering of its group.

        It may not wait for one that matmuls may carry (`carry_gathers`).
        """
        carried = self.for_backward and low.carries
        return not carried and self.way(low).mode is not Mode.ASYNC

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
        beside = self.reduces_gradient and (self.looped or low.reduce is Mode.ASYNC)
        return Mode.ASYNC if beside else Mode.SYNC

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
