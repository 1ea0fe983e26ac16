"""All-to-alls with a switch out against published throughputs: within 5 % in every dimension.

Zu et al., "Resiliency at Scale: Managing Google's TPUv4 Machine Learning Supercomputer" (NSDI
2024). No constant is fitted to them.
"""

import numpy as np
import pytest
from extent import thorough

from tpusim.costs import SliceLinks, route
from tpusim.hardware import Slice, Span, degraded
from tpusim.program import CollectiveKind


@pytest.mark.parametrize(
    ("shape", "published"),
    [("4x4x4", 70.0 / 75.9), ("4x4x8_twisted", 63.2 / 62.1), ("4x8x8_twisted", 53.7 / 54.3)],
)
@pytest.mark.parametrize("dim", [0, thorough(1), thorough(2)])
def test_throughput_with_a_switch_out(shape: str, published: float, dim: int) -> None:
    pod = degraded(Slice("v4", shape), "switch", dim)
    dims = pod.topology.dims
    spans = [Span(along, size) for along, size in enumerate(dims)]
    healthy = route(CollectiveKind.ALL_TO_ALL, spans, pod.topology)
    chips = np.indices(dims).reshape(3, -1).T
    found = SliceLinks.of(pod, 0).route(healthy, chips)
    assert healthy.share / found.share == pytest.approx(published, rel=0.05)
