"""Laws of the hop-by-hop network, over random messages on small toruses."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import prod
from random import Random

import pytest
from engines import FlowNetwork, Lane, LaneClock, run_processes
from extent import seeds
from random_programs import printed
from simpy import Environment

from tpusim.costs import CostedProgram, Task
from tpusim.engine import compile_lane, run
from tpusim.engine.hop_messages import add_messages, link_rates
from tpusim.engine.hops import HopNetwork, LinkCrossing
from tpusim.network import CollectiveMoves, Message
from tpusim.program import Dep, Phase

SEEDS = seeds(60)


def random_messages(pick: Random, links: int) -> tuple[Message, ...]:
    """Up to 40 messages, each after some others; of few sizes, so that ties and queues occur."""
    made: list[Message] = []
    for index in range(pick.randint(1, 40)):
        path = pick.sample(range(links), pick.randint(1, min(4, links)))
        before = pick.sample(range(index), min(index, pick.choice((0, 0, 1, 2))))
        made.append(Message(tuple(path), pick.choice((0, 128, 256, 640)) / 1024, tuple(before)))
    return tuple(made)


def given(moves: CollectiveMoves) -> Callable[[], CollectiveMoves]:
    return lambda: moves


def random_program(seed: int, *, hop_s: float | None = None, launch: int = 9) -> CostedProgram:
    """Three collectives that begin at different times, some after others.

    A size over a rate, and over twice the rate, is a whole number of picoseconds.
    """
    pick = Random(seed)
    torus = pick.choice(((3,), (2, 3), (4, 4)))
    links = 2 * len(torus) * prod(torus)
    hop_s = pick.choice((1e-6, 3e-6, 1.7e-8)) if hop_s is None else hop_s
    body = []
    for at in range(3):
        messages = random_messages(pick, links)
        moves = CollectiveMoves(messages, 1_024_000, pick.randint(0, launch) * 1e-6, hop_s)
        deps = tuple(Dep(f"t{other}") for other in range(at) if pick.random() < 0.3)
        task = Task(name=f"t{at}", phase=Phase.FORWARD, label="any", stream=f"s{at}", deps=deps)
        body.append(replace(task, moves=given(moves)))
    rates = tuple((f"ici:{dim}{way}", 2.048e9 * pick.choice((1, 2, 4)))
                  for dim in "xyz"[: len(torus)] for way in "+-")  # fmt: skip
    return CostedProgram(name="random", body=tuple(body), links=rates, torus=torus)


def moves_of(program: CostedProgram) -> dict[str, CollectiveMoves]:
    return {op.name: op.moves() for op in program.body if isinstance(op, Task) and op.moves}


def crossings(program: CostedProgram) -> tuple[list[LinkCrossing], int]:
    """All crossings of links, in the order in which they were worked out, and the end."""
    code = compile_lane(program)
    add_messages(code)
    env = Environment(0)
    clock = LaneClock(env)
    flows = FlowNetwork(clock, [rate for _, rate in code.links])
    log: list[LinkCrossing] = []
    lane = Lane(clock, flows, code, False, HopNetwork(clock, flows, link_rates(code), log))
    run_processes(env, [lane])
    return log, lane.end_ps


class Oracle:
    """When a program ends, from the definitions: of all heads, the one that comes first goes next.

    No clock, no queue and no heap. A collective is ranked by its begin, then by its place.
    """

    def __init__(self, program: CostedProgram) -> None:
        self.moves = moves_of(program)
        self.deps = {op.name: [dep.op for dep in op.deps] for op in program.body
                     if isinstance(op, Task)}  # fmt: skip
        self.rates = link_rates(compile_lane(program))
        self.free = [0] * len(self.rates)
        self.begun: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.arrived: dict[tuple[str, int], int] = {}
        # When a head comes to a link, which link of its path it is, and when its tail would.
        self.heads: dict[tuple[str, int], tuple[int, int, int]] = {}
        while len(self.ends) < len(self.moves):
            self._begin()
            self._send()
            self._cross(*min(self.heads, key=self._rank))
        self.end = max(self.ends.values())

    def _rank(self, message: tuple[str, int]) -> tuple[int, int, str, int]:
        name, index = message
        return (self.heads[message][0], self.begun[name], name, index)

    def _begin(self) -> None:
        for name, deps in self.deps.items():
            if name not in self.begun and all(dep in self.ends for dep in deps):
                last = max([0, *(self.ends[dep] for dep in deps)])
                self.begun[name] = last + round(self.moves[name].launch_s * 1e12)

    def _send(self) -> None:
        for name, began in self.begun.items():
            for index, message in enumerate(self.moves[name].messages):
                before = [(name, other) for other in message.after]
                known = (name, index) in self.heads or (name, index) in self.arrived
                if not known and all(other in self.arrived for other in before):
                    now = max([began, *(self.arrived[other] for other in before)])
                    self.heads[name, index] = (now, 0, now)

    def _cross(self, name: str, index: int) -> None:
        now, place, tail = self.heads.pop((name, index))
        moves = self.moves[name]
        message, hop = moves.messages[index], round(moves.hop_s * 1e12)
        link = message.links[place]
        start = max(now, self.free[link])
        self.free[link] = start + round(message.share * moves.nbytes * 1e9) // self.rates[link]
        tail = max(tail, self.free[link]) + hop
        if place + 1 < len(message.links):
            self.heads[name, index] = (start + hop, place + 1, tail)
            return
        self.arrived[name, index] = tail
        times = [self.arrived.get((name, other)) for other in range(len(moves.messages))]
        if None not in times:
            self.ends[name] = max(time for time in times if time is not None)


@pytest.mark.parametrize("seed", seeds(150))
def test_it_is_what_the_definitions_say(seed: int) -> None:
    program = random_program(seed)
    assert run([program], network="hops").total_ps == Oracle(program).end


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_carries_one_message_at_a_time_and_all_of_its_bytes(seed: int) -> None:
    program = random_program(seed)
    log, end = crossings(program)
    rates = link_rates(compile_lane(program))
    carried = Counter[int]()
    for moves in moves_of(program).values():
        for message in moves.messages:
            for link in message.links:
                carried[link] += round(message.share * moves.nbytes * 1e9)
    for link in carried:
        spans = sorted((each.start_ps, each.end_ps) for each in log if each.link == link)
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
        assert sum(until - start for start, until in spans) * rates[link] == carried[link]
        assert spans[-1][1] <= end


@pytest.mark.parametrize("seed", SEEDS)
def test_links_are_crossed_in_order_a_hop_apart(seed: int) -> None:
    """Also the queue is first come first served: a link is taken in the order of the log."""
    program = random_program(seed)
    moves = moves_of(program)
    paths: dict[tuple[str, int], list[LinkCrossing]] = {}
    taken = Counter[int]()
    for each in crossings(program)[0]:
        paths.setdefault((each.task, each.message), []).append(each)
        assert each.start_ps >= taken[each.link]
        taken[each.link] = each.end_ps
    for (name, index), crossed in paths.items():
        assert tuple(each.link for each in crossed) == moves[name].messages[index].links
        hop = round(moves[name].hop_s * 1e12)
        assert all(other.start_ps >= one.start_ps + hop for one, other in pairwise(crossed))
    assert len(paths) == sum(len(each.messages) for each in moves.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_twice_the_rates_take_half_the_time_without_hops(seed: int) -> None:
    program = random_program(seed, hop_s=0, launch=0)
    links = tuple((name, 2 * rate) for name, rate in program.links)
    double = replace(program, links=links)
    once, twice = (run([each], network="hops").total_ps for each in (program, double))
    assert once == 2 * twice


@pytest.mark.parametrize("seed", SEEDS)
def test_collectives_that_share_no_link_do_not_touch_one_another(seed: int) -> None:
    """On a torus of one dimension more, each in a plane of its own: as if each were alone."""
    program = random_program(seed)
    tasks = [replace(op, deps=()) for op in program.body if isinstance(op, Task)]
    alone = [run([replace(program, body=(task,))], network="hops").total_ps for task in tasks]
    moved = tuple(
        replace(task, moves=given(in_plane(moves, at, len(tasks))))
        for at, (task, moves) in enumerate(zip(tasks, moves_of(program).values(), strict=True))
    )
    wide = replace(program, body=moved, torus=(*program.torus, len(tasks)))
    extra = tuple((f"ici:{'xyz'[len(program.torus)]}{way}", 1e9) for way in "+-")
    together = run([replace(wide, links=(*program.links, *extra))], network="hops")
    assert sorted(record.end_ps for record in together.tasks) == sorted(alone)


def in_plane(moves: CollectiveMoves, plane: int, planes: int) -> CollectiveMoves:
    """The same messages on a torus with one more dimension, the last and fastest."""
    return replace(
        moves,
        messages=tuple(
            each._replace(links=tuple(link * planes + plane for link in each.links))
            for each in moves.messages
        ),
    )


@pytest.mark.thorough
def test_hash_seeds_do_not_matter() -> None:
    script = (
        "from test_hops_engine import crossings, random_program\n"
        "for seed in range(5):\n"
        "    print(crossings(random_program(seed)))"
    )
    outputs = printed(script, "12")
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000
