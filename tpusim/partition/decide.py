"""Which of the lowering's ways each collective of a body takes."""

from collections.abc import Collection, Sequence

from tpusim.graph import Attention, Einsum, Op
from tpusim.hardware import Placement, Slice
from tpusim.partition.apart import scattered_apart
from tpusim.partition.context import rings_over
from tpusim.partition.fuse import unfused
from tpusim.partition.groups import group_of
from tpusim.partition.heads import with_turned_heads
from tpusim.partition.layout import Axes, is_across, within
from tpusim.partition.lowering import (
    COMBINED,
    SMALL_GRADIENT,
    Group,
    Lowering,
    in_trips,
    lowering_for,
    wants_ring,
)
from tpusim.partition.order import gradients_after_loop, weight_gradients_last
from tpusim.partition.passes import (
    Entry,
    KernelRing,
    Planned,
    Ring,
    merge_all_reduces,
    merge_gradients,
    regather,
)
from tpusim.partition.plan import Plan
from tpusim.partition.prefetch import prefetch
from tpusim.partition.quantise import narrowed, with_passes
from tpusim.partition.relayout import with_relayouts
from tpusim.partition.scope import TOKENS
from tpusim.partition.sizes import Sizes
from tpusim.partition.template import Calc, Comm, Nest, Node, Purpose, Template
from tpusim.partition.travel import reduced_in, travelling, with_casts
from tpusim.partition.work import operand_bytes, work_of
from tpusim.program import CollectiveKind, Matmul, Mode

_CHOSEN = (
    CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE,
)  # fmt: skip
"""The collectives that several algorithms can carry out."""

_MLP = frozenset({"mlp", "expert_mlp"})
"""The dimensions of which the weights of an MLP have one."""

_REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


class Decisions:
    """The lowering of one plan on one slice, for all bodies of its structure.

    trips: whether they are those of a circular pipeline.
    """

    def __init__(
        self, template: Template, sizes: Sizes, plan: Plan, pod: Slice, placement: Placement,
        trips: bool = False,
    ) -> None:  # fmt: skip
        self.sizes = sizes
        self.buffers = reduced_in(plan, template.buffers)
        self.weights = frozenset(weight.name for weight in template.weights)
        self.plan = plan
        self.pod = pod
        self.placement = placement
        self.trips = trips and plan.lowering != "ideal"
        self._groups: dict[Axes, tuple[Group, Lowering]] = {}

    def over(self, axes: Axes) -> tuple[Group, Lowering]:
        """The group of a collective over `axes`, and the lowering of such collectives."""
        if axes not in self._groups:
            group = group_of(axes, self.pod, self.placement)
            generation, plan = self.pod.chip.generation, self.plan
            low = lowering_for(plan.lowering, generation, plan.style, group)
            self._groups[axes] = (group, in_trips(low) if self.trips else low)
        return self._groups[axes]

    def algorithm(self, planned: Planned) -> str:
        """The algorithm of a collective: the lowering's, or `best` where the plan asks for that."""
        if self.plan.collectives == "best" and planned.comms[0].kind in _CHOSEN:
            return "best"
        return planned.algorithm

    def entries(self, nodes: Sequence[Node], looped: bool = False) -> list[Entry]:
        """The entries of a body, of a loop where `looped`, in the order in which they run."""
        if looped and self.plan.lowering != "ideal":
            nodes = weight_gradients_last(nodes, self.weights)
        nodes = narrowed(nodes, self.plan, self.weights)
        nodes = travelling(nodes, self.plan, self.weights, self.buffers)
        axes = {node.axes for node in nodes if isinstance(node, Comm)}
        lows = [self.over(each)[1] for each in filter(within, axes)]
        lows = lows or [self.over(each)[1] for each in axes]
        again = [low.regather_after for low in lows if low.regather_after is not None]
        nodes = regather(nodes, min(again), self.buffers) if again else nodes
        nodes = scattered_apart(nodes, _Body(self, nodes, looped).scatters, self.buffers)
        body = _Body(self, nodes, looped)
        rings = body.rings()
        kernels = body.kernel_rings()
        woven = {comm.name for comms in rings.values() for comm in comms}
        woven |= {c.name for ring in kernels.values() for c in (*ring.gathers, *ring.scatters)}
        entries: list[Entry] = []
        for node in nodes:
            match node:
                case Comm():
                    if node.name not in woven:
                        entries.append(body.planned(node, rings))
                case Calc() if node.name in kernels:
                    entries.append(kernels[node.name])
                case Calc():
                    entries.extend(body.woven(node, rings.get(node.name)))
                case Nest():
                    entries.append(node)
        entries = merge_gradients(entries, body.merged_gradients())
        entries = merge_all_reduces(entries, body.small_all_reduces())
        if self.plan.lowering != "ideal":
            entries = gradients_after_loop(entries)
        entries = prefetch(
            entries,
            first_sync=all(low.first_sync for low in lows),
            kernels_carry=all(low.kernels_carry for low in lows),
        )
        if self.plan.lowering != "ideal":
            entries = with_relayouts(entries, self.buffers, self.sizes)
            entries = with_turned_heads(entries, self.buffers)
        return with_casts(with_passes(entries, self.buffers), self.buffers)


class _Body:
    """The decisions of one body: who reads and makes what."""

    def __init__(self, decisions: Decisions, nodes: Sequence[Node], looped: bool) -> None:
        self.context = decisions
        self.nodes = nodes
        self.looped = looped
        self.comms = [node for node in nodes if isinstance(node, Comm)]
        self.calcs = [node for node in nodes if isinstance(node, Calc)]
        self.makers = {node.op.name: node for node in self.calcs}
        self.has_loop = any(isinstance(node, Nest) for node in nodes)

    def bytes(self, comm: Comm) -> float:
        """Bytes of the full tensor on one device."""
        sizes = self.context.sizes
        return float(sizes.nbytes(comm.payload, comm.dtype))

    def planned(self, comm: Comm, rings: dict[str, list[Comm]]) -> Planned:
        """A collective on its own: its mode and algorithm."""
        _, low = self.context.over(comm.axes)
        if is_across(comm.axes):
            return self._planned_across(comm, low)
        match comm.purpose:
            case Purpose.WEIGHT if comm.kind is CollectiveKind.ALL_GATHER:
                mode = low.twice if low.gather is Mode.RING else low.gather
                waits = self.has_loop and low.outside_sync
                waits |= low.only_mlp and _MLP.isdisjoint(comm.payload.dims)
                return Planned((comm,), Mode.SYNC if waits else mode, low.gather_algorithm)
            case Purpose.GRADIENT if comm.kind in _REDUCTIONS:
                mode = Mode.SYNC if low.reduce is Mode.RING else low.reduce
                return Planned((comm,), mode, self._reduction(comm, low, rings))
            case Purpose.GRADIENT if comm.kind is CollectiveKind.ALL_GATHER and comm.asked:
                mode = Mode.SYNC if low.reduce is Mode.RING else low.reduce
                return Planned((comm,), mode, low.gather_algorithm)
        return Planned((comm,), Mode.SYNC, low.keys_algorithm if self._sums_keys(comm) else "")

    def _sums_keys(self, comm: Comm) -> bool:
        """Whether it sums, and parts, the gradients of keys or values that a kernel gathered.

        A kernel runs in a `shard_map`, whose transpose of an operand that all devices have whole is
        a `psum`: an all-reduce, of which each device then takes its part.
        """
        maker = self.makers.get(comm.maker)
        scatters = comm.kind is CollectiveKind.REDUCE_SCATTER and comm.dim in TOKENS
        return scatters and maker is not None and isinstance(maker.op, Attention)

    def _planned_across(self, comm: Comm, low: Lowering) -> Planned:
        """A collective across slices, by no algorithm but its own.

        A gather of weights runs as the one that takes its result further within the slice. The
        gradients of a layer cross beside the next layer's backward pass; those outside of the loop
        are waited for (compiled programs for two slices of v5e 4x4, libtpu 0.0.42.1).
        """
        match comm.purpose:
            case Purpose.WEIGHT if comm.kind is CollectiveKind.ALL_GATHER:
                further = next((c for c in self.comms if comm.writes[0] in c.reads), comm)
                low = self.context.over(further.axes)[1]
                waits = low.gather is Mode.RING or (self.has_loop and low.outside_sync)
                return Planned((comm,), Mode.SYNC if waits else low.gather)
            case Purpose.GRADIENT if comm.kind in _REDUCTIONS:
                waits = not self.looped and low.reduce is not Mode.ASYNC
                return Planned((comm,), Mode.SYNC if waits else Mode.ASYNC, behind=self.looped)
        return Planned((comm,), Mode.SYNC)

    def _reduction(self, comm: Comm, low: Lowering, rings: dict[str, list[Comm]]) -> str:
        """A gradient that a ring computes is not fused with its scatter: all-reduce, then slice.

        Nor is one that a grouped kernel makes where products would be rings (megablox over 16 chips
        of v6e 4x4, libtpu 0.0.42.1; over 4 of them it is).
        """
        if comm.kind is CollectiveKind.ALL_REDUCE:
            return ""
        maker = self.makers.get(comm.maker)
        if maker is None:
            return low.reduce_algorithm
        if low.major_algorithm and comm.dim != comm.payload.dims[-1]:
            return low.major_algorithm
        kernel = isinstance(maker.op, Einsum) and maker.op.ragged and low.reduce is Mode.RING
        return "all-reduce" if kernel or maker.name in rings else low.reduce_algorithm

    def woven(self, calc: Calc, comms: list[Comm] | None) -> tuple[Entry, ...]:
        """An operation, as a ring where it has a collective; what was fused to it then follows."""
        if not comms:
            return (calc,)
        if self.context.over(comms[0].axes)[1].rings_fuse:
            return (Ring(calc, comms[0]),)
        product, *groups = unfused(calc)
        return (Ring(product, comms[0]), *groups)

    def rings(self) -> dict[str, list[Comm]]:
        """The matmuls that become rings, each with its collective."""
        found: dict[str, list[Comm]] = {}
        for comm in self.comms:
            for calc in self._woven_into(comm):
                found.setdefault(calc.name, []).append(comm)
        return {name: comms[:1] for name, comms in found.items()}

    def kernel_rings(self) -> dict[str, KernelRing]:
        """The attention kernels to which keys and values travel, where the plan says so."""
        moved = [comm for comm in self.comms if self._goes_round(comm)]
        found: dict[str, KernelRing] = {}
        for calc in self.calcs:
            if isinstance(calc.op, Attention):
                gathers = tuple(c for c in moved if c.writes[0] in calc.reads)
                scatters = tuple(c for c in moved if c.reads[0] in calc.writes)
                if gathers:
                    found[calc.name] = KernelRing(calc, gathers, scatters)
        return found

    def _goes_round(self, comm: Comm) -> bool:
        """Whether a collective brings together, or sums and parts, a sequence over rings."""
        if comm.kind not in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
            return False
        shard = comm.reads[0] if comm.kind is CollectiveKind.ALL_GATHER else comm.writes[0]
        split = self.context.buffers[shard].local.split()
        axes = next((split[dim] for dim in TOKENS if dim in split), ())
        return comm.axes == axes and rings_over(self.context.plan, comm.axes)

    def _woven_into(self, comm: Comm) -> list[Calc]:
        """The matmuls that could take the collective in, when the lowering wants that."""
        if is_across(comm.axes):
            return []
        if comm.kind is CollectiveKind.ALL_GATHER:
            calcs = [calc for calc in self.calcs if comm.writes[0] in calc.reads]
        elif comm.kind is CollectiveKind.REDUCE_SCATTER and comm.maker in self.makers:
            calcs = [self.makers[comm.maker]]
        else:
            return []
        if not calcs or not all(_can_be_ring(calc.op) for calc in calcs):
            return []
        return calcs if self._wanted(comm, calcs) else []

    def _wanted(self, comm: Comm, calcs: list[Calc]) -> bool:
        group, low = self.context.over(comm.axes)
        if comm.purpose is Purpose.WEIGHT:
            return low.gather is Mode.RING and len(calcs) == 1
        if comm.purpose is Purpose.GRADIENT:
            return low.reduce is Mode.RING
        if low.rings == "always":
            return group.size > 1
        # No gather of tokens is woven in, though a scatter is: norms that are sharded by tokens
        # over `tensor`, plain models on v5e 4x4, v6e 4x4, v4 and v5p 4x4x8 (libtpu 0.0.42.1).
        scattered = comm.kind is CollectiveKind.REDUCE_SCATTER
        alone = scattered or (comm.dim not in TOKENS and self._one_projection(comm, calcs))
        return alone and all(self._pays(comm, calc, group) for calc in calcs)

    def scatters(self, comm: Comm, calc: Calc) -> bool:
        """Whether the scatter of a product's result, by tokens, would be woven into it."""
        return comm.dim in TOKENS and not is_across(comm.axes) and self._wanted(comm, [calc])

    def _one_projection(self, comm: Comm, calcs: list[Calc]) -> bool:
        """Whether what is gathered feeds one projection only, in one phase.

        Never a ring where the tensor has two users, as the inputs of gate and up or of Q, K and V
        have; the two gradients of one projection count as one. A product of two activations, as the
        dispatch to experts is, does not mind a projection of each device's own part (the router).
        """
        alone = not any(self._weight_bytes(calc) for calc in calcs)
        readers = [
            calc.op
            for calc in self.calcs
            if isinstance(calc.op, Einsum)
            and calc.phase is comm.phase
            and any(tensor.name == comm.tensor for tensor in calc.op.inputs)
            and not (alone and comm.reads[0] in calc.reads)
        ]
        projections = {op.name.removesuffix("/dx").removesuffix("/dw") for op in readers}
        return len(projections) == 1 and all(calc.phase is comm.phase for calc in calcs)

    def _pays(self, comm: Comm, calc: Calc, group: Group) -> bool:
        work = work_of(calc, self.context.sizes, self.context.buffers)
        assert isinstance(work, Matmul)
        flops = 2 * work.batch * work.m * work.k * work.n
        peak = self.context.pod.chip.device.flops[work.dtype]
        return wants_ring(group, self.bytes(comm), float(flops), peak, self._weight_bytes(calc))

    def _weight_bytes(self, calc: Calc) -> float:
        """Local bytes of the weight, or of the weight's gradient, in a matmul."""
        sizes, split = self.context.sizes, dict(calc.split)
        weights = [
            tensor
            for tensor in (*calc.op.inputs, *calc.op.outputs)
            if (tensor.primal or tensor.name) in self.context.weights
        ]
        return max(
            (float(operand_bytes(t, split, sizes)) for t in weights),
            default=0.0,
        )

    def merged_gradients(self) -> frozenset[str]:
        """Gradient reductions that are merged at the end of the body.

        Small ones are, and so are the all-reduces of shards over a further axis of the slice, of
        whatever size: one of 104 MiB over `context` for a layer whose seven matrices have been
        scattered over `fsdp` (v6e 4x4, 4 x 4, libtpu 0.0.42.1). A shard that crosses slices, and is
        gathered after, goes with the reduction that left it.
        """
        merged: set[str] = set()
        left: set[str] = set()
        scattered: set[str] = set()
        for comm in self.comms:
            if comm.purpose is not Purpose.GRADIENT or not (comm.kind in _REDUCTIONS or comm.asked):
                continue
            alone = comm.kind in _REDUCTIONS and not is_across(comm.axes)
            small = self.bytes(comm) <= SMALL_GRADIENT
            if small if alone else not left.isdisjoint(comm.reads):
                merged.add(comm.name)
                left.update(comm.writes)
            elif alone and self._is_shard(comm, scattered):
                merged.add(comm.name)
            if comm.kind is CollectiveKind.REDUCE_SCATTER:
                scattered.update(comm.writes)
        return frozenset(merged)

    def _is_shard(self, comm: Comm, scattered: Collection[str]) -> bool:
        """Whether an all-reduce sums shards of a layer, one after the other on the core."""
        waits = self.context.over(comm.axes)[1].reduce is not Mode.ASYNC
        alike = comm.kind is CollectiveKind.ALL_REDUCE and comm.reads[0] in scattered
        return self.looped and waits and alike

    def small_all_reduces(self) -> frozenset[str]:
        """All-reduces of activations that are merged with the one that follows them."""
        return frozenset(
            comm.name
            for comm in self.comms
            if comm.purpose is Purpose.ACTIVATION
            and comm.kind is CollectiveKind.ALL_REDUCE
            and self.bytes(comm) <= COMBINED
        )


def _can_be_ring(op: Op) -> bool:
    """Whether an operation can be a collective matmul; a kernel cannot."""
    return isinstance(op, Einsum) and not op.ragged
