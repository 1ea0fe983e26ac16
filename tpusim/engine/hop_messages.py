"""The messages of collectives in integer units, for the hop-by-hop network."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tpusim.base.errors import PlanError
from tpusim.engine.clock import nanobytes, picoseconds
from tpusim.engine.instructions import CollectiveMessages, LaneCode, TaskStep
from tpusim.hardware import DIMENSION_NAMES
from tpusim.network import CollectiveMoves, Message

MAX_CROSSINGS = 50_000_000
"""About two minutes of simulation."""

TORUS_PREFIX = "ici:"


def link_rates(code: LaneCode) -> list[int]:
    """Return the rate (nB/ps) of each physical link of the torus, which is that of its class.

    Links are numbered as in an array [dimension, direction, *coordinates of a chip].

    Raise ValueError for a class without a rate.
    """
    known = dict(code.links)
    chips = prod(code.torus)
    rates: list[int] = []
    for name in DIMENSION_NAMES[: len(code.torus)]:
        for direction in "+-":
            link = f"{TORUS_PREFIX}{name}{direction}"
            if link not in known:
                raise ValueError(f"the torus has the links {link!r}, which have no rate")
            rates += [known[link]] * chips
    return rates


def add_messages(code: LaneCode) -> None:
    """Give the steps of `code` the messages of their tasks, and the delay before the first leaves.

    Raise PlanError if they would cross more links than can be stepped through, and ValueError for
    messages that name links or messages that do not exist.
    """
    physical = 2 * len(code.torus) * prod(code.torus)
    graphs: dict[int, _MessageGraph] = {}
    crossings = 0
    for step, runs in code.runs():
        if step.task.moves is None or not runs:
            continue
        moves = step.task.moves()
        # Many tasks send the same messages; the table keeps them, so no other can take their place.
        graph = graphs.get(id(moves.messages))
        if graph is None:
            graph = graphs[id(moves.messages)] = _message_graph(moves.messages, physical)
        crossings += runs * graph.crossings
        step.messages = _step_messages(step, moves, graph, code)
        step.delay_ps = picoseconds(moves.launch_s)
    if crossings > MAX_CROSSINGS:
        raise PlanError(
            f"the messages of {code.name!r} cross {crossings:,} links, and hop by hop at most "
            f"{MAX_CROSSINGS:,} can be stepped through; take a smaller slice, or the network "
            '"flows" (--network flows on the command line)'
        )


class _MessageGraph(NamedTuple):
    """The order of messages and the number of links that they cross, whatever their bytes."""

    messages: tuple[Message, ...]
    paths: Sequence[tuple[int, ...]]
    followers: Sequence[Sequence[int]]
    awaited: Sequence[int]
    crossings: int


def _message_graph(messages: tuple[Message, ...], physical: int) -> _MessageGraph:
    followers: list[list[int]] = [[] for _ in messages]
    for index, message in enumerate(messages):
        for link in message.links:
            if not 0 <= link < physical:
                raise ValueError(f"message {index} crosses link {link} of a torus of {physical}")
        for other in message.after:
            if not 0 <= other < len(messages):
                raise ValueError(f"message {index} follows message {other} of {len(messages)}")
            followers[other].append(index)
    return _MessageGraph(
        messages,
        [message.links for message in messages],
        followers,
        [len(message.after) for message in messages],
        sum([len(message.links) for message in messages]),
    )


def _step_messages(
    step: TaskStep, moves: CollectiveMoves, graph: _MessageGraph, code: LaneCode
) -> CollectiveMessages:
    shares = {message.share for message in moves.messages}
    volumes = {share: nanobytes(share * moves.nbytes) for share in shares}
    return CollectiveMessages(
        paths=graph.paths,
        volumes=[volumes[message.share] for message in moves.messages],
        followers=graph.followers,
        awaited=graph.awaited,
        hop_ps=picoseconds(moves.hop_s),
        rest=_rest_off_torus(step, code),
    )


def _rest_off_torus(step: TaskStep, code: LaneCode) -> TaskStep | None:
    """Return the use of links other than those of the torus by `step`, as fast as they allow."""
    links = [code.links[link - code.first_link] for link, _ in step.uses]
    uses = [
        (use, rate)
        for use, (name, rate) in zip(step.uses, links, strict=True)
        if not name.startswith(TORUS_PREFIX)
    ]
    if not uses or not step.volume:
        return None
    cap = min(max(1, rate // weight) for (_, weight), rate in uses)
    return replace(step, uses=tuple(use for use, _ in uses), work_ps=0, cap=cap)
