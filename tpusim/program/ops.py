"""The operations of a partitioned program: what one device runs, in order.

A body is a tuple of operations in the order in which the core issues them. A synchronous operation
occupies the core until it is done. An asynchronous one is issued when the core passes it, runs on
its own stream once its dependencies are done, and is waited for by whatever depends on it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from tpusim.phase import Phase
from tpusim.program.work import Number, Work


class Mode(StrEnum):
    """How a collective meets the core: it waits, it goes on, or it is woven into a matmul."""

    SYNC = "sync"
    ASYNC = "async"
    RING = "ring"


class CollectiveKind(StrEnum):
    """The collectives of the XLA programs that tpusim models."""

    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "collective-permute"
    BROADCAST = "collective-broadcast"


@dataclass(frozen=True, slots=True)
class Dep:
    """The operation waits for `op`: of this trip of the loop, or of the trip `distance` before."""

    op: str
    distance: int = 0


@dataclass(frozen=True, slots=True)
class Alloc:
    """`bytes` of HBM taken for `tensor`; `padded` of them hold no data."""

    tensor: str
    bytes: Number
    category: str
    padded: Number = 0


@dataclass(frozen=True, slots=True)
class Flops:
    """Matrix FLOPs of all devices together, each kind counted apart.

    model: what the unpartitioned forward and backward pass needs (causal attention at half).
    recompute: forward work done again for the backward pass.
    redundant: the same work done on several devices (replicated operands), or masked away.
    padding: work on the padding of dimensions that do not divide by their axes.
    """

    model: Number = 0
    recompute: Number = 0
    redundant: Number = 0
    padding: Number = 0

    @property
    def total(self) -> Number:
        """All FLOPs that are executed."""
        return self.model + self.recompute + self.redundant + self.padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """One fused operation on the core.

    source: the line of the user's code that it comes from, and library: the line of the package
    which that line calls, with its function, where they are known; so everywhere.
    """

    name: str
    phase: Phase
    work: Work
    scope: str = ""
    source: str = ""
    library: str = ""
    flops: Flops = field(default_factory=Flops)
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective over axes of the mesh.

    `bytes` is the full tensor on one device: gathered (all-gather), unreduced (reduce-scatter,
    all-reduce), exchanged (all-to-all), or sent to both ring neighbours together (permute;
    to one neighbour with the algorithm `onward`).
    `algorithm` names what runs when it is not the kind's own (an all-gather done as an all-reduce);
    `asked` is false for a resharding that no rule or annotation asked for.
    `hbm` are the shares of its operands and of its results in HBM; all else is in VMEM or CMEM.
    """

    name: str
    phase: Phase
    kind: CollectiveKind
    axes: tuple[str, ...]
    bytes: Number
    dtype: str
    mode: Mode = Mode.SYNC
    algorithm: str = ""
    scope: str = ""
    source: str = ""
    library: str = ""
    asked: bool = True
    hbm: tuple[float, float] = (1.0, 1.0)
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


class TransferKind(StrEnum):
    """Transfers of HBM beside the core.

    With the host, over PCIe; `input` is the next step's batch. `dma`: with memory on the chip, VMEM
    or CMEM. `sparsecore`: what a SparseCore copies or gathers, its bytes read and written.
    """

    TO_HOST = "to-host"
    FROM_HOST = "from-host"
    INPUT = "input"
    DMA = "dma"
    SPARSECORE = "sparsecore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """An asynchronous copy from or to HBM.

    host_s: seconds that the host needs to make an `input`, beside the step before.
    """

    name: str
    phase: Phase
    kind: TransferKind
    bytes: Number
    host_s: Number = 0.0
    scope: str = ""
    source: str = ""
    library: str = ""
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The slices of `axes` wait for the slowest of them.

    Its cost is the expected maximum of their jitter. It holds the core until its dependencies are
    done: what crossed between the slices.
    """

    name: str
    phase: Phase
    axes: tuple[str, ...]
    scope: str = ""
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The core waits for what it depends on, and does nothing itself."""

    name: str
    phase: Phase
    scope: str = ""
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`trips` runs of `body`; dependencies with a distance reach back within the same loop."""

    name: str
    trips: int
    body: tuple["Op", ...]


Single: TypeAlias = Compute | Collective | Transfer | Barrier | Wait
"""An operation that is no loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What a pipeline's stage runs again and again: the forward pass of a microbatch, say.

    It is over when its own transfers are done, so each run of it takes the same time.
    """

    name: str
    body: tuple["Op", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """`bytes` of one device that go to its twin of stage `to` when a call is done.

    They leave beside the core, over the links between neighbours of `axes`. message: its name,
    which no other send of the step has.
    """

    message: str
    to: int
    axes: tuple[str, ...]
    bytes: Number
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One run of a segment, for one microbatch, once all messages in `awaits` have arrived."""

    name: str
    segment: str
    microbatch: int
    awaits: tuple[str, ...] = ()
    sends: tuple[Send, ...] = ()


Op: TypeAlias = Single | Loop

TopOp: TypeAlias = Op | Call
"""What a program's own body is made of."""


def counted(
    body: Iterable[TopOp], segments: Iterable[Segment] = (), times: int = 1
) -> Iterator[tuple[Single, int]]:
    """Every operation of a body, of its loops and of the `segments` that it calls, once.

    With each comes how often it runs; those of a segment come where it is called first.
    """
    body = tuple(body)
    bodies = {segment.name: segment.body for segment in segments}
    calls = Counter(op.segment for op in body if isinstance(op, Call))
    for op in body:
        if isinstance(op, Loop):
            yield from counted(op.body, times=times * op.trips)
        elif not isinstance(op, Call):
            yield op, times
        elif runs := calls.pop(op.segment, 0):
            yield from counted(bodies[op.segment], times=times * runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one device of the mesh runs in a step, and what it holds in HBM all the while.

    segments: what the calls of the body run. The operations before, between and after calls are
    over, with their transfers, before the next call begins.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    body: tuple[TopOp, ...]
    resident: tuple[Alloc, ...] = ()
    segments: tuple[Segment, ...] = ()

    @property
    def devices(self) -> int:
        """Devices of the mesh: with a pipeline, those of all stages."""
        count = 1
        for _, size in self.axes:
            count *= size
        return count

    def __str__(self) -> str:
        from tpusim.program.text import text

        return text(self)
