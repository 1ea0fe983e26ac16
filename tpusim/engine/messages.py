"""The messages of collectives in integer units, for the hop-by-hop network."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tpusim.costs.tasks import CostedProgram, TaskLoop, TopTask
from tpusim.engine.clock import nanobytes, nanobytes_per_ps, picoseconds
from tpusim.engine.code import Code, Messages, Step
from tpusim.errors import PlanError
from tpusim.hardware.topology import DIMENSION_NAMES
from tpusim.network.messages import Message, Moves
from tpusim.program import Call

MOST_CROSSINGS = 50_000_000
"""Two minutes of simulation or so."""

TORUS = "ici:"


def link_rates(program: CostedProgram) -> list[int]:
    """The rate (nB/ps) of each physical link of the torus, which is that of its class.

    Links are numbered as in an array [dimension, direction, *coordinates of a chip].
    Raises ValueError for a class without a rate.
    """
    known = dict(program.links)
    chips = prod(program.torus)
    rates: list[int] = []
    for name in DIMENSION_NAMES[: len(program.torus)]:
        for direction in "+-":
            link = f"{TORUS}{name}{direction}"
            if link not in known:
                raise ValueError(f"the torus has the links {link!r}, which have no rate")
            rates += [nanobytes_per_ps(float(known[link]))] * chips
    return rates


def add_messages(code: Code, program: CostedProgram) -> None:
    """Give the steps of `code` the messages of their tasks, and the delay before the first leaves.

    Raises PlanError when they would cross more links than can be stepped through, and ValueError
    for messages that name links or messages that are not there.
    """
    physical = 2 * len(program.torus) * prod(program.torus)
    runs = dict(_runs(program.body, 1))
    graphs: dict[int, _Graph] = {}
    crossings = 0
    for step in code.steps:
        if step.task.moves is None or not runs[step.task.name]:
            continue
        moves = step.task.moves()
        # Many tasks send the same messages; the table keeps them, so no other can take their place.
        graph = graphs.get(id(moves.messages))
        if graph is None:
            graph = graphs[id(moves.messages)] = _graph(moves.messages, physical)
        crossings += runs[step.task.name] * graph.crossings
        step.messages = _messages(step, moves, graph, code)
        step.delay_ps = picoseconds(moves.launch_s)
    if crossings > MOST_CROSSINGS:
        raise PlanError(
            f"the messages of {program.name!r} cross {crossings:,} links, and hop by hop at most "
            f"{MOST_CROSSINGS:,} can be stepped through; take a smaller slice, or the network "
            '"flows" (--network flows on the command line)'
        )


class _Graph(NamedTuple):
    """Which message follows which, and how many links they cross in all, whatever their bytes."""

    messages: tuple[Message, ...]
    paths: Sequence[tuple[int, ...]]
    followers: Sequence[Sequence[int]]
    awaited: Sequence[int]
    crossings: int


def _graph(messages: tuple[Message, ...], physical: int) -> _Graph:
    followers: list[list[int]] = [[] for _ in messages]
    for index, message in enumerate(messages):
        for link in message.links:
            if not 0 <= link < physical:
                raise ValueError(f"message {index} crosses link {link} of a torus of {physical}")
        for other in message.after:
            if not 0 <= other < len(messages):
                raise ValueError(f"message {index} follows message {other} of {len(messages)}")
            followers[other].append(index)
    return _Graph(
        messages,
        [message.links for message in messages],
        followers,
        [len(message.after) for message in messages],
        sum([len(message.links) for message in messages]),
    )


def _messages(step: Step, moves: Moves, graph: _Graph, code: Code) -> Messages:
    shares = {message.share for message in moves.messages}
    volumes = {share: nanobytes(share * moves.nbytes) for share in shares}
    return Messages(
        paths=graph.paths,
        volumes=[volumes[message.share] for message in moves.messages],
        followers=graph.followers,
        awaited=graph.awaited,
        hop_ps=picoseconds(moves.hop_s),
        rest=_rest(step, code),
    )


def _rest(step: Step, code: Code) -> Step | None:
    """What `step` draws on links other than those of the torus, as fast as they let it."""
    links = [code.links[link - code.first_link] for link, _ in step.uses]
    uses = [(use, rate) for use, (name, rate) in zip(step.uses, links, strict=True)
            if not name.startswith(TORUS)]  # fmt: skip
    if not uses or not step.volume:
        return None
    cap = min(max(1, rate // weight) for (_, weight), rate in uses)
    return replace(step, uses=tuple(use for use, _ in uses), work_ps=0, cap=cap)


def _runs(body: Sequence[TopTask], runs: int) -> Iterator[tuple[str, int]]:
    """The name of each task, and how often it runs."""
    for op in body:
        if isinstance(op, TaskLoop):
            yield from _runs(op.body, runs * op.trips)
        elif not isinstance(op, Call):
            yield op.name, runs
