from tpusim.server.cached_pages import CachedPages
from tpusim.server.prompt_blocks import prompt_blocks
from tpusim.server.sequence import Sequence
from tpusim.traffic import Requests

import numpy as np  # isort: skip


def computed(pages: CachedPages, prompt: int, blocks: tuple[int, ...]) -> Sequence:
    """Return a sequence whose prompt was computed in one step."""
    sequence = Sequence(0, prompt, 1, blocks)
    cached, idle = pages.found(sequence)
    total = -(-prompt // pages.page_size)
    assert total - cached // pages.page_size + idle <= pages.free
    if cached:
        pages.use(sequence, cached)
    pages.take(total - sequence.pages)
    sequence.pages = total
    pages.keep(sequence, cached, prompt)
    return sequence


def test_a_later_prompt_finds_whole_blocks_of_an_earlier_one() -> None:
    pages = CachedPages(10, 4, block=8)
    first = computed(pages, 20, (1, 2))
    assert pages.free == 5
    assert pages.found(Sequence(1, 20, 1, (1, 2))) == (16, 0)
    assert pages.found(Sequence(1, 20, 1, (1, 3))) == (8, 0)
    assert pages.found(Sequence(1, 20, 1, (3, 2))) == (0, 0)
    pages.release(first, first.pages)
    assert pages.free == 10
    assert pages.found(Sequence(1, 20, 1, (1, 2))) == (16, 4)


def test_shared_pages_are_taken_once() -> None:
    pages = CachedPages(10, 4, block=8)
    first, second = (computed(pages, 20, (1, 2)) for _ in range(2))
    assert pages.free == 10 - 4 - 1 - 1
    pages.release(first, first.pages)
    assert pages.free == 5
    pages.release(second, second.pages)
    assert pages.free == 10


def test_the_last_token_is_computed_again() -> None:
    pages = CachedPages(10, 4, block=8)
    computed(pages, 16, (1, 2))
    assert pages.found(Sequence(1, 16, 1, (1, 2))) == (12, 0)
    computed(pages, 16, (1, 2))
    assert pages.free == 10 - 4 - 1


def test_blocks_are_lost_in_the_order_of_their_release_from_the_end() -> None:
    pages = CachedPages(6, 4, block=4)
    for blocks in ((1, 2, 3), (7, 8, 9)):
        sequence = computed(pages, 12, blocks)
        pages.release(sequence, 3)
    pages.take(1)
    assert list(pages.holders) == [1, 2, 7, 8, 9]
    pages.take(2)
    assert list(pages.holders) == [7, 8, 9]
    assert pages.free == 3


def test_keys_stand_for_all_tokens_before_them() -> None:
    requests = Requests(
        arrival_ps=np.zeros(3, np.int64),
        prompt=np.array([9, 8, 8]),
        output=np.ones(3, np.int64),
        prefixes=((5, 6, 7), (5, 6), (6, 6)),
        block=4,
    )
    first, second, third = (prompt_blocks(requests, row, 4) for row in range(3))
    assert first == second
    assert len(set(second) | set(third)) == 4
    assert prompt_blocks(requests, 0, 8) == (first[1],)
