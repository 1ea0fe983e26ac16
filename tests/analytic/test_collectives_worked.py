"""Collectives against worked problems ("How to Scale Your Model", sharding) and measurements."""

import pytest
from torus import adding_seconds
from toruses import torus, whole

from tpusim.costs import BUSIEST_WEIGHT, collective_seconds, dcn_route, route, route_seconds
from tpusim.hardware import DIE, Chip, Span, Topology, load_chip
from tpusim.program import CollectiveKind as Kind

ARRAY = 2048 * 8192 * 2
LINK = 45e9


def book_v5e(**changes: float) -> Chip:
    """The book's v5e: 45 GB/s a link one way; bandwidth terms alone unless a latency is given."""
    numbers = {
        "ici_bandwidth": 50e9,
        "ici_efficiency": 0.9,
        "hop_latency": 0.0,
        "collective_launch": 0.0,
    }
    return load_chip("v5e").replace(**(numbers | changes))


def v5e_seconds(kind: Kind, nbytes: float, spans: list[Span], topology: Topology) -> float:
    return float(collective_seconds(kind, nbytes, spans, book_v5e(), topology))


def test_gather_over_an_unwrapped_axis_of_four() -> None:
    """Three hops of a quarter each: 560 us, as the book reckons."""
    time = v5e_seconds(Kind.ALL_GATHER, ARRAY, [Span(1, 4)], torus(4, 4, wrap=False))
    assert time == pytest.approx(560e-6, rel=0.002)


def test_gather_over_an_unwrapped_axis_of_four_is_17_percent_below_the_measured_680_us() -> None:
    """34 MB on v5e: hops and launch add 5 us to 560 us. What takes the other 115 is not known."""
    time = collective_seconds(
        Kind.ALL_GATHER, ARRAY, [Span(0, 4)], load_chip("v5e"), Topology.of("v5e", "4x4")
    )
    assert 560e-6 < time < 680e-6
    assert time / 680e-6 - 1 == pytest.approx(-0.17, abs=0.005)


def test_a_wrapped_ring_of_16_on_v5e_reaches_nine_tenths_of_its_links_at_10_mb() -> None:
    """45 GB/s each way, both ways ("How to Scale Your Model", sharding: 95 % or so at 10 MB)."""
    time = collective_seconds(
        Kind.ALL_GATHER, 10e6, [Span(0, 16)], load_chip("v5e"), Topology.of("v5e", "16x16")
    )
    assert 0.9 <= 10e6 * 15 / 16 / time / (2 * LINK) < 1


def test_gather_over_a_wrapped_axis_is_the_books_with_its_exact_factor() -> None:
    """The book has V / W = 377 us for the whole array; a device already holds a quarter of it."""
    time = v5e_seconds(Kind.ALL_GATHER, ARRAY, [Span(1, 4)], torus(4, 4))
    assert time == pytest.approx(0.75 * 373e-6, rel=0.001)
    assert time / 0.75 == pytest.approx(377e-6, rel=0.015)


def test_gather_over_a_long_ring_tends_to_the_array_over_both_directions() -> None:
    time = v5e_seconds(Kind.ALL_GATHER, ARRAY, [Span(0, 256)], torus(256, 4))
    assert time == pytest.approx(ARRAY / (2 * LINK), rel=0.005)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_all_reduce_over_k_axes_takes_twice_v_over_k_w(axes: int) -> None:
    topology = torus(16, 16, 16)
    spans = [Span(dim, 16) for dim in range(axes)]
    chip = load_chip("v5p").replace(
        ici_bandwidth=100e9, ici_efficiency=0.9, hop_latency=0.0, collective_launch=0.0
    )
    path = route(Kind.ALL_REDUCE, spans, topology)
    links = route_seconds(path, ARRAY, chip) - adding_seconds(path, ARRAY, chip)
    assert links == pytest.approx(2 * ARRAY * (1 - 1 / 16**axes) / (axes * 180e9))


@pytest.mark.parametrize("kind", [Kind.ALL_GATHER, Kind.REDUCE_SCATTER])
def test_all_reduce_is_a_scatter_and_a_gather(kind: Kind) -> None:
    spans, topology = [Span(1, 16)], torus(16, 16)
    both = v5e_seconds(Kind.ALL_REDUCE, ARRAY, spans, topology)
    assert both == pytest.approx(2 * v5e_seconds(kind, ARRAY, spans, topology))


def test_all_to_all_takes_a_quarter_of_the_gather_on_a_ring() -> None:
    """Each of 16 devices exchanges its 16th of the array; exact factors aside (X-1 for X)."""
    spans, topology = [Span(1, 16)], torus(16, 16)
    gather = v5e_seconds(Kind.ALL_GATHER, ARRAY, spans, topology) / (15 / 16)
    assert v5e_seconds(Kind.ALL_TO_ALL, ARRAY / 16, spans, topology) == pytest.approx(gather / 4)


def test_all_to_all_takes_twice_as_long_on_a_line() -> None:
    spans = [Span(1, 8)]
    ring = v5e_seconds(Kind.ALL_TO_ALL, ARRAY, spans, torus(8, 8))
    assert v5e_seconds(Kind.ALL_TO_ALL, ARRAY, spans, torus(8, 8, wrap=False)) == pytest.approx(
        2 * ring
    )


def test_permute_sends_half_each_way_and_round_the_end_of_a_line() -> None:
    """On a line both halves cross every link: to the neighbour, and from end to end."""
    spans = [Span(1, 8)]
    ring = v5e_seconds(Kind.PERMUTE, 90e6, spans, torus(8, 8))
    line = v5e_seconds(Kind.PERMUTE, 90e6, spans, torus(8, 8, wrap=False))
    assert (ring, line) == (pytest.approx(1e-3), pytest.approx(2e-3))
    hops = [route(Kind.PERMUTE, spans, torus(8, 8, wrap=wrap)).hops for wrap in (True, False)]
    assert hops == [1, 7]


@pytest.mark.parametrize(("dims", "links"), [((8, 8, 8), 128), ((4, 4, 16), 32)])
def test_all_to_all_of_a_slice_meets_the_bisection(dims: tuple[int, ...], links: int) -> None:
    """Half of the chips send half of their bytes over the cut."""
    topology = torus(*dims)
    assert topology.bisection_links == links
    spans = [Span(dim, size) for dim, size in enumerate(dims)]
    assert route(Kind.ALL_TO_ALL, spans, topology).share == topology.chips / 4 / links


def test_latency_rules_below_45_kb_a_hop() -> None:
    """At 1 us a hop and 45 GB/s, both terms of a line are equal at 45 kB a shard."""
    spans, topology = [Span(1, 4)], torus(4, 4, wrap=False)
    slow = book_v5e(hop_latency=1e-6)
    latency = collective_seconds(Kind.ALL_GATHER, 0.0, spans, slow, topology)
    total = collective_seconds(Kind.ALL_GATHER, 4 * 45e3, spans, slow, topology)
    assert total == pytest.approx(2 * latency)


def test_launch_hops_and_bytes_add_up() -> None:
    chip = book_v5e(hop_latency=1e-6, collective_launch=5e-6)
    time = collective_seconds(Kind.ALL_GATHER, ARRAY, [Span(1, 16)], chip, torus(16, 16))
    assert time == pytest.approx(5e-6 + 8 * 1e-6 + ARRAY * 15 / 16 / (2 * LINK))


def test_small_gather_on_v5e_as_measured() -> None:
    """128 kB over an axis of 4 takes 8 us (sharding chapter)."""
    chip, topology = load_chip("v5e"), Topology.of("v5e", "4x4")
    time = collective_seconds(Kind.ALL_GATHER, 128e3, [Span(0, 4)], chip, topology)
    assert time == pytest.approx(8e-6, rel=0.2)


@pytest.mark.parametrize(
    ("received", "microseconds"),
    [(1.57e6, 21.9), (6.29e6, 48.7), (25.2e6, 155.4), (100.7e6, 576.0), (402.7e6, 2252.0)],
)
def test_near_measured_7x_gathers(received: float, microseconds: float) -> None:
    """Four chips of a 2x2 face, both devices of a chip gathering beside each other: within 5 %.

    `received` is by chip: two devices, three shards each. The face is a ring of four, so two links
    are in use. tpu-recipes microbenchmarks/ironwood/collectives/all_gather.md @c8cfe2f.
    """
    spans = [Span(0, 2), Span(1, 2)]
    full = received / 2 * 4 / 3
    time = collective_seconds(
        Kind.ALL_GATHER, full, spans, load_chip("7x"), Topology.of("7x", "2x2x1")
    )
    assert time * 1e6 == pytest.approx(microseconds, rel=0.05)


def test_all_reduce_of_a_v6e_slice_adds_after_its_phases() -> None:
    """606 MB over 256 chips took 5.12 ms: within 10 %, of which 3.4 ms are the links of both axes.

    The rest is one pass of additions over HBM; without it the error would be a third.
    """
    chip, topology = load_chip("v6e"), Topology.of("v6e", "16x16")
    path = route(Kind.ALL_REDUCE, whole(topology), topology)
    time = route_seconds(path, 606e6, chip)
    assert time == pytest.approx(5.12e-3, rel=0.10)
    links = time - adding_seconds(path, 606e6, chip)
    assert links == pytest.approx(3.4e-3, rel=0.02)
    assert links < 0.67 * 5.12e-3


@pytest.mark.parametrize("size", [8, 16, 32])
def test_an_all_to_all_doubles_with_each_quadrupling_of_a_square_torus(size: int) -> None:
    """At fixed bytes a chip, within 2 %: twice the distance, and as many links a chip."""
    chip = load_chip("v6e")
    small, large = (
        collective_seconds(Kind.ALL_TO_ALL, 1e9, whole(each), chip, each)
        for each in (torus(size // 2, size // 2), torus(size, size))
    )
    assert large / small == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("kind", [Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE])
@pytest.mark.parametrize("how", ["ring", "nd", ""])
def test_a_chip_of_two_devices_carries_each_byte_once_unless_both_move_all(
    kind: Kind, how: str
) -> None:
    """Four chips of 7x in a ring: both devices together put half of 3/4 of a tensor on each link.

    Flat, they put twice that on it: each of them what a device alone would.
    """
    topology, spans = torus(4, 4, 4), [Span(0, 4), Span(DIE, 2)]
    once, flat = (route(kind, spans, topology, asked) for asked in (how, f"{how} flat"))
    passes = 2 if kind is Kind.ALL_REDUCE else 1
    assert dict(once.uses)["ici:x+"] == dict(flat.uses)["ici:x+"] == BUSIEST_WEIGHT
    assert 2 * once.share == pytest.approx(passes * 3 / 4 / 2)
    assert 2 * flat.share == pytest.approx(2 * passes * 3 / 4 / 2)
    assert flat.share == route(kind, spans[:1], topology, how).share


@pytest.mark.parametrize("how", ["nd", "ring"])
def test_a_flat_collective_takes_twice_as_long_on_links(how: str) -> None:
    """Of a whole 7x slice, in seconds; an all-to-all is flat either way."""
    chip = load_chip("7x").replace(hop_latency=0.0, collective_launch=0.0)
    topology = torus(4, 4, 4)
    spans = (*whole(topology), Span(DIE, 2))
    for kind, algorithm, ratio in ((Kind.ALL_GATHER, how, 2), (Kind.ALL_TO_ALL, "pairs", 1)):
        once, flat = (
            collective_seconds(kind, ARRAY, spans, chip, topology, asked)
            for asked in (algorithm, f"{algorithm} flat")
        )
        assert flat == pytest.approx(ratio * once)


def test_devices_of_a_chip_share_links_unless_they_gather_together() -> None:
    """Both devices apart put every byte on the links twice; together once, and cross the die."""
    chip = load_chip("7x").replace(hop_latency=0.0, collective_launch=0.0)
    topology = torus(4, 4, 4)
    apart = collective_seconds(Kind.ALL_GATHER, ARRAY, [Span(0, 4)], chip, topology)
    together = collective_seconds(
        Kind.ALL_GATHER, ARRAY, [Span(0, 4), Span(DIE, 2)], chip, topology
    )
    assert apart == pytest.approx(ARRAY * 0.75 / 90e9)
    assert together == pytest.approx(apart / 2)


def test_the_die_is_one_hop_more_a_pass() -> None:
    ring, topology = [Span(0, 4)], torus(4, 4, 4)
    for kind, passes in ((Kind.ALL_GATHER, 1), (Kind.ALL_REDUCE, 2)):
        more = route(kind, [*ring, Span(DIE, 2)], topology).hops - route(kind, ring, topology).hops
        assert more == passes


def test_gather_across_the_die_alone() -> None:
    chip = load_chip("7x").replace(hop_latency=0.0, collective_launch=0.0)
    time = collective_seconds(Kind.ALL_GATHER, ARRAY, [Span(DIE, 2)], chip, torus(4, 4, 4))
    moving = ARRAY / 2 / chip.die_to_die_bandwidth
    assert time == pytest.approx(chip.costs.die_launch + moving)


@pytest.mark.parametrize(("nbytes", "microseconds"), [(48, 1.8), (96, 2.2)])
def test_small_gathers_across_the_die_take_as_long_as_profiled(
    nbytes: float, microseconds: float
) -> None:
    """Profiles of tpu-inference on 7x (@93aca414a): 1.60 to 2.69 us."""
    time = collective_seconds(
        Kind.ALL_GATHER, nbytes, [Span(DIE, 2)], load_chip("7x"), torus(4, 4, 4)
    )
    assert time * 1e6 == pytest.approx(microseconds, rel=0.25)


def test_a_gather_that_leaves_the_chip_is_launched_on_the_network() -> None:
    chip = load_chip("7x")
    spans = [Span(DIE, 2), Span(0, 4)]
    time = collective_seconds(Kind.ALL_GATHER, 48, spans, chip, torus(4, 4, 4))
    assert time > chip.costs.collective_launch


def test_slices_exchange_over_the_data_centre_network() -> None:
    """An all-reduce of n slices moves 2 (n-1)/n of the bytes through each chip's share."""
    chip = load_chip("v5p").replace(dcn_bandwidth=6.25e9, collective_launch=0.0)
    time = route_seconds(dcn_route(Kind.ALL_REDUCE, 4), 1e9, chip)
    assert time == pytest.approx(1.5e9 / 6.25e9)


def test_exposed_communication_of_the_480b_encoder() -> None:
    """379 GB over x and 122 GB over y, each on one bidirectional ring of v4: 5.0 s.

    Compiled program, libtpu 0.0.42.1; with 16.9 s of compute that is the measured step.
    """
    chip = load_chip("v4").replace(ici_efficiency=1.0, hop_latency=0.0, collective_launch=0.0)
    topology = Topology.of("v4", "8x16x16")
    wide = collective_seconds(Kind.ALL_GATHER, 379e9, [Span(1, 16), Span(2, 16)], chip, topology)
    narrow = collective_seconds(Kind.ALL_GATHER, 122e9, [Span(0, 8)], chip, topology)
    assert wide * 256 / 255 + narrow * 8 / 7 == pytest.approx(5.0, rel=0.01)
