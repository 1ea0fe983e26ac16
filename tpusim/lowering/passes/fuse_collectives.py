"""Collective matmuls and ring attention: fusing a collective with the operation that reads it."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.graph import Attention, Einsum, Op, Tensor, is_sequence
from tpusim.lowering.body_entries import RingAttention
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.lowering.device_groups import DeviceGroup
from tpusim.lowering.op_work import operand_bytes, work_of
from tpusim.partition import (
    CollectiveNode,
    ComputeNode,
    Purpose,
    is_across,
    sends_keys_round,
)
from tpusim.plan import Axes, Compiler
from tpusim.program import CollectiveKind, MatmulWork, Mode, Number, smallest

FUSIBLE = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
"""Kinds of collectives that matmuls take in."""

LEAST_RING = 4
"""Devices of the smallest ring of activations."""

LARGEST_RING_WEIGHT = 256 * 2.0**20
"""Collective matmuls were seen with gathered weights of up to 128 MiB on a device (480B: wq, wo),
and not with 512 MiB (its MLP matrices); the bound is between."""


def collective_matmuls(body: Body) -> dict[str, CollectiveNode]:
    """Return the collective matmuls by name, each with the first collective that it can take in."""
    found: dict[str, CollectiveNode] = {}
    for collective in body.collectives:
        for compute in matmuls_for(body, collective):
            found.setdefault(compute.name, collective)
    return found


def ring_attentions(body: Body) -> dict[str, RingAttention]:
    """Return the attention kernels, by name, around which the plan sends keys and values."""
    moved = [collective for collective in body.collectives if _goes_round(body, collective)]
    found: dict[str, RingAttention] = {}
    for compute in body.computes:
        if isinstance(compute.op, Attention):
            gathers = tuple(c for c in moved if c.writes[0] in compute.reads)
            scatters = tuple(c for c in moved if c.reads[0] in compute.writes)
            if gathers:
                mode = body.permutes
                found[compute.name] = RingAttention(compute, gathers, scatters, mode)
    return found


def _goes_round(body: Body, collective: CollectiveNode) -> bool:
    """Return True if it gathers a sequence, or sums and scatters one, over rings of the plan."""
    if collective.kind not in FUSIBLE:
        return False
    shard = (
        collective.reads[0]
        if collective.kind is CollectiveKind.ALL_GATHER
        else collective.writes[0]
    )
    split = body.buffers[shard].local.split()
    axes = next((split[dim] for dim in split if is_sequence(dim)), ())
    return collective.axes == axes and sends_keys_round(body.sharding.context, collective.axes)


def matmuls_for(body: Body, collective: CollectiveNode) -> list[ComputeNode]:
    """Return the matmuls that take the collective in if the lowering fuses them, else none."""
    if is_across(collective.axes) or not may_fuse(collective, body.compiler):
        return []
    if collective.kind is CollectiveKind.ALL_GATHER:
        computes = [compute for compute in body.computes if collective.writes[0] in compute.reads]
    else:
        made = body.makers.get(collective.maker)
        computes = [made] if made else []
    if not computes or not all(can_be_ring(compute.op) for compute in computes):
        return []
    return computes if _is_fused(body, collective, computes) else []


def may_fuse(collective: CollectiveNode, compiler: Compiler) -> bool:
    """Return False for a kind that no matmul takes in, and where a flag rules fusion out."""
    allowed = compiler.collective_matmul or compiler.lowering == "ideal"
    return allowed and collective.kind in FUSIBLE


class RingChoice(NamedTuple):
    """The choice of whether a collective becomes a ring in its matmuls, where that pays.

    tokens: it gathers a sequence.
    """

    purpose: Purpose
    tokens: bool

    @classmethod
    def of(cls, collective: CollectiveNode) -> "RingChoice":
        """Return the choice of a collective of a kind that matmuls take in."""
        gathers = collective.kind is CollectiveKind.ALL_GATHER
        return cls(collective.purpose, gathers and is_sequence(collective.dim))

    def wanted(self, low: Lowering) -> bool:
        """Return True if a lowering of its group makes rings of such collectives.

        Scatters of tokens are fused, gathers are not: norms that are sharded by tokens over
        `tensor`, plain models on v5e 4x4, v6e 4x4, v4 and v5p 4x4x8 (libtpu 0.0.42.1).
        """
        if self.purpose is Purpose.WEIGHT:
            return low.gather is Mode.RING
        if self.purpose is Purpose.GRADIENT:
            return low.reduce is Mode.RING
        return low.activations == "always" or (low.activations == "rule" and not self.tokens)

    def unwanted(self, low: Lowering) -> bool:
        """Return True if a lowering of its group makes no rings of such collectives."""
        return not self.wanted(low)


def _is_fused(body: Body, collective: CollectiveNode, computes: list[ComputeNode]) -> bool:
    low = body.over(collective.axes)
    wanted = RingChoice.of(collective).wanted(low)
    if collective.purpose in (Purpose.WEIGHT, Purpose.GRADIENT):
        gathers = collective.purpose is Purpose.WEIGHT
        if gathers and body.remat.left_to_compiler:
            return False  # its users in both passes are known at once; see compiler.md
        if not wanted or collective in body.crossing or (gathers and len(computes) > 1):
            return False
        return all(
            not (_counts_moves(body, gathers) and _moves_more(body, compute))
            and not (gathers and _is_partial(compute))
            and body.ask(_weight_ring_pays, collective, compute)
            for compute in computes
        )
    if low.activations == "always":
        return body.ask(_is_several, collective.axes)
    scattered = collective.kind is CollectiveKind.REDUCE_SCATTER
    alone = wanted and (scattered or _one_projection(body, collective, computes))
    return alone and all(body.ask(_fusion_pays, collective, each) for each in computes)


def _counts_moves(body: Body, gathers: bool) -> bool:
    """Return True if a matmul that moves an activation has no ring for its weight.

    The gradient of a weight is one beside a gathered operand too in plain programs: 5 of 5 of a
    layer on v6e 4x4, and 6 of 6 heads on v4, v5p and v6e (`embed` over `tensor`; libtpu 0.0.42.1).
    """
    return gathers or body.compiler.style != "plain"


def _moves_more(body: Body, compute: ComputeNode) -> bool:
    """Return True if a matmul reads an activation gathered by columns, or sums its result.

    It has one collective at most, and XLA leaves the weight's outside: forward over fsdp 4 to 32 x
    tensor, 181 of 216 weights whose matmul reads what is whole are rings, and 2 of 89 whose result
    is summed over devices (45 compiled plans for v4 to 7x, libtpu 0.0.42.1). An activation that is
    gathered by tokens does not count: rings in 6 of 7 such plans for v4 to v6e.
    """
    written, summed = body.moved_activations
    return compute.name in summed or not written.isdisjoint(compute.reads)


def _is_partial(compute: ComputeNode) -> bool:
    """Return True if each device has a part of the sums of a matmul.

    The parts are summed over devices, often after those of other matmuls are added: gradients of
    what several projections read (of 107 weights whose result is partial, 2 are in rings; of 43 of
    the same programs whose result is whole, all are: backward, fsdp 4 to 32 x tensor, 34 compiled
    plans for v4 to 7x, libtpu 0.0.42.1).
    """
    made = compute.op.outputs[0].dims
    summed = {dim for tensor in compute.op.inputs for dim in tensor.dims} - set(made)
    return any(axes for dim, axes in compute.split if dim in summed)


def scatter_is_fused(body: Body, collective: CollectiveNode, compute: ComputeNode) -> bool:
    """Return True if the scatter of a matmul's result, by tokens, would be fused with it."""
    return (
        is_sequence(collective.dim)
        and not is_across(collective.axes)
        and _is_fused(body, collective, [compute])
    )


def _one_projection(body: Body, collective: CollectiveNode, computes: list[ComputeNode]) -> bool:
    """Return True if the gathered tensor feeds one projection only, in one phase.

    A tensor with two users, as the inputs of gate and up or of Q, K and V, is never gathered in a
    ring; the two gradients of one projection count as one. A matmul of two activations, such as the
    dispatch to experts, does not mind a projection of each device's own part (the router).
    """
    alone = not any(_weights_of(compute, body.weights) for compute in computes)
    readers = [
        compute.op
        for compute in body.computes
        if isinstance(compute.op, Einsum)
        and compute.phase is collective.phase
        and any(tensor.name == collective.tensor for tensor in compute.op.inputs)
        and not (alone and collective.reads[0] in compute.reads)
    ]
    projections = {op.name.removesuffix("/dx").removesuffix("/dw") for op in readers}
    return len(projections) == 1 and all(compute.phase is collective.phase for compute in computes)


def _weights_of(compute: ComputeNode, weights: Collection[str]) -> list[Tensor]:
    """Return the weights, and the gradients of weights, in a matmul."""
    tensors = (*compute.op.inputs, *compute.op.outputs)
    return [tensor for tensor in tensors if (tensor.primal or tensor.name) in weights]


def _is_several(decisions: LoweringDecisions, axes: Axes) -> bool:
    return bool(decisions.sizes.group(axes) > 1)


def _weight_ring_pays(
    decisions: LoweringDecisions, collective: CollectiveNode, compute: ComputeNode
) -> bool:
    given = decisions.nbytes(collective), _seconds(decisions, compute)
    return decisions.holds(weight_ring_pays, collective.axes, *given)


def _fusion_pays(
    decisions: LoweringDecisions, collective: CollectiveNode, compute: ComputeNode
) -> bool:
    given = decisions.nbytes(collective), _seconds(decisions, compute)
    weight = _weight_bytes(decisions, compute)
    return decisions.holds(fusion_pays, collective.axes, *given, weight)


def _seconds(decisions: LoweringDecisions, compute: ComputeNode) -> float:
    """Return the seconds of a matmul on one device at its peak."""
    work = work_of(compute, decisions.sizes, decisions.buffers)
    assert isinstance(work, MatmulWork)
    return float(peak_seconds(work, decisions.chip.device.flops[work.dtype]))


def peak_seconds(work: MatmulWork, flops_per_s: float) -> Number:
    """Return the seconds of a matmul at a rate."""
    return 2 * work.batch * work.m * work.k * work.n / flops_per_s


def _weight_bytes(decisions: LoweringDecisions, compute: ComputeNode) -> float:
    """Return the local bytes of the weight, or of the weight's gradient, in a matmul."""
    sizes, split = decisions.sizes, dict(compute.split)
    weights = _weights_of(compute, decisions.weights)
    return max((float(operand_bytes(t, split, sizes)) for t in weights), default=0.0)


def can_be_ring(op: Op) -> bool:
    """Return True if an operation can be a collective matmul; a kernel cannot."""
    return isinstance(op, Einsum) and not op.ragged


def fusion_pays(group: DeviceGroup, nbytes: float, compute_s: float, weight_bytes: float) -> bool:
    """Return True if the compiler fuses an activation collective with the matmul beside it.

    group: devices of the ring.
    nbytes: of the full tensor on one device.
    compute_s: of the matmul on one device, in seconds.
    weight_bytes: of the matmul's weight on one device.

    It does where `ring_beats_both` says so: this agrees with all 16 einsums seen on v4, v5e, v5p,
    v6e and 7x (axes of 2 to 16, F from 512 to 32768), given that the axis is a physical ring of at
    least 4.
    """
    transfer = nbytes / group.bandwidth
    small = weight_bytes <= LARGEST_RING_WEIGHT
    pays = small and ring_beats_both(group.size, compute_s, transfer, transfer)
    return bool(pays) and group.size >= LEAST_RING and group.ring


def weight_ring_pays(group: DeviceGroup, nbytes: float, compute_s: float) -> bool:
    """Return True if the compiler moves a weight, or its gradient, in a ring beside its matmul.

    group: devices of the ring.
    nbytes: of the full weight on one device.
    compute_s: of the matmul on one device, in seconds.

    Experts have few tokens for each of their weights. Compiled plans with experts have no rings
    where they do not pay (0.25 to 1.0 times the bound), and nearly all have where they do (from
    1.02 times); so have those without experts, from 1.25 times. Groups of 4 on a whole plane of v4
    or v5p 2x2x2, over which a gather takes half the time, have none in 5 of 5 (libtpu 0.0.42.1).
    Three programs of experts alone, without attention, gather beside matmuls instead (v5e 4x4, v6e
    4x4 and 16x16).
    """
    ring = nbytes / group.bandwidth
    return bool(ring_beats_both(group.size, compute_s, ring / group.gathers_by, ring))


def ring_beats_both(
    devices: Number, compute_s: Number, transfer_s: Number, ring_s: Number
) -> bool | NDArray[np.bool_]:
    """Return True if a collective matmul takes less than the collective and then the matmul.

    A ring of n takes the longer of compute C and transfer T, plus a prologue and an epilogue of a
    chunk each, R/n; it is chosen when that beats C + T, so when min(C, T) > 2 R / n.

    transfer_s: T, of the collective on its own.
    ring_s: R, of all chunks in one ring.
    """
    return smallest(compute_s, transfer_s) > 2 * ring_s / devices
