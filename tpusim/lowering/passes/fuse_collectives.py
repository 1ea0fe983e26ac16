"""Collective matmuls and ring attention: fusing a collective with the operation that reads it."""

from tpusim.graph import Attention, Einsum, Op
from tpusim.lowering.body_entries import RingAttention
from tpusim.lowering.decisions import Body
from tpusim.lowering.device_groups import DeviceGroup
from tpusim.lowering.op_work import operand_bytes, work_of
from tpusim.partition import (
    TOKENS,
    CollectiveNode,
    ComputeNode,
    Purpose,
    across_slices,
    is_across,
    sends_keys_round,
)
from tpusim.program import CollectiveKind, MatmulWork, Mode

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
                found[compute.name] = RingAttention(compute, gathers, scatters)
    return found


def _goes_round(body: Body, collective: CollectiveNode) -> bool:
    """Return True if it gathers a sequence, or sums and scatters one, over rings of the plan."""
    if collective.kind not in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return False
    shard = (
        collective.reads[0]
        if collective.kind is CollectiveKind.ALL_GATHER
        else collective.writes[0]
    )
    split = body.buffers[shard].local.split()
    axes = next((split[dim] for dim in TOKENS if dim in split), ())
    return collective.axes == axes and sends_keys_round(body.plan.context, collective.axes)


def matmuls_for(body: Body, collective: CollectiveNode) -> list[ComputeNode]:
    """Return the matmuls that take the collective in if the lowering fuses them, else none."""
    if is_across(collective.axes):
        return []
    if collective.kind is CollectiveKind.ALL_GATHER:
        computes = [compute for compute in body.computes if collective.writes[0] in compute.reads]
    elif collective.kind is CollectiveKind.REDUCE_SCATTER and collective.maker in body.makers:
        computes = [body.makers[collective.maker]]
    else:
        return []
    if not computes or not all(_can_be_ring(compute.op) for compute in computes):
        return []
    return computes if _is_fused(body, collective, computes) else []


def _is_fused(body: Body, collective: CollectiveNode, computes: list[ComputeNode]) -> bool:
    group, low = body.decisions.over(collective.axes)
    if collective.purpose in (Purpose.WEIGHT, Purpose.GRADIENT):
        gathers = collective.purpose is Purpose.WEIGHT
        wanted = (low.gather if gathers else low.reduce) is Mode.RING
        once = len(computes) == 1 or not gathers
        wanted &= collective not in body.crossing
        wanted &= not across_slices(collective.axes) or all(
            _crossing_pays(body, collective, compute) for compute in computes
        )
        return wanted and once and not any(_moves_more(body, each) for each in computes)
    if low.activations == "always":
        return group.size > 1
    # Scatters of tokens are fused, gathers are not: norms that are sharded by tokens over `tensor`,
    # plain models on v5e 4x4, v6e 4x4, v4 and v5p 4x4x8 (libtpu 0.0.42.1).
    scattered = collective.kind is CollectiveKind.REDUCE_SCATTER
    alone = scattered or (
        collective.dim not in TOKENS and _one_projection(body, collective, computes)
    )
    return alone and all(
        _matmul_fusion_pays(body, collective, compute, group) for compute in computes
    )


def _moves_more(body: Body, compute: ComputeNode) -> bool:
    """Return True if a matmul reads an activation gathered by columns, or sums its result.

    It has one collective at most, and XLA leaves the weight's outside: forward over fsdp 4 to 32 x
    tensor, 181 of 216 weights whose matmul reads what is whole are rings, and 2 of 89 whose result
    is summed over devices (45 compiled plans for v4 to 7x, libtpu 0.0.42.1). An activation that is
    gathered by tokens does not count: rings in 6 of 7 such plans for v4 to v6e.
    """
    written, summed = body.moved_activations
    return compute.name in summed or not written.isdisjoint(compute.reads)


def scatter_is_fused(body: Body, collective: CollectiveNode, compute: ComputeNode) -> bool:
    """Return True if the scatter of a matmul's result, by tokens, would be fused with it."""
    return (
        collective.dim in TOKENS
        and not is_across(collective.axes)
        and _is_fused(body, collective, [compute])
    )


def _one_projection(body: Body, collective: CollectiveNode, computes: list[ComputeNode]) -> bool:
    """Return True if the gathered tensor feeds one projection only, in one phase.

    A tensor with two users, as the inputs of gate and up or of Q, K and V, is never gathered in a
    ring; the two gradients of one projection count as one. A matmul of two activations, such as the
    dispatch to experts, does not mind a projection of each device's own part (the router).
    """
    alone = not any(_weight_bytes(body, compute) for compute in computes)
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


def _matmul_fusion_pays(
    body: Body, collective: CollectiveNode, compute: ComputeNode, group: DeviceGroup
) -> bool:
    flops, peak = _flops_and_peak(body, compute)
    return fusion_pays(group, body.nbytes(collective), flops, peak, _weight_bytes(body, compute))


def _flops_and_peak(body: Body, compute: ComputeNode) -> tuple[float, float]:
    """Return the FLOPs of a matmul on one device, and the FLOP/s of a device in its dtype."""
    work = work_of(compute, body.decisions.sizes, body.buffers)
    assert isinstance(work, MatmulWork)
    flops = 2 * work.batch * work.m * work.k * work.n
    return float(flops), body.decisions.pod.chip.device.flops[work.dtype]


def _crossing_pays(body: Body, collective: CollectiveNode, compute: ComputeNode) -> bool:
    """Return True if a ring of a weight that crosses slices is chosen, by the rule of `_pays`.

    What decides is DCN, over which each device sends whole chunks. It separates 8 compiled plans
    for two and four slices whose weights are tiled over 4 to 32 devices: the 5 with rings have 1.04
    to 4.2 times the bound, the 3 without 0.26 to 0.89 times (libtpu 0.0.42.1).
    """
    group, _ = body.decisions.over(collective.axes)
    flops, peak = _flops_and_peak(body, compute)
    return _pays(flops / peak, body.nbytes(collective) / group.bandwidth, group.size)


def _weight_bytes(body: Body, compute: ComputeNode) -> float:
    """Return the local bytes of the weight, or of the weight's gradient, in a matmul."""
    sizes, split = body.decisions.sizes, dict(compute.split)
    weights = [
        tensor
        for tensor in (*compute.op.inputs, *compute.op.outputs)
        if (tensor.primal or tensor.name) in body.weights
    ]
    return max((float(operand_bytes(t, split, sizes)) for t in weights), default=0.0)


def _can_be_ring(op: Op) -> bool:
    """Return True if an operation can be a collective matmul; a kernel cannot."""
    return isinstance(op, Einsum) and not op.ragged


def fusion_pays(
    group: DeviceGroup, nbytes: float, flops: float, peak: float, weight_bytes: float
) -> bool:
    """Return True if the compiler fuses an activation collective with the matmul beside it.

    group: devices of the ring.
    nbytes: of the full tensor on one device.
    flops: of the matmul on one device.
    peak: FLOP/s of one device.
    weight_bytes: of the matmul's weight on one device.

    A ring of n takes the longer of compute C and transfer T, plus a prologue and an epilogue of T/n
    each; it is chosen when that beats C + T, so when min(C, T) > 2 T / n. This agrees with all 16
    einsums seen on v4, v5e, v5p, v6e and 7x (axes of 2 to 16, F from 512 to 32768), given that the
    axis is a physical ring of at least 4.
    """
    if not group.ring or group.size < 4 or weight_bytes > LARGEST_RING_WEIGHT:
        return False
    return _pays(flops / peak, nbytes / group.bandwidth, group.size)


def _pays(compute: float, transfer: float, devices: int) -> bool:
    """Return True if a ring of `devices` is faster than the transfer and the matmul in a row."""
    return min(compute, transfer) > 2 * transfer / devices
