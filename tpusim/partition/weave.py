"""Which collectives are woven into the matmul, or the attention kernel, that uses them."""

from tpusim.graph import Attention, Einsum, Op
from tpusim.partition.context import rings_over
from tpusim.partition.decisions import BodyNodes
from tpusim.partition.fuse import unfused
from tpusim.partition.layout import is_across
from tpusim.partition.lowering import Group, wants_ring
from tpusim.partition.passes import Entry, KernelRing, Ring
from tpusim.partition.scope import TOKENS
from tpusim.partition.template import Calc, Comm, Purpose
from tpusim.partition.work import operand_bytes, work_of
from tpusim.program import CollectiveKind, Matmul, Mode


def woven(body: BodyNodes, calc: Calc, comm: Comm | None) -> tuple[Entry, ...]:
    """An operation, as a ring where it has a collective; what was fused to it then follows."""
    if comm is None:
        return (calc,)
    if body.decisions.over(comm.axes)[1].rings_fuse:
        return (Ring(calc, comm),)
    product, *groups = unfused(calc)
    return (Ring(product, comm), *groups)


def rings(body: BodyNodes) -> dict[str, Comm]:
    """The matmuls that become rings, each with the first collective that it can take in."""
    found: dict[str, Comm] = {}
    for comm in body.comms:
        for calc in _woven_into(body, comm):
            found.setdefault(calc.name, comm)
    return found


def kernel_rings(body: BodyNodes) -> dict[str, KernelRing]:
    """The attention kernels to which keys and values travel, where the plan says so."""
    moved = [comm for comm in body.comms if _goes_round(body, comm)]
    found: dict[str, KernelRing] = {}
    for calc in body.calcs:
        if isinstance(calc.op, Attention):
            gathers = tuple(c for c in moved if c.writes[0] in calc.reads)
            scatters = tuple(c for c in moved if c.reads[0] in calc.writes)
            if gathers:
                found[calc.name] = KernelRing(calc, gathers, scatters)
    return found


def _goes_round(body: BodyNodes, comm: Comm) -> bool:
    """Whether a collective brings together, or sums and parts, a sequence over rings."""
    if comm.kind not in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return False
    shard = comm.reads[0] if comm.kind is CollectiveKind.ALL_GATHER else comm.writes[0]
    split = body.decisions.buffers[shard].local.split()
    axes = next((split[dim] for dim in TOKENS if dim in split), ())
    return comm.axes == axes and rings_over(body.decisions.plan, comm.axes)


def _woven_into(body: BodyNodes, comm: Comm) -> list[Calc]:
    """The matmuls that could take the collective in, when the lowering wants that."""
    if is_across(comm.axes):
        return []
    if comm.kind is CollectiveKind.ALL_GATHER:
        calcs = [calc for calc in body.calcs if comm.writes[0] in calc.reads]
    elif comm.kind is CollectiveKind.REDUCE_SCATTER and comm.maker in body.makers:
        calcs = [body.makers[comm.maker]]
    else:
        return []
    if not calcs or not all(_can_be_ring(calc.op) for calc in calcs):
        return []
    return calcs if _wanted(body, comm, calcs) else []


def _wanted(body: BodyNodes, comm: Comm, calcs: list[Calc]) -> bool:
    group, low = body.decisions.over(comm.axes)
    if comm.purpose is Purpose.WEIGHT:
        return low.gather is Mode.RING and len(calcs) == 1
    if comm.purpose is Purpose.GRADIENT:
        return low.reduce is Mode.RING
    if low.rings == "always":
        return group.size > 1
    # No gather of tokens is woven in, though a scatter is: norms that are sharded by tokens
    # over `tensor`, plain models on v5e 4x4, v6e 4x4, v4 and v5p 4x4x8 (libtpu 0.0.42.1).
    scattered = comm.kind is CollectiveKind.REDUCE_SCATTER
    alone = scattered or (comm.dim not in TOKENS and _one_projection(body, comm, calcs))
    return alone and all(_pays(body, comm, calc, group) for calc in calcs)


def scatters(body: BodyNodes, comm: Comm, calc: Calc) -> bool:
    """Whether the scatter of a product's result, by tokens, would be woven into it."""
    return comm.dim in TOKENS and not is_across(comm.axes) and _wanted(body, comm, [calc])


def _one_projection(body: BodyNodes, comm: Comm, calcs: list[Calc]) -> bool:
    """Whether what is gathered feeds one projection only, in one phase.

    Never a ring where the tensor has two users, as the inputs of gate and up or of Q, K and V
    have; the two gradients of one projection count as one. A product of two activations, as the
    dispatch to experts is, does not mind a projection of each device's own part (the router).
    """
    alone = not any(_weight_bytes(body, calc) for calc in calcs)
    readers = [
        calc.op
        for calc in body.calcs
        if isinstance(calc.op, Einsum)
        and calc.phase is comm.phase
        and any(tensor.name == comm.tensor for tensor in calc.op.inputs)
        and not (alone and comm.reads[0] in calc.reads)
    ]
    projections = {op.name.removesuffix("/dx").removesuffix("/dw") for op in readers}
    return len(projections) == 1 and all(calc.phase is comm.phase for calc in calcs)


def _pays(body: BodyNodes, comm: Comm, calc: Calc, group: Group) -> bool:
    work = work_of(calc, body.decisions.sizes, body.decisions.buffers)
    assert isinstance(work, Matmul)
    flops = 2 * work.batch * work.m * work.k * work.n
    peak = body.decisions.pod.chip.device.flops[work.dtype]
    return wants_ring(group, body.bytes(comm), float(flops), peak, _weight_bytes(body, calc))


def _weight_bytes(body: BodyNodes, calc: Calc) -> float:
    """Local bytes of the weight, or of the weight's gradient, in a matmul."""
    sizes, split = body.decisions.sizes, dict(calc.split)
    weights = [
        tensor
        for tensor in (*calc.op.inputs, *calc.op.outputs)
        if (tensor.primal or tensor.name) in body.decisions.weights
    ]
    return max((float(operand_bytes(t, split, sizes)) for t in weights), default=0.0)


def _can_be_ring(op: Op) -> bool:
    """Whether an operation can be a collective matmul; a kernel cannot."""
    return isinstance(op, Einsum) and not op.ragged
