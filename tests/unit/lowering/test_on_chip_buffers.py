"""Buffers on the chip: which of a body's are, and what that takes off its operations."""

from dataclasses import dataclass
from unittest.mock import Mock

import pytest
from conv_nets import ConvNet, conv_plan, conv_program
from hypothesis import given
from hypothesis import strategies as st

from tpusim.hardware import load_chip
from tpusim.lowering.body_entries import HostCopy
from tpusim.lowering.body_lifetimes import BufferEvents
from tpusim.lowering.on_chip_buffers import (
    LARGEST,
    MIB,
    NEAR,
    handed_on_chip,
    on_chip_room,
    placed_on_chip,
    take_off_hbm,
)
from tpusim.partition import LoopNode
from tpusim.plan import Compiler
from tpusim.program import Alloc, Compute, ConvolutionWork, walk_ops

PLACES = 12


@dataclass(frozen=True)
class Untouching:
    """An entry that touches none of the buffers."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


def body(spans: list[tuple[int, int, float]]) -> list[BufferEvents]:
    """The events of buffers `0`, `1`, ..., given as (first, last, MiB)."""
    lives = [BufferEvents() for _ in range(PLACES)]
    for number, (first, last, size) in enumerate(spans):
        lives[first].allocs.append(Alloc(str(number), size * MIB, "activations"))
        lives[last].frees.append(str(number))
    return lives


def placed(spans: list[tuple[int, int, float]], room: float = 100.0) -> set[int]:
    entries = [Untouching()] * PLACES
    found = placed_on_chip(entries, body(spans), {}, room * MIB)  # type: ignore[arg-type]
    return {int(name) for name in found}


places = st.integers(0, PLACES - 1)
spans = st.tuples(places, places, st.floats(0.01, 40.0)).map(
    lambda one: (min(one[:2]), max(one[:2]), one[2])
)


@given(st.lists(spans, max_size=20), st.floats(0.0, 120.0))
def test_the_room_is_never_exceeded_and_never_left_where_one_would_fit(
    given: list[tuple[int, int, float]], room: float
) -> None:
    chosen = placed(given, room)
    held = [
        sum(given[n][2] for n in chosen if given[n][0] <= at <= given[n][1]) for at in range(PLACES)
    ]
    assert max(held) <= room * (1 + 1e-9)
    for number, (first, last, size) in enumerate(given):
        if number not in chosen and size * MIB <= LARGEST:
            assert max(held[first : last + 1]) + size > room * (1 - 1e-9)


def test_what_lives_shortest_is_placed_first_and_the_largest_never() -> None:
    assert placed([(0, 5, 30.0), (1, 2, 30.0), (3, 4, 30.0)], room=50.0) == {1, 2}
    assert placed([(0, 1, 64.0), (0, 1, 64.1)], room=1000.0) == {0}


def left_in_hbm(spans: list[tuple[int, int, float]], *loops: int) -> set[int]:
    """The buffers that take HBM in a body with a loop at some of its places."""
    loop = Mock(spec=LoopNode, reads=(), writes=())
    entries = [loop if place in loops else Untouching() for place in range(PLACES)]
    lives = body(spans)
    take_off_hbm(entries, lives, {}, 100 * MIB)
    left = {alloc.tensor for life in lives for alloc in life.allocs}
    assert left == {name for life in lives for name in life.frees}
    return set(map(int, left))


def test_what_is_read_soon_takes_no_hbm() -> None:
    assert left_in_hbm([(0, NEAR, 8.0), (0, NEAR + 1, 8.0), (1, 2, 33.0)]) == {1, 2}


def test_copies_to_the_host_are_no_operations_between() -> None:
    copy = Mock(spec=HostCopy, reads=(), writes=())
    entries = [copy if place in (1, 2) else Untouching() for place in range(PLACES)]
    lives = body([(0, NEAR + 2, 8.0), (0, NEAR + 3, 8.0)])
    take_off_hbm(entries, lives, {}, 100 * MIB)
    assert [alloc.tensor for life in lives for alloc in life.allocs] == ["1"]


def test_what_waits_for_a_loop_takes_hbm() -> None:
    assert left_in_hbm([(0, 3, 8.0), (3, 4, 8.0)], 2) == {0}


def net() -> ConvNet:
    made = ConvNet(64, 128, (16, 16))
    for _ in range(4):
        made.conv(128)
    return made


def hbm_bytes(pod: str, **compiler: str) -> list[tuple[float, float]]:
    """What each convolution reads from HBM and writes to it, in their order."""
    plan = conv_plan({"data": 8}, 64).replace(**compiler)
    works = [
        op.work
        for op, _ in walk_ops(conv_program(net(), plan, pod).body)
        if isinstance(op, Compute)
    ]
    found = [work for work in works if isinstance(work, ConvolutionWork)]
    return [(float(work.read_bytes), float(work.write_bytes)) for work in found]


@pytest.mark.parametrize("pod", ["v4:2x2x2", "v5e:2x4", "v6e:2x4"])
def test_only_kernels_and_the_first_image_are_read_from_hbm(pod: str) -> None:
    """A device has 8 images of 16 x 16 x 128 in bf16 and kernels of 3 x 3 x 128 x 128."""
    image, kernel = 8 * 16 * 16 * 128 * 2, 9 * 128 * 128 * 2
    for place, (read, written) in enumerate(hbm_bytes(pod)[:3]):
        assert read == pytest.approx(kernel + (image if place == 0 else 0))
        assert written == pytest.approx(0)


@pytest.mark.parametrize("pod", ["v3:2x2", "v5p:2x2x2"])
def test_other_generations_keep_activations_in_hbm(pod: str) -> None:
    image, kernel = 8 * 16 * 16 * 128 * 2, 9 * 128 * 128 * 2
    for read, written in hbm_bytes(pod)[:3]:
        assert read == pytest.approx(kernel + image)
        assert written >= image


def test_recipes_of_maxtext_leave_no_room_and_an_ideal_compiler_has_it_all() -> None:
    for name, room in {"v4": 128 * MIB, "v5e": 112 * MIB, "v6e": 96 * MIB}.items():
        chip = load_chip(name)
        assert on_chip_room(chip, Compiler()) == room < chip.vmem_bytes + chip.cmem_bytes
        assert on_chip_room(chip, Compiler(style="maxtext")) == 0
        assert on_chip_room(chip, Compiler(lowering="ideal", style="maxtext")) == room


@pytest.mark.parametrize(("room", "found"), [(100.0, {"a", "b"}), (30.0, {"b"}), (10.0, set())])
def test_layers_hand_on_what_fits_the_smaller_first(room: float, found: set[str]) -> None:
    sizes = {"a": 40 * MIB, "b": 20 * MIB, "too large": LARGEST + 1}
    entries = [Untouching()] * PLACES
    kept = handed_on_chip(entries, sizes, {}, room * MIB)  # type: ignore[arg-type]
    assert kept.keys() == found
