"""What the input pipeline of a run did in a step, and how it prints.

input       jpeg, 2 batches prefetched: 1,024 records per step on each of 4 hosts; busy: read 28.1%,
            decode 100.0%, batch 22.9%, copy 1.8%; starved by decode, 109 ms per step; first batch
            after 276 ms
"""

from dataclasses import dataclass
from typing import Any

from tpusim.base.units import format_seconds
from tpusim.plan import Input

FULLY_BUSY = 0.99
"""The share of a step from which a stage is said to be busy all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputUse:
    """The input pipeline beside a repeated step; shares are of the step.

    given: the pipeline.
    hosts: that feed the slice.
    records: of each host and step.
    steady: True if the steps became periodic; False if the mean of many stands for all.
    period: steps of a period, or of the mean.
    simulated: steps that were simulated.
    host: kind of the host for which the devices wait longest.
    busy: of that host, the share of the step in which the threads of each stage work.
    starved_by: the stage for which the devices wait; empty if they do not wait.
    exposed_s: seconds of the mean step in which the devices wait for their batch.
    first_batch_s: seconds from the start until all hosts have their first batch.
    held_bytes: bytes that a host holds of batches and of its shuffle buffer.
    """

    given: Input
    hosts: int
    records: float
    steady: bool
    period: int
    simulated: int
    host: str
    busy: dict[str, float]
    starved_by: str
    exposed_s: float
    first_batch_s: float
    held_bytes: float

    def __str__(self) -> str:
        return f"{self._what()}; {self._busy()}; {self._verdict()}; {self._first()}"

    def _what(self) -> str:
        on = "on 1 host" if self.hosts == 1 else f"on each of {self.hosts:,} hosts"
        return f"{self.given}: {self.records:,.4g} records per step {on}"

    def _busy(self) -> str:
        shares = (f"{stage} {share:.1%}" for stage, share in self.busy.items())
        return f"busy: {', '.join(shares)}"

    def _verdict(self) -> str:
        if not self.starved_by:
            return "no step waits for it"
        kind = "" if self.host == "host" else f" of the {self.host}"
        text = f"starved by {self.starved_by}{kind}, {format_seconds(self.exposed_s)} per step"
        if self.busy[self.starved_by] < FULLY_BUSY:
            text += ", though no stage is busy all the time: more prefetch would hide some of it"
        return text if self.steady else f"{text} (the mean of {self.period} steps)"

    def _first(self) -> str:
        return f"first batch after {format_seconds(self.first_batch_s)}"

    def facts(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "hosts": self.hosts,
            "records": self.records,
            "steady": self.steady,
            "period_steps": self.period,
            "busy": dict(self.busy),
            "starved_by": self.starved_by,
            "exposed_s": self.exposed_s,
            "first_batch_s": self.first_batch_s,
            "held_bytes": self.held_bytes,
        }
