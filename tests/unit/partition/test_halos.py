"""Halos: rows from neighbours, by the formulas and by counting what each device needs."""

from typing import Any

import pytest

from tpusim.graph import ConvolutionWindow
from tpusim.partition import Edge, Halo


def halos(size: int, taps: int, **given: Any) -> tuple[Halo, Halo]:
    """The halo of the inputs, and that of the outputs' gradient."""
    window = ConvolutionWindow("i", "o", "t", **given)
    back, outputs = window.backward(size, taps), window.output_size(size, taps)
    return Halo.of(window, size, taps), Halo.of(back, outputs, taps)


@pytest.mark.parametrize(
    ("size", "taps", "given", "shards", "forward", "backward"),
    [
        (64, 3, {}, 4, (1, 1), (1, 1)),
        (64, 7, {"stride": 2}, 4, (2, 3), (2, 1)),
        (64, 3, {"stride": 2}, 4, (0, 1), (1, 0)),
        (64, 1, {"stride": 2}, 4, (0, 0), (0, 0)),
        (64, 3, {"dilation": 4}, 4, (4, 4), (4, 4)),
        (512, 3, {"dilation": 16}, 4, (16, 16), (16, 16)),
        (64, 3, {"padding": "valid"}, 4, (0, 2), (2, 0)),
        (56, 3, {"stride": 2}, 8, (0, 8), (4, 0)),
        (64, 2, {"input_dilation": 2}, 4, (0, 0), (0, 0)),
        (64, 3, {"input_dilation": 2}, 4, (1, 0), (0, 1)),
    ],
)
def test_rows_of_a_halo_are_those_of_compiled_programs(
    size: int, taps: int, given: dict[str, Any], shards: int, forward: Any, backward: Any
) -> None:
    """Rows of the permutes of compiled convolutions (v5e 2x4 and 4x4, libtpu 0.0.42.1)."""
    one, back = halos(size, taps, **given)
    assert (one.rows(shards), back.rows(shards)) == (forward, backward)


@pytest.mark.parametrize("shards", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("up", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("size", "taps", "dilation"), [(48, 3, 1), (60, 7, 1), (50, 3, 3)])
def test_a_halo_has_every_row_that_a_device_needs(
    size: int, taps: int, dilation: int, stride: int, up: int, padding: str, shards: int
) -> None:
    """And no more than the device that needs most, up to the padding at the ends."""
    window = ConvolutionWindow("i", "o", "t", stride, dilation, up, padding)
    halo, outputs = Halo.of(window, size, taps), window.output_size(size, taps)
    own, made = -(-size // shards), -(-outputs // shards)
    low, _ = window.pads(size, taps)
    before = after = 0
    for device in range(shards):
        for output in range(device * made, min((device + 1) * made, outputs)):
            for tap in range(taps):
                place = output * stride - low + tap * dilation
                row = place // up
                if place % up == 0 and 0 <= row < size:
                    before = max(before, device * own - row)
                    after = max(after, row - (device + 1) * own + 1)
    rows = halo.rows(shards)
    assert rows[0] >= before
    assert rows[1] >= after
    if outputs % shards == 0 and size % shards == 0 and shards > 2:
        assert rows[0] - before <= low // up
        assert rows[1] - after <= halo.reach


def test_a_halo_wider_than_a_shard_comes_from_several_neighbours() -> None:
    """64 rows, 3 taps 12 apart: 12 rows on each side, of shards of 8 and of 4."""
    halo, _ = halos(64, 3, dilation=12)
    assert halo.hops(8) == ((8, 8), (4, 4))
    assert halo.hops(16) == ((4, 4), (4, 4), (4, 4))
    far = Edge(halo, after=True, distance=2)
    assert [far.rows(4), far.rows(8), Edge(halo, after=False).rows(8)] == [0, 4, 12]
    uneven, _ = halos(56, 3, stride=2)
    assert uneven.hops(8) == ((0, 7), (0, 1))


def test_a_halo_that_is_all_there_is_becomes_a_gather() -> None:
    """24 rows on each side of 16 of 64 (all-gather in a compiled program), and 23, which is not."""
    wide, less = (halos(64, 3, dilation=dilation)[0] for dilation in (24, 23))
    assert (wide.gathered(4), less.gathered(4)) == (True, False)
    assert (wide.extended(4), less.extended(4)) == (64, 16 + 46)
    near, _ = halos(64, 3, dilation=16)
    assert not near.gathered(2), "each side fits into the neighbour's shard"


def test_the_gradient_of_a_maximum_needs_the_windows_of_its_neighbours() -> None:
    """3 taps, stride 2: one window before the shard, which begins two rows before it."""
    window = ConvolutionWindow("i", "o", "t", 2)
    back = Halo.of(window.backward(64, 3), 32, 3)
    assert back.rows(4) == (1, 0)
    assert Halo.of(window, 64, 3, beyond=back).rows(4) == (2, 1)


def test_one_tap_needs_none_on_any_mesh() -> None:
    one, _ = halos(64, 1)
    strided, _ = halos(64, 1, stride=2)
    assert one.empty
    assert not strided.empty, "shards that the stride does not divide drift apart"
    assert strided.rows(5) == (0, 3)
