"""Ring attention: keys and values go round the devices beside the kernel (arXiv:2310.01889).

Each device works on its own block of keys first, while the block of its neighbour arrives; then on
that one, and so on. What the kernel makes of each block is merged with what it has, as a softmax
over blocks is (section 3). Backward, the sums of the keys' gradients go round behind the keys, in
f32, and one hop further, which brings them home (`ringattention_pallas_tpu.py` of the authors).
Blocks go one way round, as `ppermute` to the next device sends them.

Where each query sees a window, only blocks that some query of the device sees travel: from the
devices before it; and from both neighbours where a device has an early and a late part of the
sequence, or where queries see keys behind them.
"""

from dataclasses import dataclass, replace
from math import ceil

from tpusim import graph
from tpusim.partition.passes import KernelRing
from tpusim.partition.plan import Plan
from tpusim.partition.sizes import DTYPE_BYTES, Sizes
from tpusim.partition.template import Comm
from tpusim.partition.work import Buffers, flops_of, operand_bytes, work_of
from tpusim.program import (
    Alloc,
    Attention,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Flops,
    Loop,
    Mode,
    Number,
    Op,
    Vector,
    Work,
)
from tpusim.program.keys import seen_keys

MERGE_FLOPS = 6.0
"""Vector operations an element: both results are scaled, added, unpacked and packed."""

SUMS = DTYPE_BYTES["f32"]

STATISTIC_BYTES = 128 * SUMS
"""Bytes in which a kernel leaves the statistics of a query: one number in each of 128 lanes (JAX's
flash and splash attention kernels), of which the merge reads all."""

ONWARD, BOTH_WAYS = "onward", "neighbours"


def on_slowest(work: Work, plan: Plan) -> Work:
    """The work of the slowest device: contiguous parts of a causal sequence are not balanced."""
    if not isinstance(work, Attention) or plan.context_balanced or not work.causal:
        return work
    return replace(work, late=bool(work.q_len < work.kv_len))


def complete_after(ring: KernelRing) -> str:
    """The operation after which the results of a ring are complete."""
    return f"{ring.name}/{'home' if ring.scatters else 'result'}"


@dataclass(frozen=True, slots=True)
class Way:
    """How blocks travel: so many hops, each of `blocks` shards, one way or half of it each way."""

    hops: int
    blocks: int = 1
    algorithm: str = ONWARD


def way_round(work: Attention, devices: int, balanced: bool) -> Way:
    """The way of the blocks to all devices that see them.

    A causal window of w keys reaches `ceil((w - 1) / part)` parts back, of which a device has two
    where they are balanced: an early one, which the device behind it sends, and a late one, which
    the device before it sends. A window of w on both sides reaches w / 2 each way.
    """
    whole = Way(devices - 1)
    if not work.window:
        return whole
    part = float(work.kv_len) / devices
    if not work.causal:
        near = Way(ceil(work.window // 2 / part), 2, BOTH_WAYS)
        return near if 2 * near.hops < devices - 1 else whole
    behind = work.window - 1
    near = Way(ceil(2 * behind / part), 1, BOTH_WAYS) if balanced else Way(ceil(behind / part))
    return near if near.hops < devices - 1 else whole


def kernel_ring(
    ring: KernelRing, sizes: Sizes, buffers: Buffers, deps: tuple[Dep, ...], plan: Plan
) -> tuple[Op, ...]:
    """The operations of a kernel's ring; `deps` are what its operands wait for."""
    return _Steps(ring, sizes, buffers, deps, plan).ops()


class _Steps:
    """The steps of one ring: the device's own keys, those that arrive, and the last of them."""

    def __init__(
        self, ring: KernelRing, sizes: Sizes, buffers: Buffers, deps: tuple[Dep, ...], plan: Plan
    ) -> None:
        work = on_slowest(work_of(ring.calc, sizes, buffers), plan)
        assert isinstance(work, Attention)
        assert isinstance(ring.calc.op, graph.Attention)
        self.ring, self.sizes, self.deps = ring, sizes, deps
        self.calc, self.op, self.name = ring.calc, ring.calc.op, ring.name
        self.devices = int(sizes.group(ring.gathers[0].axes))
        self.way = way_round(work, self.devices, plan.context_balanced)
        self.own, self.other = self._works(work)
        self.own_flops, self.flops = _shares(flops_of(ring.calc, sizes), self.way.hops + 1)

    def ops(self) -> tuple[Op, ...]:
        """All operations, in order."""
        if not self.way.hops:
            return (self._kernel(complete_after(self.ring), self.own, self.own_flops, self.deps),)
        first, passing = Dep(f"{self.name}/keys first"), f"{self.name}/keys"
        sums = [Dep(f"{self.name}/sums first")] if self.ring.scatters else []
        taken, freed = self._held()
        ops: list[Op] = [
            replace(self._keys(first.op, self.deps), allocs=(taken,)),
            self._kernel(f"{self.name}/own", self.own, self.own_flops, self.deps),
            *(self._sums(dep.op, (Dep(f"{self.name}/own"),)) for dep in sums),
        ]
        if self.way.hops > 1:
            here = (*self.deps, first, Dep(passing, 1))
            body = (self._keys(passing, here), *self._step("", here, tuple(sums)))
            ops.append(Loop(name=f"{self.name}/ring", trips=self.way.hops - 1, body=body))
        arrived = (*self.deps, Dep(passing) if self.way.hops > 1 else first)
        *before, last = self._step(" last", arrived, tuple(sums))
        return (*ops, *before, replace(last, frees=freed))

    def _step(
        self, mark: str, arrived: tuple[Dep, ...], first: tuple[Dep, ...]
    ) -> tuple[Compute | Collective, ...]:
        """The kernel on keys that have arrived, and what becomes of its results."""
        kernel = self._kernel(f"{self.name}/step{mark}", self.other, self.flops, arrived)
        if not self.ring.scatters:
            merged = complete_after(self.ring) if mark else f"{self.name}/merge"
            return (kernel, self._compute(merged, self._merging()))
        passing = f"{self.name}/sums"
        come = Dep(passing, 0 if mark else 1)
        waits = (*first, *((come,) if self.way.hops > 1 else ()))
        add = self._compute(f"{self.name}/add{mark}", self._adding(), waits)
        sent = self._sums(passing, (Dep(add.name),))
        if mark:
            home = min(self.way.hops, self.devices - self.way.hops)
            sent = replace(sent, name=complete_after(self.ring), bytes=home * sent.bytes)
        return (kernel, self._compute(f"{self.name}/merge{mark}", self._merging()), add, sent)

    def _works(self, whole: Attention) -> tuple[Attention, Attention]:
        """The kernel on a device's own keys, and on those that arrive in one hop."""
        n, hops, split = self.devices, self.way.hops, dict(self.calc.split)
        keys = sum(operand_bytes(t, split, self.sizes) for t in (self.op.key, self.op.value))
        made = sum(self._payload(comm) for comm in self.ring.scatters)
        step = replace(
            whole, read_bytes=whole.read_bytes - keys + keys / n,
            write_bytes=whole.write_bytes - made + made / n,
        )  # fmt: skip
        if not hops:
            return step, step
        own = replace(step, kv_len=whole.kv_len / n, late=False)
        left = (seen_keys(whole) - seen_keys(own)) / hops
        return own, replace(own, kv_len=left, causal=False, window=0)

    def _kernel(self, name: str, work: Attention, flops: Flops, deps: tuple[Dep, ...]) -> Compute:
        return replace(self._compute(name, work, deps), flops=flops)

    def _compute(self, name: str, work: Work, deps: tuple[Dep, ...] = ()) -> Compute:
        return Compute(
            name=name, phase=self.calc.phase, scope=self.op.name, work=work, deps=deps
        )  # fmt: skip

    def _keys(self, name: str, deps: tuple[Dep, ...]) -> Collective:
        """A hop of the keys and values."""
        nbytes = sum(self._payload(comm) for comm in self.ring.gathers)
        return self._permute(name, self.ring.gathers[0], nbytes, deps)

    def _sums(self, name: str, deps: tuple[Dep, ...]) -> Collective:
        """A hop of the sums of the keys' and values' gradients."""
        made = self._permute(name, self.ring.scatters[0], self._summed(), deps)
        return replace(made, dtype="f32")

    def _permute(self, name: str, comm: Comm, nbytes: Number, deps: tuple[Dep, ...]) -> Collective:
        """A hop of blocks of which all devices together have `nbytes`."""
        return Collective(
            name=name, phase=self.calc.phase, kind=CollectiveKind.PERMUTE, axes=comm.axes,
            bytes=self.way.blocks * nbytes / self.devices, dtype=self.sizes.dtype(comm.dtype),
            mode=Mode.RING, algorithm=self.way.algorithm, scope=comm.tensor, deps=deps,
        )  # fmt: skip

    def _payload(self, comm: Comm) -> Number:
        return self.sizes.nbytes(comm.payload, comm.dtype)

    def _summed(self) -> Number:
        """Bytes of the sums of all blocks."""
        return sum(SUMS * self.sizes.elements(comm.payload) for comm in self.ring.scatters)

    def _made(self) -> tuple[Number, Number]:
        """Elements of the result that stays (of the queries, or their gradient), and its bytes."""
        tensor = self.op.outputs[0]
        count = self.sizes.product(tensor.dims, dict(self.calc.split))
        return count, count * self.sizes.itemsize(tensor.dtype)

    def _merging(self) -> Vector:
        """What the kernel made of one block, merged in f32 with what there is.

        Forward it is weighted by the statistics that the kernel leaves.
        """
        count, nbytes = self._made()
        if self.ring.scatters:
            return Vector(nbytes + SUMS * count, SUMS * count, 2.0 * count)
        queries = self.own.batch * self.own.heads * self.own.q_len
        read = nbytes + SUMS * count + STATISTIC_BYTES * queries
        return Vector(read, SUMS * count, MERGE_FLOPS * count)

    def _adding(self) -> Vector:
        """One block's gradients of keys and values, added to the sums that have arrived."""
        sums = self.way.blocks * self._summed() / self.devices
        made = sum(self._payload(comm) for comm in self.ring.scatters) / self.devices
        return Vector(sums + made * self.way.blocks, sums, 2 * sums / SUMS)

    def _held(self) -> tuple[Alloc, tuple[str, ...]]:
        """What the ring holds besides its operands and results, from its first hop to its last.

        Blocks of keys that arrive while others are read, the kernel's result before it is merged,
        and what it is merged with in f32; backward also the sums that come and go.
        """
        count, nbytes = self._made()
        blocks = min(self.way.hops, 2) * self.way.blocks
        keys = sum(self._payload(comm) for comm in self.ring.gathers)
        held = nbytes + SUMS * count + blocks * (keys + self._summed()) / self.devices
        name = f"{self.name}/blocks"
        return Alloc(name, held, "activations"), (name,)


def _shares(flops: Flops, steps: int) -> tuple[Flops, Flops]:
    """The FLOPs of the first step and of each other: as many, the first with what is left over."""
    kinds = (flops.model, flops.recompute, flops.redundant, flops.padding)
    each = [value // steps for value in kinds]
    first = [value - (steps - 1) * part for value, part in zip(kinds, each, strict=True)]
    return Flops(*first), Flops(*each)
