"""The operations of a partitioned program, which one device runs in order.

A body is a tuple of operations in the order in which the core issues them. A synchronous operation
occupies the core until it is done. An asynchronous one is issued when the core passes it, runs on
its own stream once its dependencies are done, and is awaited by its dependants.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.program.numeric import Number
from tpusim.program.work import Work


class Mode(StrEnum):
    """The core during a collective: it waits, goes on, or runs a collective matmul."""

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
    """A dependency on `op` in this iteration of the loop, or in the one `distance` before."""

    op: str
    distance: int = 0


@dataclass(frozen=True, slots=True)
class Alloc:
    """An allocation of HBM: `bytes` for `tensor`, of which `padded` hold no data."""

    tensor: str
    bytes: Number
    category: str
    padded: Number = 0


@dataclass(frozen=True, slots=True)
class Flops:
    """Matrix FLOPs of all devices together, by kind.

    model: FLOPs of the unpartitioned forward and backward pass (causal attention at half).
    recompute: forward work done again for the backward pass.
    redundant: work done on several devices alike (replicated operands), or masked out.
    padding: work on the padding of dimensions that do not divide by their axes.
    optimizer: matmuls of the optimizer, on all devices that do them.
    """

    model: Number = 0
    recompute: Number = 0
    redundant: Number = 0
    padding: Number = 0
    optimizer: Number = 0

    @property
    def total(self) -> Number:
        """All FLOPs that are executed."""
        return self.model + self.recompute + self.redundant + self.padding + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """A fused operation on the core.

    source: line of the user's code that it comes from, if known; the same in other operations.
    library: line of the package that this line calls, with its function, if known.
    callers: lines of the user's code that call this line, innermost first.
    deps: operations that must be done before.
    allocs, frees: HBM allocated as it starts, and tensors freed as it ends.
    """

    name: str
    phase: Phase
    work: Work
    scope: str = ""
    source: str = ""
    library: str = ""
    callers: tuple[str, ...] = ()
    flops: Flops = field(default_factory=Flops)
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """One of several tensors that a collective moves together.

    bytes, padded: as of a collective.
    scope, source, callers: as of an operation.
    """

    scope: str
    bytes: Number
    source: str = ""
    callers: tuple[str, ...] = ()
    padded: Number = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective over axes of the mesh.

    bytes: the full tensor on one device: gathered (all-gather), unreduced (reduce-scatter,
        all-reduce), exchanged (all-to-all), or sent to both ring neighbours together (permute; to
        one neighbour with the algorithm `onward`).
    padded: bytes of these that hold no data, in a compiled program.
    tensor: dtype and dimensions of what a device has afterwards, in a compiled program.
    algorithm: the algorithm that runs, if not the kind's own (an all-gather done as an all-reduce).
    asked: False for an implicit resharding, which follows from no rule or annotation.
    hbm: shares of its operands and of its results in HBM; the rest is in VMEM or CMEM.
    parts: the tensors, if several are merged into one collective; their bytes sum to `bytes`.
    """

    name: str
    phase: Phase
    kind: CollectiveKind
    axes: tuple[str, ...]
    bytes: Number
    dtype: str
    padded: Number = 0
    mode: Mode = Mode.SYNC
    algorithm: str = ""
    scope: str = ""
    source: str = ""
    library: str = ""
    callers: tuple[str, ...] = ()
    asked: bool = True
    hbm: tuple[float, float] = (1.0, 1.0)
    parts: tuple[CollectivePart, ...] = ()
    tensor: str = ""
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


class TransferKind(StrEnum):
    """Transfers from or to HBM that run beside the core.

    `to-host` and `from-host` use PCIe, and so does `input`, the next step's batch. `dma` is with
    memory on the chip, VMEM or CMEM. `sparsecore` is a copy or gather by a SparseCore, its bytes
    read and written.
    """

    TO_HOST = "to-host"
    FROM_HOST = "from-host"
    INPUT = "input"
    DMA = "dma"
    SPARSECORE = "sparsecore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """An asynchronous copy from or to HBM.

    host_s: seconds that the host needs to make an `input`, during the step before.
    after_step: the host starts the step of an `input` only after the one before has ended.
    """

    name: str
    phase: Phase
    kind: TransferKind
    bytes: Number
    host_s: Number = 0.0
    after_step: bool = False
    scope: str = ""
    source: str = ""
    library: str = ""
    callers: tuple[str, ...] = ()
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A barrier at which the slices of `axes` wait for the slowest of them.

    Its cost is the expected maximum of their jitter. It holds the core until its dependencies, the
    transfers between the slices, are done.
    """

    name: str
    phase: Phase
    axes: tuple[str, ...]
    scope: str = ""
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOp:
    """A wait of the core for the dependencies, without work of its own."""

    name: str
    phase: Phase
    scope: str = ""
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`trips` iterations of `body`; dependencies with a distance reach back within the loop.

    allocs, frees: HBM allocated as it starts, and tensors freed as it ends.
    """

    name: str
    trips: int
    body: tuple["Op", ...]
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


Single: TypeAlias = Compute | Collective | Transfer | Barrier | WaitOp
"""An operation that is not a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A body that a pipeline's stage runs repeatedly, such as the forward pass of a microbatch.

    It ends when its own transfers are done, so each run of it takes the same time.
    """

    name: str
    body: tuple["Op", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A message of one device to its counterpart in another stage, sent when a call is done.

    It leaves beside the core, over the links between neighbours of `axes`.

    message: name, unique within the step.
    to: stage that receives it.
    """

    message: str
    to: int
    axes: tuple[str, ...]
    bytes: Number
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A run of a segment for one microbatch, once all messages in `awaits` have arrived."""

    name: str
    segment: str
    microbatch: int
    awaits: tuple[str, ...] = ()
    sends: tuple[Send, ...] = ()


Op: TypeAlias = Single | Loop

TopOp: TypeAlias = Op | Call
"""An operation of a program's own body."""


def first_phase(op: Op) -> Phase:
    """Return the phase of an operation, or that of a loop's first one."""
    return first_phase(op.body[0]) if isinstance(op, Loop) else op.phase


def walk_ops(
    body: Iterable[TopOp], segments: Iterable[Segment] = (), times: int = 1
) -> Iterator[tuple[Single, int]]:
    """Yield each operation of a body, its loops and the segments that it calls, with its runs.

    Each comes once, and those of a segment where it is called first.

    body: the operations.
    segments: bodies of the calls.
    times: runs of the body itself.
    """
    body = tuple(body)
    bodies = {segment.name: segment.body for segment in segments}
    calls = Counter(op.segment for op in body if isinstance(op, Call))
    for op in body:
        if isinstance(op, Loop):
            yield from walk_ops(op.body, times=times * op.trips)
        elif not isinstance(op, Call):
            yield op, times
        elif runs := calls.pop(op.segment, 0):
            yield from walk_ops(bodies[op.segment], times=times * runs)


def walk_allocs(
    body: Iterable[TopOp], segments: Iterable[Segment] = ()
) -> Iterator[tuple[Single, tuple[Alloc, ...]]]:
    """Yield what each operation and loop allocates, each once; of a loop with its first operation.

    body, segments: as of `walk_ops`.
    """
    for op in (*body, *(op for segment in segments for op in segment.body)):
        if isinstance(op, Loop):
            inner = [*walk_allocs(op.body)]
            yield from ((first, op.allocs) for first, _ in inner[:1])
            yield from inner
        elif not isinstance(op, Call):
            yield op, op.allocs
