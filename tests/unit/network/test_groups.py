"""Which chips belong together, from the spans of an axis."""

import numpy as np
from hypothesis import given
from toruses import places, torus

from tpusim.hardware import DIE, Span, Topology
from tpusim.network import groups, on_torus


@given(places())
def test_groups_partition_the_chips(where: tuple[tuple[Span, ...], Topology]) -> None:
    spans, topology = where
    found = groups(spans, topology)
    names = np.ravel_multi_index(tuple(np.moveaxis(found, -1, 0)), topology.dims)
    assert sorted(names.ravel().tolist()) == list(range(topology.chips))


def test_a_line_a_strided_part_and_a_whole_dimension() -> None:
    ring = torus(8)
    assert groups((Span(0, 4),), ring)[..., 0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups((Span(0, 4, 2),), ring)[..., 0].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert groups((Span(0, 8),), ring)[..., 0].tolist() == [list(range(8))]


def test_the_first_span_is_the_outermost() -> None:
    inner, outer = Span(0, 2), Span(0, 2, 2)
    assert groups((outer, inner), torus(4))[0, :, 0].tolist() == [0, 1, 2, 3]
    assert groups((inner, outer), torus(4))[0, :, 0].tolist() == [0, 2, 1, 3]


def test_members_differ_in_the_digits_of_their_spans_alone() -> None:
    """Of 3 x 8 chips, those of one group share the place along x and the middle digit of y."""
    found = groups((Span(1, 2, 4), Span(1, 2)), torus(3, 8))
    assert found.shape == (6, 4, 2)
    for group in found:
        assert len({(x, y // 2 % 2) for x, y in group.tolist()}) == 1


def test_the_die_and_spans_of_one_are_not_on_the_torus() -> None:
    assert on_torus((Span(DIE, 2), Span(0, 1), Span(1, 4))) == (Span(1, 4),)
