"""Run lanes through SimPy."""

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Literal, TypeAlias, get_args

from simpy import Environment

from tpusim.costs.tasks import CostedProgram
from tpusim.engine.code import Code
from tpusim.engine.compile import Surroundings, compile_lane
from tpusim.engine.hops import HopNetwork
from tpusim.engine.journal import Entry, Span, flat
from tpusim.engine.lane import Lane
from tpusim.engine.memory import Memory, memory_of, profile_of
from tpusim.engine.messages import add_messages, link_rates
from tpusim.engine.network import Network
from tpusim.engine.part import volumes
from tpusim.engine.pipeline import has_calls, run_calls
from tpusim.engine.progress import drive
from tpusim.engine.timeline import LinkUse, Record, Stats, Timeline
from tpusim.errors import PlanError, nearest

NetworkMode: TypeAlias = Literal["flows", "hops"]
NETWORK_MODES: tuple[NetworkMode, ...] = get_args(NetworkMode)


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

    Where lanes call segments, each segment is run alone, and once, and the lanes step through their
    calls (see `part`, `stage`). Folding and `hops` are then within segments; what lanes send each
    other always takes as long as its task does alone.

    Raises ValueError for a program that contradicts itself (see `compile_lane`, `add_messages`,
    `memory_of`, `run_calls`), and PlanError for an unknown `network`, or too many messages.
    """
    check_network_mode(network)
    if any(has_calls(lane) for lane in lanes):
        return run_calls(lanes, partial(_alone, fold=fold, network=network))
    began = perf_counter()
    codes = _compile(lanes)
    env = Environment(0)
    flows = Network(env, [rate for code in codes for _, rate in code.links])
    alike = fold and len(codes) == 1
    states = [
        _lane(env, flows, code, lane, alike, network)
        for code, lane in zip(codes, lanes, strict=True)
    ]
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


def _alone(program: CostedProgram, around: Surroundings, fold: bool, network: NetworkMode) -> Lane:
    """The lane of a part, run to its end."""
    env, code = Environment(0), compile_lane(program, around=around)
    lane = _lane(env, Network(env, [rate for _, rate in code.links]), code, program, fold, network)
    lane.events = drive(env, [lane]) + (lane.hops.crossings if lane.hops else 0)
    return lane


def _lane(
    env: Environment, flows: Network, code: Code, program: CostedProgram, fold: bool,
    network: NetworkMode,
) -> Lane:  # fmt: skip
    """A lane; hop by hop, its collectives send messages over the links of the torus."""
    if network == "flows":
        return Lane(env, flows, code, fold)
    add_messages(code, program)
    return Lane(env, flows, code, False, HopNetwork(env, flows, link_rates(program)))


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
        memory=tuple(_memory(lane) for lane in lanes),
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


def _memory(lane: Lane) -> Memory:
    profile = profile_of(lane.code, lane.journal.changes)
    return memory_of(lane.code.resident, profile)


def _link_uses(number: int, lane: Lane) -> list[LinkUse]:
    code = lane.code
    carried = volumes(tuple(flat(lane.journal.tasks)), code.first_link, len(code.links))
    return [
        LinkUse(number, name, volume, rate)
        for (name, rate), volume in zip(code.links, carried, strict=True)
    ]
