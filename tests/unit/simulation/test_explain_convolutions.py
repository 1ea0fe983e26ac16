"""What `tpusim explain conv` shows."""

import pytest
from commands import said
from convolutions import believed_seconds

from tpusim.costs import convolution_seconds
from tpusim.hardware import load_chip
from tpusim.program import convolution_work, rearrangements
from tpusim.simulation.explain_convolutions import explain_convolutions

STEM = ["explain", "conv", "--chip", "v4", "--input", "256x224x224x3", "--kernel", "7x7x64"]


def test_rows_are_in_order_and_have_times_before_and_after() -> None:
    device = load_chip("v5e").device
    stem = convolution_work(64, (224, 224), (7, 7), 3, 64, stride=2)
    deep = convolution_work(64, (56, 56), (3, 3), 256, 256)
    table = explain_convolutions([("stem", stem), ("deep", deep)], device)
    assert [row.name for row in table.rows] == ["stem", "deep"]
    first = table.rows[0]
    assert first.seconds == convolution_seconds(stem, device)
    assert first.rearranged[0].name == "space to depth by 2x2"
    after = convolution_work(64, (112, 112), (4, 4), 12, 64)
    assert first.rearranged[0].seconds == pytest.approx(convolution_seconds(after, device))
    assert table.rows[1].rearranged == ()
    text = str(table)
    assert text.startswith("convolutions 2 on v5e, ")
    assert "nothing to rearrange" in text


def test_width_folds_into_empty_lanes() -> None:
    """The compiler takes half as long for [64, 56, 28, 128] as for [64, 56, 56, 64]: v4, v5e.

    That is with its rates of memory. The array takes three passes of 192, of two tiles each, for
    the one, and nine of 128 for half of the positions for the other: a quarter less.
    """
    work = convolution_work(64, (56, 56), (3, 3), 64, 64)
    found = dict(rearrangements(work))["width folded by 2 into channels"]
    after = convolution_work(64, (56, 28), (3, 3), 128, 128)
    assert (found.positions, found.taps, found.window) == (56 * 28, 9, (3, 3))
    assert found.read_bytes == pytest.approx(after.read_bytes)
    for chip in ("v4", "v5e"):
        believed = believed_seconds(found, chip) / believed_seconds(work, chip)
        assert believed == pytest.approx(0.51, abs=0.1)
        device = load_chip(chip).device
        ratio = convolution_seconds(found, device) / convolution_seconds(work, device)
        assert ratio == pytest.approx(9 / (3 * 2) / 2, abs=0.02)


@pytest.mark.parametrize(
    ("size", "window", "made"),
    [(56, 1, 1), (56, 2, 2), (56, 3, 3), (56, 4, 3), (56, 5, 3), (56, 7, 5)],
)
def test_a_folded_window_covers_its_taps(size: int, window: int, made: int) -> None:
    """Pairs of taps to the left and to the right of the pair of results: 3 of them for 3 to 5."""
    work = convolution_work(8, (size,), (window,), 64, 64)
    assert dict(rearrangements(work))["width folded by 2 into channels"].window == (made,)


def test_the_command_shows_matmul_waste_and_gain(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said([*STEM, "--stride", "2"], capsys)
    assert code == 0
    assert "12,544 x [64, 147] by [147, 256]; padding wastes 43% of the array" in out
    assert "space to depth by 2x2" in out


def test_depthwise_is_on_the_vector_unit(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--input", "16x512x512", "--kernel", "32x512", "--groups", "512"]
    code, out, _ = said(["explain", "conv", "--chip", "v6e", *arguments], capsys)
    assert code == 0
    assert "on the vector unit" in out


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--chip", "v9"], "no chip 'v9' in the catalogue"),
        (["--input", "64x56x3y"], "--input is '64x56x3y'; write sizes such as 256x224x224x3"),
        (["--input", "64x56x3"], "has 1 spatial dimension and the window 2"),
        (["--stride", "0"], "--stride is 0; write 1 or more"),
        (["--groups", "2"], "2 groups do not divide 3 input and 64 output channels"),
        (["--padding", "full"], "padding is 'FULL'; valid are SAME, VALID"),
        (["--gradient", "output"], "gradient is 'output'; valid are input and weight"),
        (["--dtype", "fp8"], "v4 has no matrix rate for it"),
        (["--dtype", "f4"], "dtype 'f4': v4 has no matrix rate for it"),
        (["--input", "1x5x5x3", "--padding", "VALID"], "spans 7x7 has no place on 5x5"),
        (["--kernel", ""], "--kernel is ''; write sizes such as 7x7x64"),
    ],
)
def test_a_mistake_is_one_sentence(
    more: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said([*STEM, *more], capsys)
    assert (code, out) == (2, "")
    assert why in error
