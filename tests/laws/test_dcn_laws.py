"""Laws of what crosses slices: a card for what leaves each, and one for what arrives there."""

from collections import Counter

import pytest
from crossings import DELAY, MOVING, ROUNDED, Pairs, seconds, sent
from extent import examples
from hypothesis import given
from hypothesis import strategies as st

from tpusim.engine import run

SLICES = 4
ALONE: list[Pairs] = [((each, (each + 1) % SLICES),) for each in range(SLICES)]


@st.composite
def permutes(draw: st.DrawFn) -> Pairs:
    """No slice sends twice or receives twice, and none to itself."""
    targets = draw(st.permutations(range(SLICES)))
    pairs = [(source, target) for source, target in enumerate(targets) if source != target]
    return draw(st.sets(st.sampled_from(pairs), min_size=1).map(sorted)) if pairs else ALONE[0]


several = st.lists(permutes(), min_size=1, max_size=3)


def busiest(found: list[Pairs]) -> int:
    """How many of them one card sends at most, or receives."""
    ends = Counter(end for pairs in found for at, to in pairs for end in (("from", at), ("to", to)))
    return max(ends.values())


@examples(60)
@given(several, st.integers(0, 1))
def test_slices_that_are_one_link_take_as_long_as_each_with_links_of_its_own(
    found: list[Pairs], reduced: int
) -> None:
    merged = run([sent(*found, reduced=reduced)])
    apart = run([sent(*found, reduced=reduced, elsewhere=ALONE)])
    assert merged.total_ps == apart.total_ps
    assert len(merged.links) <= len(apart.links)


@examples(60)
@given(several)
def test_permutes_at_once_take_at_least_what_one_card_has_and_at_most_all_their_bytes(
    found: list[Pairs],
) -> None:
    time = seconds(*found)
    least, most = DELAY + busiest(found) * MOVING, DELAY + len(found) * MOVING
    assert least * (1 - ROUNDED) <= time <= most * (1 + ROUNDED)
    if len(found) < 3:
        assert time == pytest.approx(least, rel=ROUNDED)


@examples(30)
@given(several, st.permutations(range(SLICES)))
def test_it_is_of_no_matter_which_slice_is_which(found: list[Pairs], turned: list[int]) -> None:
    renamed = [sorted((turned[at], turned[to]) for at, to in pairs) for pairs in found]
    assert seconds(*renamed) == seconds(*found)


@examples(30)
@given(several)
def test_turning_all_permutes_round_changes_nothing(found: list[Pairs]) -> None:
    """What left a slice arrives there, and cards are as fast both ways."""
    back = [sorted((to, at) for at, to in pairs) for pairs in found]
    assert seconds(*back) == seconds(*found)
