"""The rates of kernels whose time depends on the load of a server's step."""

from typing import TypeAlias

from tpusim.costs.cached_attention import CachedAttentionRates
from tpusim.costs.cached_linear import CachedLinearRates
from tpusim.hardware import Device
from tpusim.program import CachedAttentionWork, CachedLinearWork, Work

LoadRates: TypeAlias = CachedAttentionRates | CachedLinearRates


def load_rates(work: Work, device: Device) -> LoadRates | None:
    """Return the rates of a kernel; None for work that does not depend on the load."""
    if isinstance(work, CachedAttentionWork):
        return CachedAttentionRates.of(work, device)
    if isinstance(work, CachedLinearWork):
        return CachedLinearRates.of(work, device)
    return None
