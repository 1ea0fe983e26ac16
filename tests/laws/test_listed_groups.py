"""Laws of groups that are listed device by device, on random tori."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torus import link_loads, run_loads, shortest_moves
from toruses import loads_of, places, topologies, torus

from tpusim.costs import CollectiveRoute, listed_route, route
from tpusim.hardware import DIE, ListedGroups, Span, Topology
from tpusim.network import groups, listed_loads, listed_messages, on_torus, one_chain
from tpusim.program import CollectiveKind as Kind

Chips = NDArray[np.intp]
RINGS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.BROADCAST)
Case = tuple[tuple[Span, ...], Topology]


def listed(chips: Chips, pairs: bool = False, devices: int = 1) -> ListedGroups:
    """The devices of groups of chips: each device a group of its own kind, or one of both."""
    many, size, dims = chips.shape
    made = np.zeros((devices, many, size, dims + 2), dtype=np.intp)
    made[..., 1:-1] = chips
    made[..., -1] = np.arange(devices)[:, None, None]
    return ListedGroups.of(made.reshape(devices * many, size, dims + 2), pairs)


def onward(spans: tuple[Span, ...], topology: Topology) -> Chips:
    """From each chip to the next one on the chain of its group, and from the last to the first."""
    chips = one_chain(on_torus(spans), topology).chips
    pairs = np.stack([chips, np.roll(chips, -1, axis=1)], axis=2)
    return pairs.reshape(-1, 2, chips.shape[-1])


def same(one: CollectiveRoute, other: CollectiveRoute) -> bool:
    return (one.uses, one.hops, one.added_bytes) == (
        other.uses,
        other.hops,
        other.added_bytes,
    ) and (one.share == pytest.approx(other.share))


@given(places(), st.sampled_from(RINGS))
def test_listed_groups_that_are_parts_cost_what_the_parts_cost(case: Case, kind: Kind) -> None:
    spans, topology = case
    one = route(kind, spans, topology, "ring")
    found, size, slices = listed_route(kind, listed(groups(spans, topology)), topology, 1, "")
    assert same(found, one)
    np.testing.assert_allclose(found.paths, one.paths)
    assert (size, slices) == (int(np.prod([span.size for span in spans])), 1)


@given(places(), st.randoms())
def test_the_order_in_which_members_are_listed_does_not_count(case: Case, random) -> None:
    chips = groups(*case)
    order = list(range(chips.shape[1]))
    random.shuffle(order)
    one, other = (listed_route(Kind.ALL_GATHER, listed(each), case[1], 1, "")[0]
                  for each in (chips, chips[:, order]))  # fmt: skip
    assert same(one, other)


@given(places())
def test_a_shift_on_a_ring_costs_what_onward_costs(case: Case) -> None:
    spans, topology = case
    one = route(Kind.PERMUTE, spans, topology, "onward")
    pairs = listed(onward(spans, topology), pairs=True)
    found, _, _ = listed_route(Kind.PERMUTE, pairs, topology, 1, "")
    assert (found.uses, found.share) == (one.uses, one.share)


@given(places())
def test_all_pairs_of_listed_groups_load_what_those_of_parts_load(case: Case) -> None:
    spans, topology = case
    if topology.twisted:
        return
    one = route(Kind.ALL_TO_ALL, spans, topology)
    found, _, _ = listed_route(Kind.ALL_TO_ALL, listed(groups(spans, topology)), topology, 1, "")
    assert found.share == pytest.approx(one.share)


def test_rings_through_both_diagonals_of_a_square_load_all_links_alike() -> None:
    """On 2x2x2 a ring of four passes a diagonal, z, the diagonal back, and z.

    A mesh that JAX lays as one ring through x and y has such groups. Each edge carries 3/8 of the
    tensor both ways. Both diagonals take x before y, there and back, so no two share a link.
    """
    diagonals = [[(0, 0), (1, 1)], [(1, 0), (0, 1)]]
    chips = np.array([[(*at, z) for at in ends for z in (0, 1)] for ends in diagonals])
    topology = torus(2, 2, 2, wrap=False)
    loads = listed_loads(Kind.ALL_GATHER, listed(chips), topology)
    assert np.count_nonzero(loads) == 24
    np.testing.assert_allclose(loads[loads > 0], 3 / 8)
    sent = listed_messages(Kind.ALL_GATHER, listed(chips), topology)
    np.testing.assert_allclose(loads_of(sent, topology), loads)


def distance(topology: Topology, start: Chips, end: Chips) -> int:
    """Links on a shortest way, dimension by dimension; of a torus without a twist."""
    apart = np.abs(start - end).tolist()
    return sum(
        min(far, length - far) if wraps else far
        for far, length, wraps in zip(apart, topology.dims, topology.wrap, strict=True)
    )


@given(topologies(32).filter(lambda found: found.chips > 1 and not found.twisted), st.randoms())
def test_any_permutation_crosses_as_many_links_as_its_pairs_are_apart(
    topology: Topology, random
) -> None:
    chips = np.array(list(product(*map(range, topology.dims))), dtype=np.intp)
    order = list(range(len(chips)))
    random.shuffle(order)
    pairs = np.stack([chips, chips[order]], axis=1)
    loads = listed_loads(Kind.PERMUTE, listed(pairs, pairs=True), topology)
    assert loads.sum() == sum(distance(topology, *pair) for pair in pairs)


@given(topologies(64).filter(lambda found: not found.twisted), st.integers(0, 99))
def test_runs_of_links_add_up_as_single_steps_do(topology: Topology, seed: int) -> None:
    random = np.random.default_rng(seed)
    starts, ends = random.integers(0, topology.dims, size=(2, 50, len(topology.dims)))
    moves, weights = shortest_moves(starts, ends, topology), random.random(50)
    order = range(len(topology.dims))
    np.testing.assert_allclose(
        run_loads(starts, moves, weights, topology, order),
        link_loads(starts, moves, weights, topology, order),
        atol=1e-12,
    )


@given(places(32), st.sampled_from([*RINGS, Kind.PERMUTE]))
def test_the_messages_of_listed_groups_load_the_same_links(case: Case, kind: Kind) -> None:
    spans, topology = case
    pairs = kind is Kind.PERMUTE
    given = listed(onward(spans, topology) if pairs else groups(spans, topology), pairs)
    sent = listed_messages(kind, given, topology)
    np.testing.assert_allclose(
        loads_of(sent, topology), listed_loads(kind, given, topology), atol=1e-9
    )


@given(places(32).filter(lambda case: len(groups(*case)) > 1), st.randoms())
def test_a_gather_of_any_groups_crosses_a_link_for_each_chunk_and_member(
    case: Case, random
) -> None:
    """Each of n chunks must reach n - 1 others: together n - 1 tensors over some link."""
    spans, topology = case
    if topology.twisted:
        return
    chips = groups(spans, topology)
    mixed = chips.reshape(-1, chips.shape[-1])
    order = list(range(len(mixed)))
    random.shuffle(order)
    loads = listed_loads(Kind.ALL_GATHER, listed(mixed[order].reshape(chips.shape)), topology)
    assert loads.sum() >= len(chips) * (chips.shape[1] - 1) - 1e-9


@pytest.mark.parametrize("kind", RINGS)
def test_both_devices_of_a_chip_share_its_links_and_the_die(kind: Kind) -> None:
    """7x: a group on both sides of the die, and a group for each side."""
    topology, span = torus(4, 4, 4), (Span(0, 4),)
    chips = groups(span, topology)
    apart, _, _ = listed_route(kind, listed(chips, devices=2), topology, 2, "")
    assert same(apart, route(kind, span, topology, "ring"))
    sides = listed(chips, devices=2).positions.reshape(2, *chips.shape[:2], 5)
    joined = ListedGroups.of(np.concatenate(list(sides), axis=1))
    both, size, _ = listed_route(kind, joined, topology, 2, "")
    assert same(both, route(kind, (*span, Span(DIE, 2)), topology, "ring"))
    assert size == 8


def test_a_permute_across_the_die_takes_no_link_of_the_torus() -> None:
    pairs = np.zeros((64, 2, 5), dtype=np.intp)
    pairs[..., 1:-1] = np.indices((4, 4, 4)).reshape(3, -1).T[:, None]
    pairs[:, 1, -1] = 1
    found, _, _ = listed_route(Kind.PERMUTE, ListedGroups.of(pairs, True), torus(4, 4, 4), 2, "")
    assert dict(found.uses).keys() == {"die+", "hbm"}
    assert found.share == 1


def test_groups_over_slices_reach_each_slice_and_across() -> None:
    """Two groups that each have two chips of either slice."""
    places = np.array([[[s, x + 2 * g, 0] for s in (0, 1) for x in (0, 1)] for g in (0, 1)])
    found, size, slices = listed_route(
        Kind.ALL_REDUCE, ListedGroups.of(places), Topology((4,), (False,)), 1, ""
    )
    assert (size, slices) == (2, 2)
    assert dict(found.uses)["ici:x+"] == 64
