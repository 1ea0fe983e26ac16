"""Messages over the physical links of a torus, in closed form (links in bytes a microsecond).

The torus is a ring of 4 chips unless a test says otherwise: links 0 to 3 lead forwards from chips
0 to 3, links 4 to 7 backwards.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from engine_programs import US, loop, program, spans, task, transfer, waits
from hypothesis import given
from hypothesis import strategies as st

from tpusim.base import PlanError
from tpusim.costs import CostedProgram, Task, TaskOp
from tpusim.engine import StalledError, Timeline, run
from tpusim.network import CollectiveMoves, Message
from tpusim.program import Dep

RATES = {"ici:x+": 100.0, "ici:x-": 100.0, "hbm": 100.0}


def sent(
    name: str,
    *messages: tuple[Sequence[int], float, Sequence[int]],
    hop: float = 1.0,
    launch: float = 0.0,
    **fields: Any,
) -> Task:
    """A transfer of messages (links, bytes, messages before it); times in microseconds."""
    each = tuple(Message(tuple(links), size, tuple(after)) for links, size, after in messages)
    moves = CollectiveMoves(each, 1.0, launch * 1e-6, hop * 1e-6)
    return transfer(name, **{"moves": lambda: moves, **fields})


def costed(*body: TaskOp, torus: tuple[int, ...] = (4,), **rates: float) -> CostedProgram:
    return replace(program(*body, **{**RATES, **rates}), torus=torus)


def hop_by_hop(*body: TaskOp, torus: tuple[int, ...] = (4,), **rates: float) -> Timeline:
    return run([costed(*body, torus=torus, **rates)], network="hops")


@given(st.integers(1, 40), st.integers(1, 10_000), st.integers(0, 100))
def test_a_message_cuts_through(links: int, size: int, hop: int) -> None:
    """Its bytes pass once, whatever the links: bytes / rate + links x hop."""
    path = [at % 4 for at in range(links)] if hop * 100 >= size else range(min(links, 4))
    timeline = hop_by_hop(sent("a", (path, size, ()), hop=hop, launch=3))
    assert timeline.total_ps == (3 + len(path) * hop) * US + size * US // 100


@pytest.mark.parametrize("chips", [2, 3, 8])
def test_a_ring_of_steps(chips: int) -> None:
    """Each chip passes on what came: n - 1 steps of a hop and a chunk each, all chips alike."""
    steps = [
        ([chip], 300, [(step - 1) * chips + (chip - 1) % chips] if step else [])
        for step in range(chips - 1)
        for chip in range(chips)
    ]
    timeline = hop_by_hop(sent("ring", *steps, hop=2), torus=(chips,))
    assert timeline.total_ps == (chips - 1) * (2 + 3) * US


def test_two_messages_on_a_link_follow_one_another() -> None:
    timeline = hop_by_hop(sent("a", ([0], 300, ()), ([0], 500, ())))
    assert timeline.total_ps == (3 + 5 + 1) * US


def test_links_of_both_directions_and_all_chips_are_apart() -> None:
    timeline = hop_by_hop(sent("a", *(([link], 300, ()) for link in range(8))))
    assert timeline.total_ps == (3 + 1) * US


def test_a_message_follows_the_last_of_those_before_it() -> None:
    """The first two arrive after 4 and 9 us, the third takes 2 + 1 us from then, the last 1 + 1."""
    timeline = hop_by_hop(
        sent("a", ([0], 300, ()), ([1], 800, ()), ([2], 200, (0, 1)), ([0], 100, (2,)))
    )
    assert timeline.total_ps == (9 + 3 + 2) * US


def test_messages_may_be_written_in_any_order() -> None:
    timeline = hop_by_hop(sent("a", ([0], 100, (1,)), ([1], 200, (2,)), ([2], 300, ())))
    assert timeline.total_ps == (4 + 3 + 2) * US


def test_who_comes_first_is_served_first() -> None:
    """Message 0 comes to link 1 after its hop, when message 1 has it until 5; its tail ends at 8.

    The other way round, message 0 would have had the link from 1 to 4 and message 1 from 4 to 9.
    """
    timeline = hop_by_hop(sent("a", ([0, 1], 300, ()), ([1], 500, ())))
    assert timeline.total_ps == (5 + 3 + 1) * US
    assert hop_by_hop(sent("a", ([0, 1], 300, ()), ([1], 90, ()))).total_ps == (1 + 3 + 1) * US


def test_at_one_time_the_lower_index_is_first() -> None:
    """Both come to link 2 at 1 us; whoever is last has a message of 100 B after it."""
    both = [([1, 2], 300, ()), ([6, 2], 500, ())]
    short_last = sent("a", *both, ([0], 100, (0,)))
    assert hop_by_hop(short_last).total_ps == (1 + 3 + 5 + 1) * US
    long_first = sent("a", *both[::-1], ([0], 100, (1,)))
    assert hop_by_hop(long_first).total_ps == (1 + 5 + 3 + 1 + 1 + 1) * US


def test_a_message_held_up_leaves_the_links_behind_it() -> None:
    """Chips buffer what cannot go on: message 1 waits for link 1 until 9, and link 0 is free at 2.

    Message 2 crosses link 0 from 2 to 4 and arrives at 5; message 3, after it, at 5 + 10 + 1.
    """
    timeline = hop_by_hop(
        sent("a", ([1], 900, ()), ([0, 1], 200, ()), ([0], 200, ()), ([3], 1000, (2,)))
    )
    assert timeline.total_ps == 16 * US


@pytest.mark.parametrize("path", [(0, 5), (5, 0)])
def test_the_slowest_link_decides(path: tuple[int, int]) -> None:
    """At 100 and 20 B/us, a message takes 10 us on the slow link, and a hop on each."""
    rates = {"ici:x-": 20.0}
    assert hop_by_hop(sent("a", (path, 200, ())), **rates).total_ps == (10 + 2) * US


def test_each_dimension_has_the_rate_of_its_class() -> None:
    """On 2x3, links [dim, direction, x, y] 18 to 23 lead backwards along y."""
    rates = {"ici:y+": 50.0, "ici:y-": 25.0}
    for link, us in ((0, 3), (11, 3), (12, 6), (17, 6), (18, 12), (23, 12)):
        moved = sent("a", ([link], 300, ()))
        assert hop_by_hop(moved, torus=(2, 3), **rates).total_ps == (us + 1) * US


def test_two_collectives_share_a_link_first_come_first_served() -> None:
    """b comes to link 0 at 2 us, behind the first message of a and before its second."""
    timeline = hop_by_hop(
        sent("a", ([0], 500, ()), ([0], 300, (0,))),
        sent("b", ([0], 400, ()), launch=2),
    )
    assert spans(timeline) == {"b": (0, 10), "a": (0, 13)}


def test_the_next_collective_finds_the_links_as_the_last_one_left_them() -> None:
    """What follows the quick end of `b` comes to link 0 at 2 us, between two messages of `a`."""
    timeline = hop_by_hop(
        sent("a", ([0], 100, ()), ([0], 100, (0,)), ([0], 100, (1,)), hop=3),
        sent("b", ([1], 100, ())),
        sent("c", ([0], 900, ()), deps=(Dep("b"),), stream="other"),
    )
    assert spans(timeline) == {"b": (0, 2), "c": (2, 12), "a": (0, 19)}


def test_compute_goes_on_beside_and_waits_at_the_end() -> None:
    timeline = hop_by_hop(sent("a", ([0], 500, ())), task("dot", 2))
    assert spans(timeline) == {"dot": (0, 2), "a": (0, 6)}
    assert waits(timeline) == [("a", 2, 6)]


def test_the_core_waits_for_a_collective_of_its_own() -> None:
    moved = sent("a", ([0], 500, ()), launch=1, stream="core")
    assert spans(hop_by_hop(moved, task("dot", 2))) == {"a": (0, 7), "dot": (7, 9)}


def test_a_collective_ends_when_its_hbm_traffic_has_drained_too() -> None:
    """600 B twice through HBM take 12 us from the launch on, whatever the task's own times say."""
    uses = (("ici:x+", 1), ("hbm", 2), ("die", 1))
    moved = sent("a", ([0], 500, ()), launch=1, bytes=600, uses=uses, delay_s=9e-6, work_s=3e-5)
    timeline = hop_by_hop(moved, die=500.0)
    assert spans(timeline) == {"a": (0, 13)}
    volumes = {use.link: use.volume_nb // 10**9 for use in timeline.links}
    assert volumes == {"ici:x+": 600, "ici:x-": 0, "hbm": 1200, "die": 600}


def test_hbm_is_shared_with_compute() -> None:
    """200 B each at 50 B/us until 4 us, then the matmul has HBM alone for its other 400 B."""
    moved = sent("a", ([0], 100, ()), bytes=200, uses=(("ici:x+", 5), ("hbm", 1)))
    timeline = hop_by_hop(moved, task("dot", bytes=600, uses=(("hbm", 1),)))
    assert spans(timeline) == {"a": (0, 4), "dot": (0, 8)}


def test_a_task_without_messages_is_a_flow() -> None:
    body = [transfer(name, bytes=300, uses=(("ici:x+", 1),), delay_s=1e-6) for name in "ab"]
    assert hop_by_hop(*body).total_ps == run([costed(*body)]).total_ps == 7 * US


def test_a_message_alone_takes_as_long_as_its_flow() -> None:
    fields: dict[str, Any] = {"bytes": 700.0, "uses": (("ici:x+", 1), ("hbm", 1))}
    body = (sent("a", ([0], 700, ()), launch=2, delay_s=3e-6, **fields), task("dot", 4))
    hops, flows = hop_by_hop(*body), run([costed(*body)])
    assert (hops.tasks, hops.waits, hops.links) == (flows.tasks, flows.waits, flows.links)


def test_nothing_to_send_takes_the_launch() -> None:
    assert hop_by_hop(sent("a", launch=2)).total_ps == 2 * US
    assert hop_by_hop(sent("a"), task("dot", 1)).total_ps == US
    assert hop_by_hop(sent("a", ((), 500, ()), ([0], 100, (0,)))).total_ps == 2 * US


def test_each_trip_sends_again_and_nothing_is_folded() -> None:
    built = []

    def moves() -> CollectiveMoves:
        built.append(1)
        return CollectiveMoves((Message((0, 1), 0.5, ()),), 600, 0, 1e-6)

    gather = sent("a", stream="core", moves=moves)
    timeline = hop_by_hop(loop(40, gather, task("dot", 1)), loop(0, sent("b"), name="never"))
    assert timeline.total_ps == 40 * (3 + 2 + 1) * US
    assert (timeline.stats.folds, timeline.stats.trips_simulated) == ((), 40)
    assert timeline.stats.events > 40 * 2
    assert len(built) == 1


def test_lanes_have_links_of_their_own() -> None:
    programs = [costed(sent("a", ([0], size, ()))) for size in (300, 500)]
    assert [end for _, end in run(programs, network="hops").lanes] == [4 * US, 6 * US]


def test_too_many_messages_are_refused() -> None:
    moved = sent("a", (range(4), 1, ()), ([0], 1, ()))
    sentence = r"'test' cross 50,000,005 links.* smaller slice, or the .* \(--network flows on the"
    with pytest.raises(PlanError, match=sentence):
        hop_by_hop(loop(10_000_001, moved))


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(PlanError, match=r"network='hop'.*did you mean 'hops'\?"):
        run([], network="hop")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (([8], 1, ()), "message 0 crosses link 8 of a torus of 8"),
        (([-1], 1, ()), "crosses link -1"),
        (([0], 1, (1,)), "message 0 follows message 1 of 1"),
        (([0], 1, (-1,)), "follows message -1"),
        (([0], -1.0, ()), "finite and at least 0 B"),
    ],
)
def test_messages_that_cannot_be_are_refused(message: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        hop_by_hop(sent("a", message))


def test_a_torus_without_links_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the links 'ici:y\+', which have no rate"):
        hop_by_hop(task("dot", 1), torus=(4, 4))


def test_messages_that_wait_for_one_another_stall() -> None:
    with pytest.raises(StalledError, match="1 of dma incomplete"):
        hop_by_hop(sent("a", ([0], 1, (1,)), ([0], 1, (0,))))
