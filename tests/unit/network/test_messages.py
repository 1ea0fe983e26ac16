"""A collective's single messages: who sends how much, and after what."""

from collections import Counter

import numpy as np
import pytest
from toruses import torus, whole

from tpusim.hardware import Span
from tpusim.network import Algorithm, Message, messages
from tpusim.program import CollectiveKind as Kind

RING = Algorithm.RING


def leaves(message: Message, shape: tuple[int, ...]) -> int:
    """The chip that a message leaves, of a torus of one dimension."""
    return int(np.unravel_index(message.links[0], shape)[-1])


def test_a_gather_on_a_ring_of_four() -> None:
    """Both ways: first each chip's own quarter, then half of what came, to the chip opposite."""
    sent = messages(Kind.ALL_GATHER, RING, (Span(0, 4),), torus(4))
    assert Counter(message.share for message in sent) == {0.25: 8, 0.125: 8}
    for message in sent:
        before = [sent[index] for index in message.after]
        assert [each.share for each in before] == ([] if message.share == 0.25 else [0.25])
        for each in before:
            assert leaves(message, (1, 2, 4)) != leaves(each, (1, 2, 4))


def test_a_scatter_on_a_ring_of_four_adds_on_the_way() -> None:
    """The farthest chunk leaves first, and each chip passes it on with its own part added."""
    sent = messages(Kind.REDUCE_SCATTER, RING, (Span(0, 4),), torus(4))
    assert [message.share for message in sent if not message.after] == [0.125] * 8
    assert [message.share for message in sent if message.after] == [0.25] * 8


def test_an_all_reduce_gathers_when_all_is_added() -> None:
    """Each chip starts its gather after both of the messages that brought its sum."""
    sent = messages(Kind.ALL_REDUCE, RING, (Span(0, 4),), torus(4))
    firsts = [message for message in sent if len(message.after) == 2]
    assert len(firsts) == 8
    assert all(message.share == 0.25 for message in firsts)


def test_a_line_passes_chunks_on_in_order() -> None:
    """Over the edge after place i go i + 1 chunks forwards."""
    sent = messages(Kind.ALL_GATHER, RING, (Span(0, 4),), torus(4, wrap=False))
    forward = Counter(leaves(each, (1, 2, 4)) for each in sent if each.links[0] < 4)
    assert forward == {0: 1, 1: 2, 2: 3}


def test_a_broadcast_is_one_message_each_way_through_all() -> None:
    forward, backward = messages(Kind.BROADCAST, RING, (Span(0, 4),), torus(4))
    assert (forward.links, backward.links) == ((0, 1, 2), (4, 7, 6))
    assert forward.share == backward.share == 0.5


@pytest.mark.parametrize("how", [Algorithm.NEIGHBOURS, Algorithm.HALO])
def test_a_permute_waits_for_nothing(how: Algorithm) -> None:
    sent = messages(Kind.PERMUTE, how, (Span(0, 8),), torus(8))
    assert len(sent) == (16 if how is Algorithm.NEIGHBOURS else 14)
    assert {message[1:] for message in sent} == {(0.5, ())}


def test_an_all_to_all_sends_each_pair_its_share_near_ones_first() -> None:
    topology = torus(4, 4)
    sent = messages(Kind.ALL_TO_ALL, Algorithm.PAIRS, whole(topology), topology)
    assert sum(message.share for message in sent) == pytest.approx(16 * 15 / 16)
    packets = len(sent) // 16
    first = [len(message.links) for message in sent[: len(sent) // 16]]
    assert first == sorted(first)
    assert packets >= 256 - 16
    assert not any(message.after for message in sent)


def test_a_message_waits_only_for_earlier_ones() -> None:
    topology = torus(4, 6)
    for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE):
        sent = messages(kind, Algorithm.ND, whole(topology), topology)
        assert all(max(each.after, default=-1) < at for at, each in enumerate(sent))
        assert any(each.after for each in sent)
