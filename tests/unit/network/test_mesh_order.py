"""Permutes in the order of the mesh: closed forms of what their links carry."""

from math import prod

import numpy as np
import pytest
from toruses import loads_of, torus, whole

from tpusim.hardware import Span
from tpusim.network import Algorithm, link_loads_of, messages, pattern
from tpusim.program import CollectiveKind as Kind

IN_ORDER, NEIGHBOURS = Algorithm.MESH_ORDER, Algorithm.NEIGHBOURS


@pytest.mark.parametrize("size", [3, 4, 8, 16])
def test_on_a_ring_of_one_dimension_they_go_to_the_neighbours(size: int) -> None:
    """Half of the bytes on every link, one hop: the pattern of rings of activations."""
    spans, topology = (Span(0, size),), torus(size, 2)
    loads = link_loads_of(Kind.PERMUTE, IN_ORDER, spans, topology)
    np.testing.assert_allclose(loads[0], 0.5)
    np.testing.assert_allclose(loads[1], 0)
    found, near = (pattern(Kind.PERMUTE, how, spans, topology) for how in (IN_ORDER, NEIGHBOURS))
    assert dict(found.links) == dict(near.links)
    assert found.seconds(1e6, 45e9, 1e-6) == pytest.approx(near.seconds(1e6, 45e9, 1e-6))


def test_on_a_line_the_ends_send_each_other_through_all_the_others() -> None:
    """0-1-2-3: of each step on, half the bytes; back from 3 to 0, another half on each link."""
    loads = link_loads_of(Kind.PERMUTE, IN_ORDER, (Span(0, 4),), torus(4, wrap=False))
    np.testing.assert_allclose(loads[0, 0], [1, 1, 1, 0])
    np.testing.assert_allclose(loads[0, 1], [0, 1, 1, 1])
    found = pattern(Kind.PERMUTE, IN_ORDER, (Span(0, 4),), torus(4, wrap=False))
    assert dict(found.links) == {"ici:x+": 1, "ici:x-": 1}
    assert max(hops for _, hops in found.paths) == 3


def test_a_cube_of_two_turns_over_all_of_its_dimensions() -> None:
    """000, 001, 010, ..., 111: z turns with each step, y with every second, x with every fourth.

    Without wraparound, each message to the next crosses one link of z; 4 of 8 also one of y, and 2
    of 8 (011 to 100, 111 to 000) all three. So do those to the previous.
    """
    topology = torus(2, 2, 2, wrap=False)
    spans = whole(topology)
    loads = link_loads_of(Kind.PERMUTE, IN_ORDER, spans, topology)
    assert loads.sum(axis=(1, 2, 3, 4)).tolist() == [0.5 * 4, 0.5 * 8, 0.5 * 16]
    np.testing.assert_allclose(loads, loads_of(messages(Kind.PERMUTE, IN_ORDER, spans, topology),
                                               topology))  # fmt: skip
    found = pattern(Kind.PERMUTE, IN_ORDER, spans, topology)
    assert max(hops for _, hops in found.paths) == 3
    assert len(messages(Kind.PERMUTE, IN_ORDER, spans, topology)) == 2 * prod(topology.dims)
