"""Run lanes through SimPy."""

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Literal, TypeAlias, get_args

from simpy import Environment

from tpusim.base.errors import PlanError, nearest
from tpusim.costs import ON_HOST, CostedProgram
from tpusim.engine.compile_lane import compile_lane
from tpusim.engine.flows import FlowNetwork
from tpusim.engine.hop_messages import add_messages, link_rates
from tpusim.engine.hops import HopNetwork
from tpusim.engine.instructions import LaneCode
from tpusim.engine.journal import flatten
from tpusim.engine.lane import Lane, Race, lane_stats, run_processes
from tpusim.engine.lane_clock import LaneClock
from tpusim.engine.lane_timeline import lanes_timeline
from tpusim.engine.pipeline import run_pipeline
from tpusim.engine.run_coupled import run_coupled
from tpusim.engine.stage_code import PipelineCode, compile_pipeline, has_calls
from tpusim.engine.timeline import Timeline

NetworkMode: TypeAlias = Literal["flows", "hops"]
NETWORK_MODES: tuple[NetworkMode, ...] = get_args(NetworkMode)


def run(
    lanes: Sequence[CostedProgram], *, fold: bool = True, network: NetworkMode = "flows"
) -> Timeline:
    """Return the timeline of one step of `lanes`, which start together with a core and links each.

    fold: skip iterations of loops that repeat exactly (see `fold`). The result is the same to the
        picosecond; of several lanes only those that meet in groups are folded (`coupled_lane`).
    network: `flows` lets a collective draw on classes of links as one flow. `hops` sends its
        messages (`Task.moves`) over each physical link of the torus, to check the flows on small
        tori.

    A task takes `delay_s`, then moves its bytes at its share of the links that it uses, for at
    least `work_s`; see `lane` and `flows` for the order and the shares.

    Hop by hop, a task with messages takes `launch_s`, and ends when all of them have arrived and
    its flow over the links off the torus has drained too, whatever its `delay_s` and `work_s`.
    Tasks without messages stay as they are, and so do the volumes of links. Nothing is folded, as
    the messages in flight are not in the state that folding compares.

    If lanes call segments, each segment is run alone, and once, and the lanes step through their
    calls (see `lane_part`, `stage_lane`). Folding and `hops` are then within segments; a message
    between lanes always takes as long as its task does alone.

    Lanes with groups (`CostedProgram.groups`) are devices of one program that differ, or classes of
    them: a collective begins and ends for all lanes of its group together (see `coupled_lane`).

    Raise ValueError for a program that contradicts itself (see `compile_lane`, `add_messages`,
    `lane_memory`, `compile_pipeline`), and PlanError for an unknown `network`, or too many
    messages.
    """
    check_network_mode(network)
    if any(lane.groups is not None for lane in lanes):
        return run_coupled(lanes, fold)
    if has_calls(lanes):
        return run_code(compile_pipeline(lanes), fold=fold, network=network)
    if len(lanes) == 1:
        return run_code(compile_lane(lanes[0]), fold=fold, network=network)
    began = perf_counter()
    codes = _compile(lanes)
    clock = LaneClock(Environment(0))
    flows = FlowNetwork(clock, [rate for code in codes for _, rate in code.links])
    states = [_lane(clock, flows, code, False, network) for code in codes]
    events = run_processes(clock.env, states)
    events += sum(lane.hops.crossings for lane in states if lane.hops)
    return lanes_timeline(states, lane_stats(states, events, began))


class CodeRun:
    """The run of a code; the timeline of a single lane is put together when it is asked for.

    race: a single lane that cannot win any more ends early; `device_ps` is then a lower bound that
        is above the best time, and there is no timeline.
    """

    __slots__ = ("_lane", "_stats", "_timeline")

    def __init__(
        self,
        code: LaneCode | PipelineCode,
        *,
        fold: bool = True,
        network: NetworkMode = "flows",
        race: Race | None = None,
    ) -> None:
        run_alone = partial(_run_alone, fold=fold, network=network)
        self._timeline: Timeline | None = None
        if isinstance(code, PipelineCode):
            self._timeline = run_pipeline(code, run_alone)
            return
        began = perf_counter()
        self._lane = run_alone(code, race=race)
        self._stats = lane_stats([self._lane], self._lane.events, began)

    @property
    def device_ps(self) -> int:
        """The time of the step without waits for the host, as `Timeline.device_ps`."""
        if self._timeline is not None:
            return self._timeline.device_ps
        waits = flatten(self._lane.journal.waits)
        on_host = ((end - start) for (step, start, end), _ in waits if step.task.stream == ON_HOST)
        return self._lane.end_ps - sum(on_host)

    def timeline(self) -> Timeline:
        """Return the timeline; see `run`."""
        if self._timeline is None:
            self._timeline = lanes_timeline([self._lane], self._stats)
        return self._timeline


def run_code(
    code: LaneCode | PipelineCode, *, fold: bool = True, network: NetworkMode = "flows"
) -> Timeline:
    """Return the timeline of a single lane, or of the lanes of a pipeline; see `run`."""
    return CodeRun(code, fold=fold, network=network).timeline()


def check_network_mode(network: str) -> None:
    """Raise PlanError for a network mode that does not exist."""
    if network not in NETWORK_MODES:
        near = nearest(str(network), NETWORK_MODES)
        raise PlanError(f"network={network!r} is not a mode of the network; {near}")


def _compile(lanes: Sequence[CostedProgram]) -> list[LaneCode]:
    codes: list[LaneCode] = []
    first_link = 0
    for program in lanes:
        codes.append(compile_lane(program, first_link))
        first_link += len(codes[-1].links)
    return codes


def _run_alone(code: LaneCode, fold: bool, network: NetworkMode, race: Race | None = None) -> Lane:
    """Return the lane of a part, run to its end."""
    clock = LaneClock(Environment(0), alone=network == "flows")
    flows = FlowNetwork(clock, [rate for _, rate in code.links])
    lane = _lane(clock, flows, code, fold, network, race)
    events = run_processes(clock.env, [lane]) + clock.skipped
    lane.events = events + (lane.hops.crossings if lane.hops else 0)
    return lane


def _lane(
    clock: LaneClock,
    flows: FlowNetwork,
    code: LaneCode,
    fold: bool,
    network: NetworkMode,
    race: Race | None = None,
) -> Lane:
    """Return a lane; hop by hop, its collectives send messages over the links of the torus."""
    if network == "flows":
        return Lane(clock, flows, code, fold, race=race)
    add_messages(code)
    return Lane(clock, flows, code, False, HopNetwork(clock, flows, link_rates(code)))
