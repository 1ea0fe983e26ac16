"""The links of DCN: what leaves and what arrives, of the slices that permutes use alike."""

from crossings import listed

from tpusim.costs.links import SliceNics
from tpusim.hardware import ListedGroups


def test_where_all_slices_do_the_same_one_link_each_way_stands_for_all() -> None:
    ring = listed([(0, 1), (1, 2), (2, 0)])
    inside = listed([(0, 0), (1, 1)])
    for known in ([], [ring], [ring, inside]):
        nics = SliceNics.of(known, 3)
        assert nics.links() == ("dcn+", "dcn-")
        assert nics.links(ring) == ("dcn+", "dcn-")


def test_a_permute_draws_on_its_senders_and_its_receivers() -> None:
    on, back = listed([(0, 1), (1, 2), (2, 3)]), listed([(3, 0)])
    nics = SliceNics.of([on, back], 4)
    assert nics.links(on) == ("dcn:0..2+", "dcn:1..3-")
    assert nics.links(back) == ("dcn:3+", "dcn:0-")
    assert nics.links() == ("dcn:0..2+", "dcn:3+", "dcn:0-", "dcn:1..3-")


def test_slices_apart_are_named_one_by_one() -> None:
    nics = SliceNics.of([listed([(0, 1), (2, 1), (3, 4), (5, 4)])], 6)
    assert nics.links() == ("dcn:0,2..3,5+", "dcn:1,4+", "dcn:0,2..3,5-", "dcn:1,4-")


def test_groups_of_slices_take_part_whole() -> None:
    one = ListedGroups(("dcn_data",), slices=2)
    assert SliceNics.of([one], 4).links(one) == ("dcn+", "dcn-")
