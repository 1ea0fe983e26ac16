"""A checkpoint of a plan's state: its bytes, who writes them, and how long that takes.

As Orbax saves by default, each shard of weights and optimizer state is copied to its host's memory
and written once, by the hosts of the first replica. The copies are over before the writing begins.
"""

from dataclasses import dataclass
from math import ceil, inf

from tpusim.base.errors import PlanError
from tpusim.base.units import format_bytes, format_rate, format_seconds
from tpusim.partition import DTYPE_BYTES
from tpusim.pipeline.planned_step import planned_graph
from tpusim.program import Program, Transfer, TransferKind
from tpusim.results import PlanResult
from tpusim.training.run import BLOCKING, Checkpoints

WEIGHTS, MOMENTS = "weights", "optimizer state"
"""Categories of buffers that a checkpoint has."""

HOST_WRITE = 1.1e9
HOST_WRITE_RANGE = (0.5e9, 4e9)
"""B/s that a host writes. Derived: MaxDiffusion saved the 10.4 GB of Stable Diffusion's U-Net (12
bytes a parameter), which one host holds, in 9.47 s on 8 v5p chips and in 9.1 s on 256 v6e chips
(MLPerf Training v4.1 and v5.0). The range is assumed: a half to almost four times of it."""


READ_SHARE = 117.2 / 173.0
"""Time of reading a checkpoint over that of writing it: Orbax, 405B (arXiv:2605.23066)."""


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """What a checkpoint takes.

    total_bytes: written, each shard once.
    writers: hosts that write, those of the first replica of the state.
    host_bytes: written by each of them.
    copy_s: from the chips to their hosts' memory.
    write_s: from there to the storage.
    bound: what bounds the writing: `host`, `network` or `storage`.
    exchange_s: from a host's memory to that of another, over DCN.
    """

    total_bytes: float
    writers: int
    host_bytes: float
    copy_s: float
    write_s: float
    bound: str
    exchange_s: float = 0.0

    @property
    def words(self) -> str:
        """Bytes, writers, times and bound, as they are printed."""
        writers = f"{self.writers} host{'s' * (self.writers > 1)}"
        rate = format_rate(self.total_bytes / self.write_s, "B/s") if self.write_s else "no time"
        return (
            f"{format_bytes(self.total_bytes)} by {writers}: {format_seconds(self.copy_s)} to the "
            f"hosts, {format_seconds(self.write_s)} to the storage ({rate}, bound: {self.bound})"
        )

    @property
    def seconds(self) -> float:
        """Seconds until a checkpoint is written."""
        return self.copy_s + self.write_s

    @property
    def read_s(self) -> float:
        """Seconds until a checkpoint is read, and in the chips."""
        return self.copy_s + READ_SHARE * self.write_s


def checkpoint_cost(
    result: PlanResult, given: Checkpoints, host_write: float = HOST_WRITE
) -> CheckpointCost:
    """Return what a checkpoint of a plan's state takes.

    host_write: B/s of a host, where `given` has none.

    Raise PlanError where the storage is smaller than the checkpoints that it keeps.
    """
    pod, chip = result.pod, result.pod.chip
    held, away, total = _held(result)
    per_host = min(chip.host_chips, pod.topology.chips) * chip.devices
    if given.capacity is not None and total * given.kept > float(given.capacity):
        count = "a checkpoint" if given.kept == 1 else f"{given.kept} checkpoints"
        raise PlanError(
            f"{count} of {result.model.name} needs {format_bytes(total * given.kept)}, more than "
            f"the {format_bytes(float(given.capacity))} of train.checkpoints.capacity; write a "
            f"larger capacity, {'keep fewer checkpoints, ' * (given.kept > 1)}or store moments in "
            "a narrower dtype"
        )
    hosts = ceil(pod.devices / per_host)
    replicas = max(1, round(held * pod.devices / total))
    writers = max(1, hosts // replicas)
    host_bytes = total / writers
    rates = {
        "host": host_bytes / float(given.host or host_write),
        "network": host_bytes / (chip.dcn_bandwidth * chip.host_chips),
        "storage": total / float(given.storage or inf),
    }
    bound = max(rates, key=lambda name: rates[name])
    copy_s = (held - away) / (chip.pcie_bandwidth / chip.devices)
    exchange_s = held * per_host / (chip.dcn_bandwidth * chip.host_chips)
    if given.time_s is not None:
        return CheckpointCost(
            total, writers, host_bytes, min(copy_s, given.time_s),
            max(given.time_s - copy_s, 0.0), "given", exchange_s,
        )  # fmt: skip
    return CheckpointCost(total, writers, host_bytes, copy_s, rates[bound], bound, exchange_s)


def stop_and_write(cost: CheckpointCost, given: Checkpoints) -> tuple[float, float]:
    """Return the seconds in which no step runs, and those of writing beside the steps."""
    if given.mode == BLOCKING:
        return cost.seconds, 0.0
    return cost.copy_s, cost.write_s


def _held(result: PlanResult) -> tuple[float, float, float]:
    """Return the bytes of state on the fullest device, those among them on its host, and the total.

    Moments are sharded as their weights, so the whole state is to one device's as the model's
    parameters, without padding, to its weights. Of a step with adapters, only what is trained is
    written, as MaxText does (0.2.5, checkpointing.py).
    """
    some = bool(result.plan.adapters.rank)
    devices = [_of_device(program, trained=some) for program in result.programs]
    weights, moments = (sum(part) for part in list(zip(*devices, strict=True))[:2])
    item = DTYPE_BYTES[result.plan.dtypes.param]
    count = result.model.parameter_count
    if some:
        count = planned_graph(result.model, result.plan).trained_count
    total = count * item * (1 + moments / weights if weights else 1.0)
    fullest = max(devices, key=lambda each: each[0] + each[1])
    return fullest[0] + fullest[1], fullest[2], total


def _of_device(program: Program, *, trained: bool) -> tuple[float, float, float]:
    """Return the bytes of weights and of moments of a device, and those of moments on its host.

    trained: of the weights, those that are updated alone.
    """
    sums = dict.fromkeys((WEIGHTS, MOMENTS), 0.0)
    updated = {op.name.removeprefix("update/") for op in program.body}
    for alloc in program.resident:
        left_out = trained and alloc.category == WEIGHTS and alloc.tensor not in updated
        if alloc.category in sums and not left_out:
            sums[alloc.category] += float(alloc.bytes)
    away = sum(
        float(alloc.bytes)
        for op in program.body
        if isinstance(op, Transfer) and op.kind is TransferKind.FROM_HOST
        for alloc in op.allocs
        if alloc.category == MOMENTS
    )
    return sums[WEIGHTS], sums[MOMENTS] + away, away
