"""Laws of costs: monotone, finite, the same for numbers and arrays."""

from dataclasses import fields, replace
from math import isfinite, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tpusim.costs import (
    Algorithm,
    capacities,
    collective_seconds,
    group,
    route,
    route_seconds,
    work_seconds,
)
from tpusim.costs.algorithm import CHOICES
from tpusim.costs.collective import dcn_route
from tpusim.hardware import DIE, Span, Topology, load_chip
from tpusim.program import Attention, CollectiveKind, Convolution, Matmul, Vector, Work

CHIPS = ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"]
KINDS = list(CollectiveKind)

chips = st.sampled_from(CHIPS).map(load_chip)
dims = st.integers(1, 20_000)
small = st.integers(1, 64)
amounts = st.integers(0, 10**11)

matmuls = st.builds(Matmul, small, dims, dims, dims, st.just("bf16"), amounts, amounts, amounts)
convolutions = st.builds(
    Convolution, small, dims, small, dims, dims, st.just("bf16"), amounts, amounts, amounts
)
attentions = st.builds(
    Attention,
    small,
    small,
    dims,
    dims,
    st.sampled_from([64, 80, 128, 256]),
    st.just("bf16"),
    st.booleans(),
    st.sampled_from([0, 1, 100, 512, 4096, 30_000]),
    st.booleans(),
    amounts,
    amounts,
)
vectors = st.builds(Vector, amounts, amounts, amounts)
works: st.SearchStrategy[Work] = st.one_of(matmuls, convolutions, attentions, vectors)


def sizes(work: Work) -> list[str]:
    """The fields that say how much work there is."""
    fixed = {"dtype", "causal", "window", "backward"}
    return [entry.name for entry in fields(work) if entry.name not in fixed]


@given(works, chips)
def test_seconds_are_finite_and_not_negative(work: Work, chip: Any) -> None:
    time = work_seconds(work, chip.device)
    assert isfinite(time)
    assert time >= 0


@given(works, chips, st.data())
def test_more_work_never_takes_less_time(work: Work, chip: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sizes(work)))
    more = replace(work, **{name: getattr(work, name) + data.draw(st.integers(1, 10**4))})
    before, after = (work_seconds(each, chip.device) for each in (work, more))
    assert after >= before * (1 - 1e-12)


@given(attentions, chips)
def test_a_wider_window_never_takes_less_time(work: Attention, chip: Any) -> None:
    assume(work.window)
    wider = (replace(work, window=window) for window in (work.window, 2 * work.window, 0))
    times = [work_seconds(each, chip.device) for each in wider]
    assert times[0] <= times[1] * (1 + 1e-12) <= times[2] * (1 + 2e-12)


@given(works, chips, st.floats(1, 100))
def test_a_faster_chip_never_takes_longer(work: Work, chip: Any, factor: float) -> None:
    time = work_seconds(work, chip.device)
    flops = {dtype: factor * rate for dtype, rate in chip.flops.items()}
    for change in (
        {"hbm_bandwidth": factor * chip.hbm_bandwidth},
        {"vpu_flops": factor * chip.vpu_flops},
        {"flops": flops},
    ):
        assert work_seconds(work, chip.replace(**change).device) <= time * (1 + 1e-12)


@given(st.lists(matmuls, min_size=1, max_size=4), chips)
def test_arrays_equal_numbers_for_matmuls(many: list[Matmul], chip: Any) -> None:
    check_arrays(many, chip)


@given(st.lists(convolutions, min_size=1, max_size=4), chips)
def test_arrays_equal_numbers_for_convolutions(many: list[Convolution], chip: Any) -> None:
    check_arrays(many, chip)


@given(st.lists(vectors, min_size=1, max_size=4), chips)
def test_arrays_equal_numbers_for_vectors(many: list[Vector], chip: Any) -> None:
    check_arrays(many, chip)


@given(st.lists(attentions, min_size=1, max_size=4), chips)
def test_arrays_equal_numbers_for_attention(many: list[Attention], chip: Any) -> None:
    first = many[0]
    alike = {name: getattr(first, name) for name in ("causal", "window", "backward")}
    check_arrays([replace(work, **alike) for work in many], chip)


def check_arrays(many: list[Any], chip: Any) -> None:
    columns = {
        name: np.array([getattr(work, name) for work in many], dtype=np.float64)
        for name in sizes(many[0])
    }
    together = work_seconds(replace(many[0], **columns), chip.device)
    alone = [work_seconds(work, chip.device) for work in many]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@st.composite
def groups(draw: st.DrawFn) -> tuple[tuple[Span, ...], Topology]:
    """Some spans on a torus of three dimensions, whole or part, and the die."""
    lengths = tuple(draw(st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=2, max_size=3)))
    topology = Topology(lengths, tuple(draw(st.booleans()) for _ in lengths))
    spans = []
    for dim, length in enumerate(lengths):
        size = draw(st.sampled_from([part for part in (1, 2, 4, 8, 16) if part <= length]))
        spans.append(Span(dim, size, draw(st.sampled_from([1, length // size]))))
    if draw(st.booleans()):
        spans.append(Span(DIE, 2))
    return tuple(spans), topology


kinds = st.sampled_from(KINDS)


@given(kinds, groups(), st.data())
def test_collectives_are_finite_monotone_and_know_their_links(
    kind: CollectiveKind, where: tuple[tuple[Span, ...], Topology], data: st.DataObject
) -> None:
    chip = load_chip("7x")
    how = data.draw(st.sampled_from(["", *CHOICES[kind]]))
    path = route(kind, *where, how)
    assert {link for link, _ in path.uses} <= set(capacities(chip))
    assert all(weight >= 1 for _, weight in path.uses)
    times = [route_seconds(path, nbytes, chip) for nbytes in (0, 1, 10**6, 10**12)]
    assert times == sorted(times)
    assert isfinite(times[-1])
    assert times[0] >= 0


@given(kinds, groups(), amounts, st.floats(1, 100))
def test_more_bandwidth_never_slows_a_collective(
    kind: CollectiveKind,
    where: tuple[tuple[Span, ...], Topology],
    nbytes: int,
    factor: float,
) -> None:
    chip = load_chip("7x")
    time = collective_seconds(kind, nbytes, where[0], chip, where[1])
    for name in ("ici_bandwidth", "die_to_die_bandwidth", "hbm_bandwidth", "dcn_bandwidth"):
        faster = chip.replace(**{name: factor * getattr(chip, name)})
        assert collective_seconds(kind, nbytes, where[0], faster, where[1]) <= time * (1 + 1e-12)


@given(kinds, groups(), st.lists(amounts, min_size=1, max_size=5))
def test_arrays_equal_numbers_for_collectives(
    kind: CollectiveKind, where: tuple[tuple[Span, ...], Topology], many: list[int]
) -> None:
    chip = load_chip("7x")
    together = collective_seconds(kind, np.array(many, dtype=np.float64), where[0], chip, where[1])
    alone = [collective_seconds(kind, nbytes, where[0], chip, where[1]) for nbytes in many]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@given(kinds, amounts, chips)
def test_a_ring_of_one_costs_nothing(kind: CollectiveKind, nbytes: int, chip: Any) -> None:
    topology = Topology((4, 4), (True, True))
    assert collective_seconds(kind, nbytes, (), chip, topology) == 0
    assert collective_seconds(kind, nbytes, (Span(0, 1),), chip, topology) == 0
    assert route_seconds(dcn_route(kind, 1), nbytes, chip) == 0


@given(st.lists(st.sampled_from([4, 8, 12, 16]), min_size=1, max_size=3))
def test_all_dimensions_at_once_beat_one_ring_on_a_torus(lengths: list[int]) -> None:
    """k rings at once move a k-th of the bytes on each link, and take fewer hops."""
    topology = Topology(tuple(lengths), (True,) * len(lengths))
    spans = tuple(Span(dim, length) for dim, length in enumerate(lengths))
    ring, every = (
        route(CollectiveKind.ALL_GATHER, spans, topology, how)
        for how in (Algorithm.RING, Algorithm.ND)
    )
    assert every.share * len(lengths) == pytest.approx(ring.share)
    assert every.hops <= ring.hops


@given(groups(), st.sampled_from([Algorithm.RING, Algorithm.ND]))
def test_links_into_a_chip_carry_what_it_receives(
    where: tuple[tuple[Span, ...], Topology], how: Algorithm
) -> None:
    """A gather brings every chip all shards but its own; no algorithm can bring fewer bytes.

    Each device counts its own bytes, half of the chip's where both gather together.
    """
    of = group(*where)
    assume(of.chips > 1)
    assert of.chips == prod(span.size for span in where[0] if span.dim != DIE)
    path = route(CollectiveKind.ALL_GATHER, *where, how)
    into = sum(weight for link, weight in path.uses if link.startswith("ici:"))
    received = (of.chips - 1) / of.chips / of.dies
    assert path.share * into >= received * (1 - 1e-12)


@settings(max_examples=20)
@given(kinds, groups())
def test_a_die_group_needs_a_die(
    kind: CollectiveKind, where: tuple[tuple[Span, ...], Topology]
) -> None:
    crosses = any(span.dim == DIE for span in where[0])
    path = route(kind, *where)
    assert any(link.startswith("die") for link, _ in path.uses) == crosses


@pytest.mark.parametrize("chip", CHIPS)
def test_capacities_are_positive(chip: str) -> None:
    assert all(rate > 0 for rate in capacities(load_chip(chip)).values())
