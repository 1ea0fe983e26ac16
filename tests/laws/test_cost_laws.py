"""Laws of costs: monotone, finite, the same for numbers and arrays."""

from dataclasses import fields, replace
from math import isfinite, prod
from typing import Any

import numpy as np
import pytest
from extent import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from toruses import names_for, places

from tpusim.costs import (
    BUSIEST_WEIGHT,
    CollectiveRoute,
    capacities,
    collective_seconds,
    dcn_route,
    delay_seconds,
    route,
    route_seconds,
    work_seconds,
)
from tpusim.hardware import DIE, Span, Topology, load_chip
from tpusim.network import Algorithm, on_torus
from tpusim.program import (
    AttentionWork,
    CollectiveKind,
    ConvolutionWork,
    MatmulWork,
    VectorWork,
    Work,
)

CHIPS = ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"]
KINDS = list(CollectiveKind)

chips = st.sampled_from(CHIPS).map(load_chip)
dims = st.integers(1, 20_000)
small = st.integers(1, 64)
amounts = st.integers(0, 10**11)

matmuls = st.builds(
    MatmulWork, small, dims, dims, dims, st.just("bf16"), amounts, amounts, amounts,
    st.sampled_from(["", "m", "k"]),
)  # fmt: skip
convolutions = st.builds(
    ConvolutionWork, small, dims, small, dims, dims, st.just("bf16"), amounts, amounts, amounts,
    gradient=st.sampled_from(["", "input", "weight"]), tiled=st.booleans(),
    window=st.sampled_from([(), (3,), (3, 3)]),
)  # fmt: skip
attentions = st.builds(
    AttentionWork,
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
    value_dim=st.sampled_from([64, 128, 192]),
)
vectors = st.builds(VectorWork, amounts, amounts, amounts)
works: st.SearchStrategy[Work] = st.one_of(matmuls, convolutions, attentions, vectors)


def sizes(work: Work) -> list[str]:
    """The fields that say how much work there is."""
    fixed = {"dtype", "causal", "window", "backward", "late", "ragged"}
    fixed |= {"gradient", "strides", "groups", "dilation", "tiled", "compiled", "tiles"}
    fixed |= {"block", "fused", "part", "library"}
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
def test_a_wider_window_never_takes_less_time(work: AttentionWork, chip: Any) -> None:
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
def test_arrays_equal_numbers_for_matmuls(many: list[MatmulWork], chip: Any) -> None:
    check_arrays([replace(work, ragged=many[0].ragged) for work in many], chip)


@given(st.lists(convolutions, min_size=1, max_size=4), chips)
def test_arrays_equal_numbers_for_convolutions(many: list[ConvolutionWork], chip: Any) -> None:
    alike = {name: getattr(many[0], name) for name in ("gradient", "tiled", "window")}
    check_arrays([replace(work, **alike) for work in many], chip)


@given(st.lists(vectors, min_size=1, max_size=4), chips)
def test_arrays_equal_numbers_for_vectors(many: list[VectorWork], chip: Any) -> None:
    check_arrays(many, chip)


@given(st.lists(attentions, min_size=1, max_size=4), chips)
def test_arrays_equal_numbers_for_attention(many: list[AttentionWork], chip: Any) -> None:
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


Place = tuple[tuple[Span, ...], Topology]
FLAT_TOO = ("", " flat")


@st.composite
def groups(draw: st.DrawFn) -> Place:
    """Chips of a small torus, whole dimensions or parts; alone, or with the dies."""
    spans, topology = draw(places())
    return (*spans, Span(DIE, 2)) if draw(st.booleans()) else spans, topology


kinds = st.sampled_from(KINDS)


@given(kinds, groups(), st.data())
def test_collectives_are_finite_monotone_and_know_their_links(
    kind: CollectiveKind, where: Place, data: st.DataObject
) -> None:
    chip = load_chip("7x")
    how = data.draw(st.sampled_from(["", *names_for(kind)]))
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
    where: Place,
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
    kind: CollectiveKind, where: Place, many: list[int]
) -> None:
    chip = load_chip("7x")
    together = collective_seconds(kind, np.array(many, dtype=np.float64), where[0], chip, where[1])
    alone = [collective_seconds(kind, nbytes, where[0], chip, where[1]) for nbytes in many]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


shares = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@given(kinds, groups(), shares, shares, st.data())
def test_less_in_hbm_never_slows_a_collective_and_leaves_its_other_links_alone(
    kind: CollectiveKind, where: Place, operand: float, result: float, data: st.DataObject
) -> None:
    chip, how = load_chip("7x"), data.draw(st.sampled_from(["", *names_for(kind)]))
    path = route(kind, *where, how)
    some, one, other = map(path.with_hbm_shares, [(operand, result), (operand, 0.0), (0.0, result)])
    assert path.with_hbm_shares((1.0, 1.0)) == path
    assert route_seconds(some, 1e9, chip) <= route_seconds(path, 1e9, chip)
    assert beside_hbm(some) == beside_hbm(one) == beside_hbm(path)
    both, *each = (dict(found.uses).get("hbm", 0) for found in (some, one, other))
    assert 0 <= sum(each) - both <= 1  # each is rounded up
    assert both <= dict(path.uses).get("hbm", 0)


@given(kinds, amounts, chips)
def test_a_ring_of_one_costs_nothing(kind: CollectiveKind, nbytes: int, chip: Any) -> None:
    topology = Topology((4, 4), (True, True))
    assert collective_seconds(kind, nbytes, (), chip, topology) == 0
    assert collective_seconds(kind, nbytes, (Span(0, 1),), chip, topology) == 0
    assert route_seconds(dcn_route(kind, 1), nbytes, chip) == 0


@given(kinds, groups(), st.integers(1, 10**12), st.data())
def test_twice_the_bandwidth_halves_the_bytes_term(
    kind: CollectiveKind, where: Place, nbytes: int, data: st.DataObject
) -> None:
    """Of a collective that only links hold back: what is left of its delay halves exactly."""
    how = data.draw(st.sampled_from(names_for(kind)))
    slow = load_chip("7x").replace(hbm_bandwidth=1e30, vpu_flops=1e30, hop_latency=0.0)
    rates = ("ici_bandwidth", "die_to_die_bandwidth")
    fast = slow.replace(**{name: 2 * getattr(slow, name) for name in rates})
    path = route(kind, *where, how)
    once, twice = (
        route_seconds(path, nbytes, chip) - delay_seconds(path, chip) for chip in (slow, fast)
    )
    assert once == pytest.approx(2 * twice, rel=1e-6, abs=1e-12)


@given(kinds, groups(), amounts, st.data())
def test_an_axis_of_size_one_changes_nothing(
    kind: CollectiveKind, where: Place, nbytes: int, data: st.DataObject
) -> None:
    """Neither a span of one place in the group, nor a dimension of one chip in the torus."""
    chip, (spans, topology) = load_chip("7x"), where
    how = data.draw(st.sampled_from(["", *names_for(kind)]))
    time = collective_seconds(kind, nbytes, spans, chip, topology, how)
    one = Span(data.draw(st.integers(0, len(topology.dims) - 1)), 1)
    assert collective_seconds(kind, nbytes, (one, *spans, one), chip, topology, how) == time
    if len(topology.dims) < 3 and not topology.twisted:
        more = Topology((*topology.dims, 1), (*topology.wrap, data.draw(st.booleans())))
        wider = collective_seconds(kind, nbytes, spans, chip, more, how)
        assert wider == pytest.approx(time, rel=1e-9)


@given(kinds, groups(), st.data())
def test_carrying_each_device_apart_never_takes_fewer_bytes(
    kind: CollectiveKind, where: Place, data: st.DataObject
) -> None:
    how = data.draw(st.sampled_from(names_for(kind)))
    together, apart = (ici_bytes(route(kind, *where, how + flat)) for flat in FLAT_TOO)
    both = any(span.dim == DIE for span in where[0]) and kind is not CollectiveKind.ALL_TO_ALL
    assert apart == pytest.approx((2 if both else 1) * together)


def beside_hbm(path: CollectiveRoute) -> set[tuple[str, int]]:
    return {use for use in path.uses if use[0] != "hbm"}


def ici_bytes(path: CollectiveRoute) -> float:
    """Bytes on the busiest link of each class, added up."""
    return float(
        sum(path.share * weight / BUSIEST_WEIGHT for link, weight in path.uses if "ici" in link)
    )


@given(st.lists(st.sampled_from([4, 8, 12]), min_size=1, max_size=3))
def test_all_dimensions_at_once_beat_one_ring_on_a_torus(lengths: list[int]) -> None:
    """On equal dimensions k rings at once have a k-th of the bytes each, and fewer hops."""
    topology = Topology(tuple(lengths), (True,) * len(lengths))
    spans = tuple(Span(dim, length) for dim, length in enumerate(lengths))
    ring, every = (
        route(CollectiveKind.ALL_GATHER, spans, topology, how)
        for how in (Algorithm.RING, Algorithm.ND)
    )
    assert every.share < ring.share or len(lengths) == 1
    if len(set(lengths)) == 1:
        assert every.share * len(lengths) == pytest.approx(ring.share)
    assert every.hops <= ring.hops


@given(groups(), st.sampled_from([Algorithm.RING, Algorithm.ND]))
def test_links_into_a_chip_carry_what_it_receives(where: Place, how: Algorithm) -> None:
    """A gather brings every chip all shards but its own; no algorithm can bring fewer bytes.

    Each device counts its own bytes, half of the chip's where both gather together.
    """
    chips = prod(span.size for span in on_torus(where[0]))
    dies = 2 if any(span.dim == DIE for span in where[0]) else 1
    path = route(CollectiveKind.ALL_GATHER, *where, how)
    assert ici_bytes(path) >= (chips - 1) / chips / dies * (1 - 1e-12)


@examples(20)
@given(kinds, groups())
def test_a_die_group_needs_a_die(kind: CollectiveKind, where: Place) -> None:
    crosses = any(span.dim == DIE for span in where[0])
    path = route(kind, *where)
    assert any(link.startswith("die") for link, _ in path.uses) == crosses


@pytest.mark.parametrize("chip", CHIPS)
def test_capacities_are_positive(chip: str) -> None:
    assert all(rate > 0 for rate in capacities(load_chip(chip)).values())
