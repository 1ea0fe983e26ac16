"""Ring attention: keys and values go round the devices beside the kernel (arXiv:2310.01889).

Each device works on its own block of keys first, while the block of its neighbour arrives; then on
that one, and so on. What the kernel makes of each block is merged with what it has, as a softmax
over blocks is (section 3). Backward, the sums of the keys' gradients go round after the keys, in
f32, and one hop further, which brings them home (`ringattention_pallas_tpu.py` of the authors).
Blocks go round in one direction, as `ppermute` to the next device sends them.

Where each query sees a window, only blocks that some query of the device sees are sent: from the
devices before it; and from both neighbours where a device has an early and a late part of the
sequence, or where queries see later keys.
"""

from dataclasses import dataclass, replace
from math import ceil

from tpusim import graph
from tpusim.lowering.body_entries import RingAttention
from tpusim.lowering.op_work import Buffers, flops_of, operand_bytes, work_of
from tpusim.partition import DTYPE_BYTES, CollectiveNode, Sizes
from tpusim.program import (
    Alloc,
    AttentionWork,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Flops,
    Loop,
    Number,
    Op,
    VectorWork,
    Work,
    seen_keys,
)

MERGE_FLOPS = 6.0
"""Vector operations per element: both results are scaled, added, unpacked and packed."""

SUMS = DTYPE_BYTES["f32"]

MERGED_STATISTIC_BYTES = 128 * SUMS
"""Bytes in which a kernel leaves the statistics of a query: one number in each of 128 lanes (JAX's
flash and splash attention kernels), of which the merge reads all."""

ONWARD, BOTH_WAYS = "onward", "neighbours"


def on_slowest(work: Work, balanced: bool) -> Work:
    """Return the work of the slowest device: contiguous parts are unbalanced if causal."""
    if not isinstance(work, AttentionWork) or balanced or not work.causal:
        return work
    return replace(work, late=bool(work.q_len < work.kv_len))


def complete_after(ring: RingAttention) -> str:
    """Return the operation after which the results of a ring are complete."""
    return f"{ring.name}/{'home' if ring.scatters else 'result'}"


@dataclass(frozen=True, slots=True)
class RingRoute:
    """Route of the blocks: hops of `blocks` shards each, in one direction or half in each."""

    hops: int
    blocks: int = 1
    algorithm: str = ONWARD


def ring_route(work: AttentionWork, devices: int, balanced: bool) -> RingRoute:
    """Return the route of the blocks to all devices that see them.

    A causal window of w keys reaches `ceil((w - 1) / part)` parts back, of which a device has two
    where they are balanced: an early one, which the next device sends, and a late one, which
    the device before it sends. A window of w on both sides reaches w / 2 in each direction.
    """
    whole = RingRoute(devices - 1)
    if not work.window:
        return whole
    part = float(work.kv_len) / devices
    if not work.causal:
        near = RingRoute(ceil(work.window // 2 / part), 2, BOTH_WAYS)
        return near if 2 * near.hops < devices - 1 else whole
    earlier = work.window - 1
    near = (
        RingRoute(ceil(2 * earlier / part), 1, BOTH_WAYS)
        if balanced
        else RingRoute(ceil(earlier / part))
    )
    return near if near.hops < devices - 1 else whole


def kernel_ring(
    ring: RingAttention, sizes: Sizes, buffers: Buffers, deps: tuple[Dep, ...], balanced: bool
) -> tuple[Op, ...]:
    """Return the operations of a kernel's ring; `deps` are the dependencies of its operands.

    balanced: each device has an early and a late part of the sequence.
    """
    return _RingSteps(ring, sizes, buffers, deps, balanced).ops()


class _RingSteps:
    """Builder of one ring: the device's own keys, those that arrive, and the last of them."""

    def __init__(
        self,
        ring: RingAttention,
        sizes: Sizes,
        buffers: Buffers,
        deps: tuple[Dep, ...],
        balanced: bool,
    ) -> None:
        work = on_slowest(work_of(ring.compute, sizes, buffers), balanced)
        assert isinstance(work, AttentionWork)
        assert isinstance(ring.compute.op, graph.Attention)
        self.ring, self.sizes, self.deps = ring, sizes, deps
        self.compute, self.op, self.name = ring.compute, ring.compute.op, ring.name
        self.devices = int(sizes.group(ring.gathers[0].axes))
        self.route = ring_route(work, self.devices, balanced)
        self.own, self.other = self._works(work)
        self.own_flops, self.flops = _shares(flops_of(ring.compute, sizes), self.route.hops + 1)

    def ops(self) -> tuple[Op, ...]:
        """Return all operations, in order."""
        if not self.route.hops:
            return (self._kernel(complete_after(self.ring), self.own, self.own_flops, self.deps),)
        first, passing = Dep(f"{self.name}/keys first"), f"{self.name}/keys"
        sums = [Dep(f"{self.name}/sums first")] if self.ring.scatters else []
        taken, freed = self._held()
        ops: list[Op] = [
            replace(self._keys(first.op, self.deps), allocs=(taken,)),
            self._kernel(f"{self.name}/own", self.own, self.own_flops, self.deps),
            *(self._sums(dep.op, (Dep(f"{self.name}/own"),)) for dep in sums),
        ]
        if self.route.hops > 1:
            here = (*self.deps, first, Dep(passing, 1))
            body = (self._keys(passing, here), *self._step("", here, tuple(sums)))
            ops.append(Loop(name=f"{self.name}/ring", trips=self.route.hops - 1, body=body))
        arrived = (*self.deps, Dep(passing) if self.route.hops > 1 else first)
        *before, last = self._step(" last", arrived, tuple(sums))
        return (*ops, *before, replace(last, frees=freed))

    def _step(
        self, mark: str, arrived: tuple[Dep, ...], first: tuple[Dep, ...]
    ) -> tuple[Compute | Collective, ...]:
        """Return the kernel on keys that have arrived, and the operations on its results."""
        kernel = self._kernel(f"{self.name}/step{mark}", self.other, self.flops, arrived)
        if not self.ring.scatters:
            merged = complete_after(self.ring) if mark else f"{self.name}/merge"
            return (kernel, self._compute(merged, self._merging()))
        passing = f"{self.name}/sums"
        come = Dep(passing, 0 if mark else 1)
        waits = (*first, *((come,) if self.route.hops > 1 else ()))
        add = self._compute(f"{self.name}/add{mark}", self._adding(), waits)
        sent = self._sums(passing, (Dep(add.name),))
        if mark:
            home = min(self.route.hops, self.devices - self.route.hops)
            sent = replace(sent, name=complete_after(self.ring), bytes=home * sent.bytes)
        return (kernel, self._compute(f"{self.name}/merge{mark}", self._merging()), add, sent)

    def _works(self, whole: AttentionWork) -> tuple[AttentionWork, AttentionWork]:
        """Return the kernel on a device's own keys, and on those that arrive in one hop."""
        n, hops, split = self.devices, self.route.hops, dict(self.compute.split)
        keys = sum(operand_bytes(t, split, self.sizes) for t in (self.op.key, self.op.value))
        made = sum(self._payload(collective) for collective in self.ring.scatters)
        step = replace(
            whole,
            read_bytes=whole.read_bytes - keys + keys / n,
            write_bytes=whole.write_bytes - made + made / n,
        )
        if not hops:
            return step, step
        own = replace(step, kv_len=whole.kv_len / n, late=False)
        left = (seen_keys(whole) - seen_keys(own)) / hops
        return own, replace(own, kv_len=left, causal=False, window=0)

    def _kernel(
        self, name: str, work: AttentionWork, flops: Flops, deps: tuple[Dep, ...]
    ) -> Compute:
        return replace(self._compute(name, work, deps), flops=flops)

    def _compute(self, name: str, work: Work, deps: tuple[Dep, ...] = ()) -> Compute:
        return Compute(
            name=name, phase=self.compute.phase, scope=self.op.name, work=work, deps=deps
        )

    def _keys(self, name: str, deps: tuple[Dep, ...]) -> Collective:
        """Return a hop of the keys and values."""
        nbytes = sum(self._payload(collective) for collective in self.ring.gathers)
        return self._permute(name, self.ring.gathers[0], nbytes, deps)

    def _sums(self, name: str, deps: tuple[Dep, ...]) -> Collective:
        """Return a hop of the sums of the keys' and values' gradients."""
        made = self._permute(name, self.ring.scatters[0], self._summed(), deps)
        return replace(made, dtype="f32")

    def _permute(
        self, name: str, collective: CollectiveNode, nbytes: Number, deps: tuple[Dep, ...]
    ) -> Collective:
        """Return a hop of blocks of which all devices together have `nbytes`."""
        return Collective(
            name=name,
            phase=self.compute.phase,
            kind=CollectiveKind.PERMUTE,
            axes=collective.axes,
            bytes=self.route.blocks * nbytes / self.devices,
            dtype=self.sizes.dtype(collective.dtype),
            mode=self.ring.mode,
            algorithm=self.route.algorithm,
            scope=collective.tensor,
            deps=deps,
        )

    def _payload(self, collective: CollectiveNode) -> Number:
        return self.sizes.nbytes(collective.payload, collective.dtype)

    def _summed(self) -> Number:
        """Return the bytes of the sums of all blocks."""
        return sum(
            SUMS * self.sizes.elements(collective.payload) for collective in self.ring.scatters
        )

    def _made(self) -> tuple[Number, Number]:
        """Return the elements and bytes of the result that stays: of queries or their gradient."""
        tensor = self.op.outputs[0]
        count = self.sizes.product(tensor.dims, dict(self.compute.split))
        return count, count * self.sizes.itemsize(tensor.dtype)

    def _merging(self) -> VectorWork:
        """Return the merge in f32 of one block's result with those before.

        Forward it is weighted by the statistics that the kernel leaves.
        """
        count, nbytes = self._made()
        if self.ring.scatters:
            return VectorWork(nbytes + SUMS * count, SUMS * count, 2.0 * count)
        queries = self.own.batch * self.own.heads * self.own.q_len
        read = nbytes + SUMS * count + MERGED_STATISTIC_BYTES * queries
        return VectorWork(read, SUMS * count, MERGE_FLOPS * count)

    def _adding(self) -> VectorWork:
        """Return the addition of one block's gradients to the sums that have arrived."""
        sums = self.route.blocks * self._summed() / self.devices
        made = sum(self._payload(collective) for collective in self.ring.scatters) / self.devices
        return VectorWork(sums + made * self.route.blocks, sums, 2 * sums / SUMS)

    def _held(self) -> tuple[Alloc, tuple[str, ...]]:
        """Return the buffers that the ring holds besides its operands and results.

        Blocks of keys that arrive while others are read, the kernel's result before it is merged,
        and what it is merged with in f32; backward also the sums that come and go.
        """
        count, nbytes = self._made()
        blocks = min(self.route.hops, 2) * self.route.blocks
        keys = sum(self._payload(collective) for collective in self.ring.gathers)
        held = nbytes + SUMS * count + blocks * (keys + self._summed()) / self.devices
        name = f"{self.name}/blocks"
        return Alloc(name, held, "activations"), (name,)


def _shares(flops: Flops, steps: int) -> tuple[Flops, Flops]:
    """Return the FLOPs of the first step and of each other; the first has the remainder."""
    kinds = (flops.model, flops.recompute, flops.redundant, flops.padding)
    each = [value // steps for value in kinds]
    first = [value - (steps - 1) * part for value, part in zip(kinds, each, strict=True)]
    return Flops(*first), Flops(*each)
