"""What stages send each other, on every single link."""

import numpy as np
import pytest

from tpusim.hardware import Slice, Span
from tpusim.network import chain_positions, shift_loads, shift_pattern

TOPOLOGY = Slice("v5p", "4x4x8").topology
SPANS = {
    "a ring": (Span(0, 4),), "two dimensions": (Span(0, 4), Span(1, 4)), "a line": (Span(2, 4),),
    "every second": (Span(2, 4, 2),), "a pair": (Span(2, 2, 4),),
}  # fmt: skip
spans = pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)


@spans
def test_each_place_of_the_chain_is_on_as_many_chips(spans: tuple[Span, ...]) -> None:
    places = chain_positions(spans, TOPOLOGY)
    size = int(np.prod([span.size for span in spans]))
    assert places.shape == TOPOLOGY.dims
    assert np.bincount(places.ravel()).tolist() == [TOPOLOGY.chips // size] * size


@spans
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_the_busiest_link_is_that_of_the_route(
    spans: tuple[Span, ...], closed: bool, backward: bool
) -> None:
    size = int(np.prod([span.size for span in spans]))
    sent, none = np.ones(size), np.zeros(size)
    if not closed:
        sent[0 if backward else -1] = 0
    ways = (none, sent) if backward else (sent, none)
    loads = shift_loads(spans, TOPOLOGY, *ways)
    names = [f"ici:{name}{way}" for name in TOPOLOGY.names for way in "+-"]
    most = dict(zip(names, loads.reshape(6, -1).max(axis=1), strict=True))
    links, _ = shift_pattern(spans, TOPOLOGY, backward, closed)
    assert {link: load for link, load in most.items() if load} == pytest.approx(dict(links))


def test_only_the_stage_that_sends_loads_its_link() -> None:
    sent = np.array([0.0, 5.0, 0.0, 0.0])
    loads = shift_loads(SPANS["a ring"], TOPOLOGY, sent, np.zeros(4))
    assert set(np.unique(loads[0, 0, 1])) == {5.0}
    assert loads.sum() == 5 * 4 * 8


def test_one_chip_sends_nothing() -> None:
    assert not chain_positions((), TOPOLOGY).any()
    assert not shift_loads((), TOPOLOGY, np.ones(1), np.ones(1)).any()
