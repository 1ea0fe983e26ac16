"""The time of a server: steps by what they compute, the host between them, and idle time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tpusim.results import Result, limits
from tpusim.server import Policy, Served
from tpusim.serving.metrics import PICO, answered, window_ps

HOST = "host"


@dataclass(frozen=True, slots=True)
class ServerTime:
    """The seconds of all replicas by what they do; together they are the duration of each.

    prefill_s: the devices in steps with tokens of prompts, whether others decode in them or not.
    decode_s: the devices in steps that decode only.
    host_s: the host between steps.
    idle_s: no request is there.
    """

    prefill_s: float
    decode_s: float
    host_s: float
    idle_s: float

    @property
    def busy_s(self) -> float:
        """The time in steps, with the host between them."""
        return self.prefill_s + self.decode_s + self.host_s

    def facts(self) -> dict[str, float]:
        """Return the seconds by name."""
        return {
            "prefill": self.prefill_s,
            "decode": self.decode_s,
            "host": self.host_s,
            "idle": self.idle_s,
        }


def time_of(served: Served, policy: Policy, replicas: int = 1) -> ServerTime:
    """Return the time of a server by what it does. A host beside the devices counts with them.

    policy: with the time of the host between two steps.
    """
    spans = served.spans
    start, end = window_ps(answered(served))
    prefills = spans.prefills > 0
    each = 0 if policy.schedule_ps else spans.decodes * policy.sequence_ps
    host = spans.steps * (policy.host_ps + each)
    between = np.minimum(host, spans.busy_ps)
    devices = spans.busy_ps - between
    return ServerTime(
        prefill_s=int(devices[prefills].sum()) * PICO,
        decode_s=int(devices[~prefills].sum()) * PICO,
        host_s=int(between.sum()) * PICO,
        idle_s=max((end - start) * replicas - int(spans.busy_ps.sum()), 0) * PICO,
    )


def bounds_of(time: ServerTime, prefill: Result | None, decode: Result | None) -> dict[str, float]:
    """Return fractions of the time in steps by the resource that bounds it, the largest first.

    prefill, decode: steps of each kind, whose critical paths are taken for all of the kind.
    """
    whole = time.busy_s
    if not whole:
        return {}
    found = {HOST: time.host_s / whole}
    for seconds, step in ((time.prefill_s, prefill), (time.decode_s, decode)):
        for name, share in _shares(step).items():
            found[name] = found.get(name, 0.0) + seconds / whole * share
    ranked = sorted(found.items(), key=lambda each: -each[1])
    return {name: share for name, share in ranked if share}


def _shares(step: Result | None) -> Mapping[str, float]:
    if step is None:
        return {"steps": 1.0}
    shares: dict[str, float] = {}
    for limit in limits(step):
        shares[limit.resource] = shares.get(limit.resource, 0.0) + limit.share
    return shares
