"""Which links a group of devices is on."""

from tpusim.costs import group, one_ring
from tpusim.hardware import DIE, Span, Topology

V4 = Topology.of("v4", "8x16x16")
MESH = Topology.of("v4", "2x2x1")


def test_a_whole_wrapped_dimension_is_a_ring() -> None:
    (way,) = group((Span(1, 16),), V4).ways
    assert (way.ways, way.hops, way.rate) == (2, 8, 2)
    assert way.links == ("ici:y+", "ici:y-")


def test_a_contiguous_part_is_a_line() -> None:
    (way,) = group((Span(1, 4),), V4).ways
    assert (way.ways, way.hops, way.rate) == (1, 3, 1)


def test_a_strided_part_is_a_ring_that_shares_its_links() -> None:
    (way,) = group((Span(1, 4, stride=4),), V4).ways
    assert (way.ways, way.hops, way.rate) == (2, 8, 0.5)


def test_two_axes_on_one_dimension_join() -> None:
    parts = group((Span(1, 4, stride=4), Span(1, 4)), V4)
    assert parts == group((Span(1, 16),), V4)


def test_a_ring_through_a_plane_runs_along_one_dimension() -> None:
    ring = one_ring(group((Span(0, 8), Span(2, 16)), V4))
    assert (ring.name, ring.size, ring.ways, ring.hops) == ("z", 128, 2, 64)


def test_a_ring_prefers_a_wrapped_dimension_to_a_longer_line() -> None:
    topology = Topology((4, 16), (True, False))
    assert one_ring(group((Span(0, 4), Span(1, 16)), topology)).name == "x"


def test_a_face_of_four_chips_is_a_ring() -> None:
    ring = one_ring(group((Span(0, 2), Span(1, 2)), MESH))
    assert (ring.size, ring.ways, ring.hops) == (4, 2, 2)


def test_lines_of_odd_count_do_not_close() -> None:
    topology = Topology((3, 5), (False, False))
    assert one_ring(group((Span(0, 3), Span(1, 5)), topology)).ways == 1


def test_the_die_is_counted_apart() -> None:
    whole = group((Span(0, 2), Span(1, 2), Span(DIE, 2)), Topology.of("7x", "2x2x1"))
    assert (whole.chips, whole.dies, whole.devices, whole.whole) == (4, 2, 8, True)
