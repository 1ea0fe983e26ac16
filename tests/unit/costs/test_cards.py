"""The links of DCN: what leaves and what arrives, of the slices that permutes use alike."""

from crossings import listed

from tpusim.costs.cards import Cards
from tpusim.hardware.listed import Listed


def test_where_all_slices_do_the_same_one_link_each_way_stands_for_all() -> None:
    ring = listed([(0, 1), (1, 2), (2, 0)])
    inside = listed([(0, 0), (1, 1)])
    for known in ([], [ring], [ring, inside]):
        cards = Cards.of(known, 3)
        assert cards.links() == ("dcn+", "dcn-")
        assert cards.links(ring) == ("dcn+", "dcn-")


def test_a_permute_draws_on_its_senders_and_its_receivers() -> None:
    on, back = listed([(0, 1), (1, 2), (2, 3)]), listed([(3, 0)])
    cards = Cards.of([on, back], 4)
    assert cards.links(on) == ("dcn:0..2+", "dcn:1..3-")
    assert cards.links(back) == ("dcn:3+", "dcn:0-")
    assert cards.links() == ("dcn:0..2+", "dcn:3+", "dcn:0-", "dcn:1..3-")


def test_slices_apart_are_named_one_by_one() -> None:
    cards = Cards.of([listed([(0, 1), (2, 1), (3, 4), (5, 4)])], 6)
    assert cards.links() == ("dcn:0,2..3,5+", "dcn:1,4+", "dcn:0,2..3,5-", "dcn:1,4-")


def test_groups_of_slices_take_part_whole() -> None:
    one = Listed(("dcn_data",), slices=2)
    assert Cards.of([one], 4).links(one) == ("dcn+", "dcn-")
