"""Run lanes through SimPy."""

from collections.abc import Sequence
from time import perf_counter
from typing import Literal, TypeAlias, get_args

from simpy import Environment
from simpy.core import EmptySchedule

from tpusim.costs.tasks import CostedProgram
from tpusim.engine.code import Code
from tpusim.engine.compile import compile_lane
from tpusim.engine.hops import HopNetwork
from tpusim.engine.journal import Entry, Span, flat, times
from tpusim.engine.lane import Lane
from tpusim.engine.memory import memory_of
from tpusim.engine.messages import add_messages, link_rates
from tpusim.engine.network import Network
from tpusim.engine.timeline import LinkUse, Record, Stats, Timeline
from tpusim.errors import PlanError, nearest

NetworkMode: TypeAlias = Literal["flows", "hops"]
NETWORK_MODES: tuple[NetworkMode, ...] = get_args(NetworkMode)


class StalledError(RuntimeError):
    """A lane waits for something that cannot happen: a defect of the engine, not of its input."""


def run(
    lanes: Sequence[CostedProgram], *, fold: bool = True, network: NetworkMode = "flows"
) -> Timeline:
    """The timeline of one step of `lanes`, which start together; each has its own core and links.

    A task takes `delay_s`, then moves its bytes at its share of the links that it uses, for at
    least `work_s`; see `lane`, `network` and `filling` for who waits for whom and who gets what.

    fold: leave out trips of loops that repeat exactly (see `fold`). The result is the same to the
    picosecond; with several lanes nothing is folded, as their states would have to repeat together.

    network: `flows` lets a collective draw on classes of links as one flow. `hops` sends its
    messages (`Task.moves`) over each physical link of the torus, to check the flows where the torus
    is small: the task then takes `launch_s`, and ends when all messages have arrived and its flow
    over the links that are not the torus's has drained too, whatever its `delay_s` and `work_s`.
    Tasks without messages are as ever, and the volumes of the links too. Nothing is folded, as the
    messages under way are not in the state that folding compares.

    Raises ValueError for a program that contradicts itself (see `compile_lane`, `add_messages`,
    `memory_of`), and PlanError for an unknown `network`, or too many messages.
    """
    check_network_mode(network)
    began = perf_counter()
    codes = _compile(lanes)
    env = Environment(0)
    flows = Network(env, [rate for code in codes for _, rate in code.links])
    if network == "hops":
        states = [_hop_lane(env, flows, *lane) for lane in zip(codes, lanes, strict=True)]
    else:
        states = [Lane(env, flows, code, fold and len(codes) == 1) for code in codes]
    events = drive(env, states)
    stats = Stats(
        events=events + sum(lane.hops.crossings for lane in states if lane.hops),
        trips_simulated=sum(lane.trips for lane in states),
        trips=sum(code.trips for code in codes),
        folds=tuple(made for lane in states for made in lane.folder.folds),
        seconds=perf_counter() - began,
    )
    return _timeline(states, stats)


def check_network_mode(network: str) -> None:
    """Raise PlanError for a network mode that does not exist."""
    if network not in NETWORK_MODES:
        near = nearest(str(network), NETWORK_MODES)
        raise PlanError(f"network={network!r} is no way to simulate the network; {near}")


def _compile(lanes: Sequence[CostedProgram]) -> list[Code]:
    codes: list[Code] = []
    first_link = 0
    for program in lanes:
        codes.append(compile_lane(program, first_link))
        first_link += len(codes[-1].links)
    return codes


def _hop_lane(env: Environment, flows: Network, code: Code, program: CostedProgram) -> Lane:
    """A lane whose collectives send their messages over the links of the torus of `program`."""
    add_messages(code, program)
    return Lane(env, flows, code, False, HopNetwork(env, flows, link_rates(program)))


def drive(env: Environment, lanes: Sequence[Lane]) -> int:
    """Run all lanes to their ends; the number of events that were processed."""
    events = 0
    for process in [env.process(lane.run()) for lane in lanes]:
        while not process.processed:
            try:
                env.step()
            except EmptySchedule:
                waiting = "; ".join(lane.where() for lane in lanes if not lane.finished)
                raise StalledError(f"nothing is left to happen, but {waiting}") from None
            events += 1
    return events


def _timeline(lanes: Sequence[Lane], stats: Stats) -> Timeline:
    tasks = tuple(
        record for at, lane in enumerate(lanes) for record in _records(at, lane.journal.tasks)
    )
    waits = tuple(
        record for at, lane in enumerate(lanes) for record in _records(at, lane.journal.waits)
    )
    return Timeline(
        total_ps=max((lane.end_ps for lane in lanes), default=0),
        lanes=tuple((lane.code.name, lane.end_ps) for lane in lanes),
        tasks=tasks,
        waits=tuple(wait for wait in waits if wait.duration_ps),
        links=tuple(use for at, lane in enumerate(lanes) for use in _link_uses(at, lane)),
        memory=tuple(memory_of(lane.code, lane.journal.changes) for lane in lanes),
        stats=stats,
    )


def _records(lane: int, entries: Sequence[Entry[Span]]) -> list[Record]:
    return [
        Record(
            lane,
            step.task.name,
            step.task.label,
            step.task.phase,
            step.task.stream,
            start,
            end,
            levels,
        )
        for (step, start, end), levels in flat(entries)
    ]


def _link_uses(number: int, lane: Lane) -> list[LinkUse]:
    volumes = [0] * len(lane.code.links)
    for (step, _, _), levels in flat(lane.journal.tasks):
        moved = step.volume * times(levels)
        for link, weight in step.uses:
            volumes[link - lane.code.first_link] += weight * moved
    return [
        LinkUse(number, name, volume, rate)
        for (name, rate), volume in zip(lane.code.links, volumes, strict=True)
    ]
