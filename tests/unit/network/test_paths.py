"""Shortest ways, walked link by link."""

from collections import deque
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toruses import topologies, torus

from tpusim.hardware import Topology
from tpusim.network.paths import link_loads, link_paths, shortest_moves, shortest_routes

Place = tuple[int, ...]
TWISTED = [torus(4, 4, 8, twisted=True), torus(4, 8, 8, twisted=True)]


def neighbours(topology: Topology, at: Place) -> list[Place]:
    steps = product(range(len(topology.dims)), (1, -1))
    ends = [topology.neighbour(at, dim, step) for dim, step in steps]
    return [end for end in ends if end is not None]


def distances(topology: Topology, source: Place) -> dict[Place, int]:
    """Links to every chip, breadth first."""
    found, waiting = {source: 0}, deque([source])
    while waiting:
        at = waiting.popleft()
        for end in neighbours(topology, at):
            if end not in found:
                found[end] = found[at] + 1
                waiting.append(end)
    return found


def walked(topology: Topology, start: Place, way: Place, order: tuple[int, ...]) -> Place | None:
    """Where a way leads, one link after another; None if it runs off a mesh."""
    at: Place | None = start
    for dim in order:
        for _ in range(abs(way[dim])):
            at = None if at is None else topology.neighbour(at, dim, 1 if way[dim] > 0 else -1)
    return at


def two_chips(data: st.DataObject, topology: Topology) -> tuple[Place, Place]:
    chip = st.tuples(*(st.integers(0, size - 1) for size in topology.dims))
    return data.draw(chip), data.draw(chip)


@given(topologies(128), st.data())
def test_every_minimal_way_arrives_in_any_order_and_is_shortest(
    topology: Topology, data: st.DataObject
) -> None:
    start, end = two_chips(data, topology)
    offset = tuple(there - here for here, there in zip(start, end, strict=True))
    least = distances(topology, start)[end]
    for way in shortest_routes(offset, topology):
        assert sum(map(abs, way)) == least
        order = data.draw(st.permutations(range(len(way))))
        assert walked(topology, start, way, tuple(order)) == end


@given(topologies(128), st.data())
def test_shortest_moves_are_one_of_the_minimal_ways(
    topology: Topology, data: st.DataObject
) -> None:
    start, end = (np.array([each]) for each in two_chips(data, topology))
    ways = shortest_routes(tuple((end - start)[0].tolist()), topology)
    for prefer in (1, -1):
        moves = shortest_moves(start, end, topology, prefer)
        assert tuple(moves[0].tolist()) in ways


@pytest.mark.parametrize("topology", TWISTED, ids=str)
def test_all_ways_on_a_twisted_torus_are_shortest_and_arrive(topology: Topology) -> None:
    for source in ((0, 0, 0), (3, 2, 5)):
        for end, least in distances(topology, source).items():
            offset = tuple(there - here for here, there in zip(source, end, strict=True))
            for way in shortest_routes(offset, topology):
                assert sum(map(abs, way)) == least
                assert walked(topology, source, way, (2, 0, 1)) == end


def test_ties_go_the_way_that_is_preferred() -> None:
    starts, ends = np.array([[0], [6], [0]]), np.array([[4], [2], [3]])
    for prefer in (1, -1):
        moves = shortest_moves(starts, ends, torus(8), prefer)
        assert moves.ravel().tolist() == [4 * prefer, 4 * prefer, 3]


def test_two_ways_round_are_as_short_half_way_round_and_on_no_line() -> None:
    assert shortest_routes((4,), torus(8)) == ((-4,), (4,))
    assert shortest_routes((3,), torus(8)) == ((3,),)
    assert shortest_routes((5,), torus(8)) == ((-3,),)
    assert shortest_routes((4,), torus(8, wrap=False)) == ((4,),)


@given(topologies(128), st.data())
def test_a_step_is_the_neighbour(topology: Topology, data: st.DataObject) -> None:
    at, _ = two_chips(data, topology)
    dim = data.draw(st.integers(0, len(at) - 1))
    sign = data.draw(st.sampled_from([1, -1]))
    end = topology.neighbour(at, dim, sign)
    if end is not None:
        assert tuple(topology.step(np.array([at]), dim, sign)[0].tolist()) == end


def test_links_are_numbered_by_dimension_direction_and_the_chip_they_leave() -> None:
    start, move = np.array([[1, 3]]), np.array([[-1, 2]])
    (path,) = link_paths(start, move, torus(2, 4), (1, 0))
    shape = (2, 2, 2, 4)
    expected = [(1, 0, 1, 3), (1, 0, 1, 0), (0, 1, 1, 1)]
    assert [tuple(map(int, np.unravel_index(link, shape))) for link in path] == expected


@given(topologies(), st.data())
def test_loads_are_the_weights_of_all_walkers_on_a_link(
    topology: Topology, data: st.DataObject
) -> None:
    ends = [two_chips(data, topology) for _ in range(3)]
    starts, stops = (np.array([each[at] for each in ends]) for at in (0, 1))
    weights = np.array([1.0, 2.0, 4.0])
    moves, order = shortest_moves(starts, stops, topology), range(len(topology.dims))
    total = np.zeros(2 * len(topology.dims) * topology.chips)
    for path, weight in zip(link_paths(starts, moves, topology, order), weights, strict=True):
        for link in path:
            total[link] += weight
    np.testing.assert_array_equal(
        link_loads(starts, moves, weights, topology, order).ravel(), total
    )
