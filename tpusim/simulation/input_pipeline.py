"""From an input pipeline and a plan to the stages of the hosts, with their times.

With r records in a block, a stage of w threads that each take t seconds for a record is s = w // r
servers (at least one), each a team of w / s threads that takes `r x t x s / w` for a block: the
throughput is w / t records a second whatever r is, and where a block is one record, each thread has
its own. Batches are cut into at most `MOST_BLOCKS` blocks, so fractions of records pass through the
stages; whole batches are what is handed on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod, sqrt

from tpusim.base.errors import PlanError
from tpusim.base.units import format_bytes
from tpusim.engine import HostLine, HostStage, picoseconds
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.partition import LocalShape, Sizes
from tpusim.pipeline.planned_step import planned_graph
from tpusim.plan import DEFAULT_RULES, Input, Plan, Sharding, axes_of
from tpusim.program import Program, Transfer, TransferKind, walk_ops

MOST_BLOCKS = 64
"""Blocks of the part of a batch that a host makes."""

READ, DECOMPRESS, DECODE, BATCH, COPY = "read", "decompress", "decode", "batch", "copy"
"""The stages, in order."""


@dataclass(frozen=True, slots=True)
class HostPart:
    """What one host does for a step.

    hosts: that feed the slice.
    chips: that a host feeds.
    records: of a host and step; those that two hosts need are made by both.
    record_bytes: of a record in a batch.
    plain_bytes: of a record before compression.
    stored_bytes: of a record as it is read.
    copied: bytes that cross the PCIe link of one chip.
    """

    hosts: int
    chips: int
    records: float
    record_bytes: float
    plain_bytes: float
    stored_bytes: float
    copied: float


def host_part(
    model: Architecture, plan: Plan, pod: Slice, given: Input, program: Program
) -> HostPart:
    """Return what one host does for a step.

    program: of a device that reads the batch.

    Raise PlanError for an input of tokens where the model reads none.
    """
    chips = min(given.host_chips or pod.chip.host_chips, pod.chips)
    hosts = ceil(pod.chips / chips)
    graph = planned_graph(model, plan)
    whole = Sizes(graph.sizes, {}, compute_dtype=plan.dtypes.of("compute"))
    nbytes = sum(
        float(whole.nbytes(LocalShape(tensor.dims, ((),) * len(tensor.dims)), tensor.dtype))
        for tensor in graph.given
    )
    parts = (
        float(op.bytes)
        for op, _ in walk_ops(program.body, program.segments)
        if isinstance(op, Transfer) and op.kind is TransferKind.INPUT
    )
    return HostPart(
        hosts=hosts,
        chips=chips,
        records=plan.global_batch / min(hosts, _batch_shards(plan.sharding)),
        record_bytes=nbytes * plan.microbatches / plan.global_batch,
        plain_bytes=given.plain_bytes(plan.seq_len),
        stored_bytes=given.stored_bytes(plan.seq_len),
        copied=sum(parts) * pod.chip.devices,
    )


def _batch_shards(sharding: Sharding) -> int:
    """Return the parts of the batch over the devices."""
    axes = axes_of(sharding.rules.get("act_batch", DEFAULT_RULES["act_batch"]))
    return prod(size for axis, size in sharding.active_axes.items() if axis in axes)


def host_lines(pod: Slice, given: Input, part: HostPart) -> tuple[HostLine, ...]:
    """Return the hosts as lines of stages, one for each kind that differs.

    Raise PlanError for more threads than vCPUs, for fewer files than hosts, and for batches that no
    host can hold.
    """
    _check_memory(pod, given, part)
    decompressors, workers = _threads(pod, given, part)
    blocks = min(ceil(part.records), MOST_BLOCKS)
    stages = _Stages(pod, given, part, part.records / blocks)
    lines = []
    for name, count, readers, slow in _kinds(given, part.hosts):
        found = (
            stages.read(readers, slow),
            stages.threads(DECOMPRESS, stages.decompress_s * slow, decompressors),
            stages.threads(DECODE, given.record_decode_s * slow, workers),
            stages.threads(BATCH, part.record_bytes / given.batch_rate * slow, 1),
            HostStage(COPY, picoseconds(part.copied / pod.chip.pcie_bandwidth), whole=True),
        )
        kept = tuple(stage for stage in found if stage.block_ps) or found[-1:]
        lines.append(HostLine(name, kept, blocks, count))
    return tuple(lines)


def fill_seconds(pod: Slice, given: Input, part: HostPart) -> float:
    """Return the seconds that the slowest host takes to fill its shuffle buffer."""
    stages = _Stages(pod, given, part, 1.0)
    decompressors, _ = _threads(pod, given, part)
    least = min(readers for _, _, readers, _ in _kinds(given, part.hosts))
    each = max(stages.read_s(least) / least, stages.decompress_s / decompressors)
    return given.shuffle * each * given.slow_host


def _kinds(given: Input, hosts: int) -> Iterator[tuple[str, int, int, float]]:
    """Yield name, number, readers and slowness of the hosts that differ; the slow one last."""
    files = given.files
    if files is not None and files < hosts:
        raise PlanError(
            f"input.files is {files}, but {hosts} hosts read, so some of them would have none; "
            f"write at least {hosts}"
        )
    fewest, more = (given.readers, 0) if files is None else divmod(files, hosts)
    sorts = [(fewest + 1, more), (fewest, hosts - more)]
    if min(given.readers, fewest + 1) == min(given.readers, fewest):
        sorts = [(fewest, hosts)]
    last = (min(given.readers, sorts[-1][0]), given.slow_host)
    for share, count in sorts:
        readers = min(given.readers, share)
        alike = count - (given.slow_host > 1 and share == sorts[-1][0])
        if alike:
            words = "host" if len(sorts) == 1 else f"host with {share} file{'s' * (share > 1)}"
            yield words, alike, readers, 1.0
    if given.slow_host > 1:
        yield "slow host", 1, *last


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages of a host, with blocks of some records."""

    pod: Slice
    given: Input
    part: HostPart
    block: float

    @property
    def decompress_s(self) -> float:
        """Seconds of one thread to decompress a record."""
        return self.part.plain_bytes / self.given.decompress_bandwidth

    def read_s(self, readers: int) -> float:
        """Return the seconds of one of the readers for a record."""
        given = self.given
        alone = given.read_latency / given.read_bytes + 1 / given.reader_bandwidth
        network = self.pod.chip.dcn_bandwidth * self.part.chips
        shared = readers / (given.storage_bandwidth or network)
        return self.part.stored_bytes * max(alone, shared)

    def read(self, readers: int, slow: float) -> HostStage:
        """Return the stage that reads; the times of several reads of a block average out."""
        stage = self.threads(READ, self.read_s(readers) * slow, readers)
        reads = max(self.block * self.part.stored_bytes / self.given.read_bytes, 1.0)
        return stage._replace(variation=self.given.read_variation / sqrt(reads))

    def threads(self, name: str, record_s: float, threads: int) -> HostStage:
        """Return a stage of threads that each take `record_s` for a record."""
        servers = max(int(threads / self.block), 1)
        return HostStage(name, picoseconds(self.block * record_s * servers / threads), servers)


def _threads(pod: Slice, given: Input, part: HostPart) -> tuple[int, int]:
    """Return the threads that decompress and that decode.

    Those that are not given share the vCPUs that are left as their work is.
    """
    cpus = _cpus(pod, part)
    unpack_s = part.plain_bytes / given.decompress_bandwidth
    unpacking = given.decompressors if unpack_s else 0
    if cpus is None:
        if unpacking is None or given.workers is None:
            key = "workers" if given.workers is None else "decompressors"
            raise PlanError(
                f"input.{key} is not given, and the vCPUs of a host of {pod.chip.name} are not "
                "known; write the number of threads"
            )
        return max(unpacking, 1), given.workers
    if unpacking is None:
        free = cpus - 1 if given.workers is None else cpus - given.workers
        share = unpack_s / (unpack_s + given.record_decode_s) if given.workers is None else 1.0
        unpacking = max(min(round(cpus * share), free), 1)
    workers = max(cpus - unpacking, 1) if given.workers is None else given.workers
    if unpacking + workers > cpus:
        asked = f"{workers} threads that decode"
        asked += f" and {unpacking} that decompress" if unpacking else ""
        raise PlanError(
            f"the input has {asked} on a host of {part.chips} {pod.chip.name} chips, which has "
            f"{cpus} vCPUs; lower input.workers"
        )
    return max(unpacking, 1), workers


def _cpus(pod: Slice, part: HostPart) -> int | None:
    """Return the vCPUs of a host: the chips' share, where it is a virtual machine of some."""
    cpus = pod.chip.host_cpus
    return None if cpus is None else max(cpus * part.chips // pod.chip.host_chips, 1)


def held_bytes(given: Input, part: HostPart) -> float:
    """Return the bytes that a host holds: a batch that is copied, those ahead, what is shuffled."""
    batches = (given.prefetch + 1) * part.records * part.record_bytes
    return batches + given.shuffle * part.plain_bytes


def _check_memory(pod: Slice, given: Input, part: HostPart) -> None:
    have = pod.chip.host_bytes
    if have is None:
        return
    share = have * part.chips / pod.chip.host_chips
    need = held_bytes(given, part)
    if need > share:
        batch = format_bytes(part.records * part.record_bytes)
        raise PlanError(
            f"the input needs {format_bytes(need)} on a host that has {format_bytes(share)}: "
            f"{given.prefetch + 1} batches of {batch} and {given.shuffle} shuffled records; lower "
            "input.prefetch, input.shuffle or plan.global_batch"
        )
