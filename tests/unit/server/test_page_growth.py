import random

import pytest

from tpusim.server.page_growth import PageGrowth


def held(keys: list[int], level: int, page: int) -> int:
    return sum(-(-(key + level) // page) for key in keys)


@pytest.mark.parametrize("page", [1, 2, 7, 16, 128])
def test_pages_between_levels_are_those_of_each_sequence(page: int) -> None:
    draw = random.Random(page)
    for _ in range(50):
        growth, keys = PageGrowth(page), [draw.randrange(-50, 500) for _ in range(20)]
        for key in keys:
            growth.add(key)
        for key in [keys.pop() for _ in range(5)]:
            growth.remove(key)
        level = draw.randrange(60, 300)
        later = level + draw.choice([0, 1, 2, 5, page, page + 1, 3 * page + 2])
        taken = held(keys, later, page) - held(keys, level, page)
        assert growth.between(level, later) == taken
        free = draw.randrange(0, 40)
        reached = growth.reach(level, later, free)
        fits = [at for at in range(level, later + 1) if growth.between(level, at) <= free]
        assert reached == fits[-1]


def test_without_sequences_nothing_is_taken() -> None:
    growth = PageGrowth(16)
    assert growth.between(3, 300) == 0
    assert growth.reach(3, 300, 0) == 300
