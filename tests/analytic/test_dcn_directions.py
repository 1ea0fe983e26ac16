"""Transfers over DCN at the same time: a slice sends and receives at its full rate at once.

Each is 64 MiB on a stream of its own, so that all begin together, and takes launch, latency and its
bytes over the slice's share of its network cards: T = D + B / R.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from crossings import BYTES, COSTS, DELAY, MOVING, ROUNDED, Pairs, seconds, sent

from tpusim.costs import DCN, HBM, Task
from tpusim.engine import run

ON: Pairs = ((0, 1), (1, 2), (2, 3))
BACK: Pairs = ((1, 0), (2, 1), (3, 2))
RING: Pairs = (*ON, (3, 0))


@pytest.mark.parametrize("pairs", [((0, 1),), ON, BACK, RING])
def test_one_permute_takes_its_bytes_once(pairs: Pairs) -> None:
    assert seconds(pairs) == pytest.approx(DELAY + MOVING, rel=ROUNDED)


@pytest.mark.parametrize(
    "permutes",
    [
        (((0, 1),), ((1, 0),)),  # between two slices, both ways
        (ON, ((3, 0),)),  # a rotation in two: no sender in common, nor a receiver
        (((0, 1),), ((2, 3),)),
        (((0, 1),), ((1, 2),), ((2, 3),), ((3, 0),)),
    ],
)
def test_what_has_other_senders_and_other_receivers_shares_nothing(
    permutes: tuple[Pairs, ...],
) -> None:
    assert seconds(*permutes) == pytest.approx(DELAY + MOVING, rel=ROUNDED)


@pytest.mark.parametrize(
    "permutes",
    [
        (((0, 1),), ((0, 1),)),
        (((0, 1),), ((0, 2),)),  # a sender in common
        (((0, 2),), ((1, 2),)),  # a receiver in common
        (ON, BACK),  # stages between send both ways
        (RING, ON),
        (RING, ((1, 0),)),
    ],
)
def test_what_has_a_sender_or_a_receiver_in_common_takes_twice_its_bytes(
    permutes: tuple[Pairs, ...],
) -> None:
    assert seconds(*permutes) == pytest.approx(DELAY + 2 * MOVING, rel=ROUNDED)


def test_an_all_reduce_over_all_slices_takes_what_it_took_whatever_else_the_program_sends() -> None:
    """Twice 3/4 of its bytes leave each slice, and as many arrive."""
    alone = seconds(reduced=1)
    assert alone == pytest.approx(DELAY + COSTS.dcn_latency + 1.5 * MOVING, rel=ROUNDED)
    whole, parted = sent(reduced=1), sent(ON, ((3, 0),), reduced=1)
    reduced, among = whole.body[0], parted.body[2]
    assert isinstance(reduced, Task)
    assert isinstance(among, Task)
    assert dict(reduced.uses) == {"dcn+": 64, "dcn-": 64, HBM: 160}
    assert {link for link, _ in among.uses if link != HBM} == {
        link for link, _ in parted.links if link.startswith(DCN)
    }
    assert run([replace(parted, body=(among,))]).total_ps * 1e-12 == pytest.approx(
        alone, rel=ROUNDED
    )


def test_an_all_reduce_shares_with_every_permute() -> None:
    """Its latency is longer by a pass; then both have half of the cards until the permute is done.

    The one that is alone first and last has them whole, so they are busy from the first byte on.
    """
    for permute in (((0, 1),), RING):
        assert seconds(permute, reduced=1) == pytest.approx(DELAY + 2.5 * MOVING, rel=ROUNDED)


def test_links_carry_what_leaves_and_what_arrives() -> None:
    carried = {use.link: use.volume_nb for use in run([sent(ON, ((3, 0),))]).links}
    dcn = {link: volume for link, volume in carried.items() if link.startswith(DCN)}
    assert list(dcn) == ["dcn:0..2+", "dcn:3+", "dcn:0-", "dcn:1..3-"]
    assert all(one == other for one, other in pairwise(dcn.values()))
    assert next(iter(dcn.values())) == pytest.approx(BYTES * 1e9)
