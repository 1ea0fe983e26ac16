"""Bubbles and activations of pipelines against the closed forms of their papers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import HELD, bubbles, idle_share, kinds, peak_alive, simulated

from tpusim.plan import make_schedule

stages, times = st.integers(1, 7), st.integers(1, 30)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@given(p=stages, m=st.integers(1, 20), forward=times, backward=times)
def test_the_bubble_of_equal_stages(name: str, p: int, m: int, forward: int, backward: int) -> None:
    """(p-1)/(m+p-1) of the step (Huang et al., arXiv:1811.06965; arXiv:2104.04473, 2.2.1)."""
    idle = idle_share(make_schedule(name, p, m), kinds(forward, backward))
    assert idle == Fraction(p - 1, m + p - 1)


@given(p=stages, rounds=st.integers(1, 4), v=st.integers(1, 4), forward=times, backward=times)
def test_interleaving_divides_the_bubble_by_the_chunks(
    p: int, rounds: int, v: int, forward: int, backward: int
) -> None:
    """(p-1)/(v m) of the work (arXiv:2104.04473, section 2.2.2)."""
    m = rounds * p
    idle = idle_share(make_schedule("interleaved", p, m, v), kinds(forward, backward))
    assert idle / (1 - idle) == Fraction(p - 1, v * m)


def test_one_chunk_interleaved_is_no_slower_than_1f1b() -> None:
    for p, m in ((4, 8), (3, 9), (8, 8)):
        lasts = kinds(1, 2)
        assert idle_share(make_schedule("interleaved", p, m), lasts) == idle_share(
            make_schedule("1f1b", p, m), lasts
        )


@given(p=stages, more=st.integers(0, 12), f=times, b=times, w=times)
def test_zero_bubble_schedules_leave_what_their_paper_says(
    p: int, more: int, f: int, b: int, w: int
) -> None:
    """(p-1)(tF+tB-tW) for H1 and (p-1)(tF+tB-2tW) for H2, where W is the shortest pass.

    arXiv:2401.10241, table 2, with its assumption tW < tF < tB; equal times are included. H1 needs
    p microbatches and H2 2p-1. The bubble is what a stage stands still between its own first and
    last slots, as there (section 3.1), because H2's stages neither begin nor end together.
    """
    w = min(f, b, w)
    lasts = kinds(f, b, w)
    assert max(bubbles(make_schedule("zb-h1", p, p + more), lasts)) == (p - 1) * (f + b - w)
    assert max(bubbles(make_schedule("zb-h2", p, 2 * p - 1 + more), lasts)) == (p - 1) * (
        f + b - 2 * w
    )


def test_zero_bubble_schedules_with_equal_passes() -> None:
    equal = kinds(5, 5, 5)
    assert bubbles(make_schedule("zb-h2", 4, 8), equal) == [0, 0, 0, 0]
    assert max(bubbles(make_schedule("zb-h1", 4, 8), equal)) == 3 * 5
    assert max(bubbles(make_schedule("1f1b", 4, 8), kinds(5, 10))) == 3 * 15


@given(p=stages, m=st.integers(1, 20))
def test_so_many_microbatches_are_alive(p: int, m: int) -> None:
    """From their forward pass to their last one (arXiv:2104.04473; arXiv:2401.10241, table 2)."""
    assert peak_alive(make_schedule("gpipe", p, m)) == (m,) * p
    assert peak_alive(make_schedule("1f1b", p, m)) == tuple(min(m, p - s) for s in range(p))
    assert peak_alive(make_schedule("zb-h1", p, p - 1 + m)) == (p,) * p
    assert peak_alive(make_schedule("zb-h2", p, 2 * p - 2 + m)) == (2 * p - 1,) * p


@given(p=st.integers(2, 6), rounds=st.integers(2, 4), v=st.integers(2, 4))
def test_chunks_alive_when_interleaved(p: int, rounds: int, v: int) -> None:
    """2 (p-s-1) + (v-1) p run ahead, and one more is at work."""
    peaks = peak_alive(make_schedule("interleaved", p, rounds * p, v))
    ahead = (2 * (p - s - 1) + (v - 1) * p + 1 for s in range(p))
    assert peaks == tuple(min(rounds * p * v, chunks) for chunks in ahead)


@pytest.mark.parametrize(
    ("name", "chunks"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1)],
)
def test_the_engine_holds_the_activations_of_those_alive(name: str, chunks: int) -> None:
    schedule = make_schedule(name, 4, 8, chunks)
    timeline = simulated(schedule, kinds(3, 3, 3))
    peaks = tuple(memory.peak_bytes // HELD for memory in timeline.memory)
    assert peaks == peak_alive(schedule)
    for memory, alive in zip(timeline.memory, peaks, strict=True):
        assert sum(tensor.count for tensor in memory.held) == alive
