"""A collective algorithm that is added by a user: schedule, loads, messages, costs and choice."""

from collections.abc import Iterator, Sequence
from math import log2

import numpy as np
import pytest
from toruses import loads_of, torus, whole

from tpusim.base import PlanError
from tpusim.costs import (
    BEST_ALGORITHM,
    best_route,
    collective_seconds,
    cost_program,
    delay_seconds,
    route,
    route_seconds,
)
from tpusim.engine import NETWORK_MODES, run
from tpusim.hardware import Placement, Slice, Span, Topology, load_chip
from tpusim.network import (
    ALGORITHMS,
    Chain,
    ChainMove,
    CollectiveAlgorithm,
    SchedulePhase,
    ScheduleStage,
    algorithms_for,
    default_algorithm,
    groups,
    link_loads_of,
    messages,
    pattern,
    register_algorithm,
)
from tpusim.program import Collective, Mode, Phase, Program
from tpusim.program import CollectiveKind as Kind

SIZES = [2, 4, 8, 16]
NAME = "recursive doubling"


def doubling(kind: Kind, spans: Sequence[Span], topology: Topology) -> tuple[SchedulePhase, ...]:
    """Phase s: each chip exchanges all it has with the chip whose number differs in bit s."""
    chips = groups(spans, topology)
    count = chips.shape[1]
    phases = []
    for bit in range(int(log2(count))):
        low = [chip for chip in range(count) if not chip >> bit & 1]
        pairs = chips[:, [(chip, chip | 1 << bit) for chip in low]].reshape(-1, 2, chips.shape[2])
        chain = Chain.of(pairs, False, topology)
        phases.append((ScheduleStage(chain, ChainMove.GATHER, 2**bit / count),))
    return tuple(phases)


def one_way(kind: Kind, spans: Sequence[Span], topology: Topology) -> tuple[SchedulePhase, ...]:
    """A ring that passes every chunk on in one direction only, in n-1 steps."""
    chips = groups(spans, topology)
    count = chips.shape[1]
    step = ScheduleStage(Chain.of(chips, True, topology), ChainMove.ONWARD, 1 / count)
    return ((step,),) * (count - 1)


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    """Both algorithms, registered for the time of a test."""
    toys = [
        CollectiveAlgorithm(name=NAME, kinds=(Kind.ALL_GATHER,), phases=doubling),
        CollectiveAlgorithm(name="one way", kinds=(Kind.ALL_GATHER,), phases=one_way),
    ]
    for toy in toys:
        assert register_algorithm(toy) is ALGORITHMS[toy.name]
    yield
    for toy in toys:
        del ALGORITHMS[toy.name]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [NAME, "one way"])
def test_bytes_equal_the_closed_form(name: str, size: int) -> None:
    """On a line: sum over s of n exchanges of 2^s/n bytes over 2^s hops, (n^2 - 1)/3."""
    topology, spans = torus(size, wrap=name == "one way"), (Span(0, size),)
    loads = link_loads_of(Kind.ALL_GATHER, name, spans, topology)
    if name == NAME:
        assert loads.sum() == pytest.approx((size**2 - 1) / 3)
        assert loads.max() == pytest.approx(size / 4 if size > 2 else 1 / 2)
    else:
        assert loads[0, 0] == pytest.approx(np.full(size, (size - 1) / size))
        assert not loads[0, 1].any()


@pytest.mark.parametrize("size", SIZES)
def test_hops_equal_the_closed_form(size: int) -> None:
    """The phases of a line cross 1, 2, 4, ... links, n - 1 in all; a ring's one each."""
    line, ring = torus(size, wrap=False), torus(size)
    paths = pattern(Kind.ALL_GATHER, NAME, (Span(0, size),), line).paths
    assert max(hops for _, hops in paths) == size - 1
    assert pattern(Kind.ALL_GATHER, "one way", (Span(0, size),), ring).hops == size - 1


@pytest.mark.parametrize("name", [NAME, "one way"])
@pytest.mark.parametrize("wrap", [True, False])
def test_single_messages_carry_the_same_bytes(name: str, wrap: bool) -> None:
    topology = torus(4, 8, wrap=wrap)
    for spans in ((Span(1, 8),), (Span(0, 4),), whole(topology)):
        sent = messages(Kind.ALL_GATHER, name, spans, topology)
        loads = link_loads_of(Kind.ALL_GATHER, name, spans, topology)
        assert loads_of(sent, topology) == pytest.approx(loads)


def test_the_engine_steps_through_its_messages() -> None:
    """A program names the algorithm; hop by hop and as a flow it takes equally long."""
    pod = Slice("v4", "4x4x8")
    gather = Collective(
        name="c", phase=Phase.FORWARD, kind=Kind.ALL_GATHER, axes=("fsdp",), bytes=8e6,
        dtype="bf16", mode=Mode.SYNC, algorithm="one way",
    )  # fmt: skip
    program = Program(name="p", axes=(("fsdp", 8),), body=(gather,))
    placed = Placement((("fsdp", (Span(2, 8),)),))
    costed = cost_program(program, pod, placed)
    flow, hops = (run([costed], network=network).total_ps for network in NETWORK_MODES)
    assert flow == pytest.approx(hops, rel=1e-4)


def test_costs_follow_the_phases() -> None:
    """One way round: all bytes but the own over one link, an eighth at each of seven hops."""
    chip, topology, spans, nbytes = load_chip("v4"), torus(8), (Span(0, 8),), 8e6
    path = route(Kind.ALL_GATHER, spans, topology, "one way")
    assert path.text == "one way through x"
    assert (path.share, path.hops) == (pytest.approx(7 / 8), 7)
    rate = chip.ici_bandwidth * chip.costs.ici_efficiency
    seconds = collective_seconds(Kind.ALL_GATHER, nbytes, spans, chip, topology, "one way")
    assert seconds == pytest.approx(delay_seconds(path, chip) + 7 / 8 * nbytes / rate)


def test_the_best_algorithm_may_be_a_registered_one() -> None:
    chip, topology, spans = load_chip("v4"), torus(16, wrap=False), (Span(0, 16),)
    names = [each.name for each in algorithms_for(Kind.ALL_GATHER)]
    assert {NAME, "one way"} < set(names)
    for nbytes in (1e3, 1e9):
        best = route_seconds(
            best_route(Kind.ALL_GATHER, spans, topology, nbytes, chip), nbytes, chip
        )
        each = [collective_seconds(Kind.ALL_GATHER, nbytes, spans, chip, topology, name)
                for name in (*names, BEST_ALGORITHM)]  # fmt: skip
        assert best == min(each) == each[-1]


def test_the_default_stays_the_compilers_unless_an_algorithm_claims_the_group() -> None:
    topology, spans = torus(8), (Span(0, 8),)
    assert default_algorithm(Kind.ALL_GATHER, spans, topology) == "ring"
    claims = CollectiveAlgorithm(
        name="claims eights",
        kinds=(Kind.ALL_GATHER,),
        phases=doubling,
        is_default=lambda kind, spans, topology: topology.chips == 8,
    )
    register_algorithm(claims)
    try:
        assert default_algorithm(Kind.ALL_GATHER, spans, topology) == claims.name
        found, named = (route(Kind.ALL_GATHER, spans, topology, name) for name in ("", NAME))
        assert (found.links, found.paths) == (named.links, named.paths)
        assert found.carried
        assert found.carried.algorithm == claims.name
        assert default_algorithm(Kind.ALL_GATHER, (Span(0, 4),), torus(4)) == "ring"
    finally:
        del ALGORITHMS[claims.name]


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="the algorithm 'ring' is registered already"):
        register_algorithm(ALGORITHMS["ring"])


def test_a_registered_algorithm_is_refused_for_other_collectives() -> None:
    with pytest.raises(PlanError, match=f"algorithm '{NAME}' cannot carry out all-reduce"):
        route(Kind.ALL_REDUCE, (Span(0, 8),), torus(8), NAME)
