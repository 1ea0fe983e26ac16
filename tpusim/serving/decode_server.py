"""Replicas that decode alone, on slices of their own, and the transfer of caches to them."""

from dataclasses import dataclass
from math import ceil

from tpusim.base.value_checks import check_from_zero
from tpusim.engine.clock import picoseconds
from tpusim.hardware import Slice
from tpusim.plan import ServingPlan
from tpusim.server.replica_pool import Router
from tpusim.serving.capacity import CacheRoom
from tpusim.serving.engines import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeServer:
    """The replicas that decode the requests which other replicas have prefilled.

    plan, pod, engine: as of `serve`; None for those of the replicas that prefill.
    replicas, router: as of `serve`.
    transfer_bandwidth: bytes per second at which a cache comes from one replica to another; 0 for
        that of the slower slice's hosts on the data-center network.
    transfer_s: seconds of a transfer besides its bytes.
    """

    plan: ServingPlan | None = None
    pod: Slice | None = None
    engine: Engine | None = None
    replicas: int = 1
    router: Router = "round-robin"
    transfer_bandwidth: float = 0.0
    transfer_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("transfer_bandwidth", "transfer_s"):
            check_from_zero(f"decode.{name}", getattr(self, name))


@dataclass(frozen=True, slots=True)
class CacheTransfer:
    """The time in which the cache of a request goes from one replica to another.

    token_bytes: of a token of a cache, all devices of a rank together.
    bandwidth: bytes per second.
    latency_s: seconds besides.
    """

    token_bytes: float
    bandwidth: float
    latency_s: float

    @classmethod
    def of(
        cls, room: CacheRoom, plan: ServingPlan, pods: tuple[Slice, Slice], to: DecodeServer
    ) -> "CacheTransfer":
        """Return the transfer from replicas with this room and plan to those that decode.

        pods: slices of a replica that prefills, and of one that decodes.
        """
        devices = plan.devices // plan.ranks
        slowest = min(pod.chips * pod.chip.dcn_bandwidth for pod in pods)
        latency = max(pod.chip.device.costs.dcn_latency for pod in pods)
        return cls(
            room.page_bytes * devices / room.page_size,
            to.transfer_bandwidth or slowest,
            to.transfer_s + latency,
        )

    def ps(self, tokens: int) -> int:
        """Return the picoseconds of the cache of so many tokens."""
        return picoseconds(self.latency_s + ceil(tokens) * self.token_bytes / self.bandwidth)
