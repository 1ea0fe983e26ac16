"""Dots and convolutions: exact FLOPs, and which matmul each is."""

from itertools import product as every

import pytest
from compiler_parts import Instruction
from hypothesis import given
from hypothesis import strategies as st

from tpusim.compiler.hlo.shapes import Shape
from tpusim.compiler.work.dots import dot_shape, window_pairs
from tpusim.costs import is_depthwise
from tpusim.program import ConvolutionWork, MatmulWork


def convolution(left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...], how: str):
    window, _, labels = how.rpartition(" ")
    text = f", {f'window={{{window}}}, ' if window else ''}dim_labels={labels}"
    return dot_shape(
        Instruction("c", "convolution", "", (), text),
        *(Shape("bf16", dims) for dims in (left, right, out)),
    )


WINDOWS = [
    # a dense layer
    ((16, 512, 64), (64, 32, 1), (16, 512, 32), "size=1 0bf_io0->0bf", (1, 8192, 64, 32)),
    # scores of attention: heads, then heads and sequences
    ((8, 16, 64), (32, 8, 64), (8, 16, 32), "size=8 stride=7 lhs_dilate=8 0bf_o0i->0bf",
     (8, 16, 64, 32)),
    ((2, 8, 16, 64), (2, 8, 32, 64), (2, 8, 16, 32),
     "size=2x8 stride=1x7 lhs_dilate=2x8 01bf_01oi->01bf", (16, 16, 64, 32)),
    # a sum over heads and their width; heads that only the weights have
    ((16, 2, 512), (2, 512, 24), (16, 24, 1), "size=2 b0f_0io->bf0", (1, 16, 1024, 24)),
    ((1, 512, 96), (8, 24, 96), (512, 8, 24), "size=8 pad=7_7 rhs_reversal=1 0bf_0oi->b0f",
     (1, 512, 96, 192)),
    # both, as a compiled program has them
    ((16, 512, 2, 2048, 1), (32, 128, 2, 2048, 1), (16, 512, 32, 128, 1),
     "size=1x32x2 pad=0_0x31_31x0_0 rhs_reversal=0x1x0 0b2f1_1o2i0->0b1f2",
     (1, 16 * 512, 2 * 2048, 32 * 128)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "out", "how", "sizes"), WINDOWS)
def test_a_window_says_which_dimension_of_a_matmul_it_is(left, right, out, how, sizes) -> None:
    found = convolution(left, right, out, how)
    assert (found.batch, found.m, found.k, found.n) == sizes
    assert found.flops == 2 * found.batch * found.m * found.k * found.n
    assert isinstance(found.work(0, 0, 0), MatmulWork)


SINGLE_TAPS = [  # of ResNet-50 in a compiled program for v4, 128 images
    ("", (128, 28, 28, 512), (1, 1, 512, 128), (128, 28, 28, 128),
     "size=1x1 b01f_01io->b01f", (512, 128)),
    ("", (128, 28, 28, 128), (1, 1, 512, 128), (128, 28, 28, 512),
     "size=1x1 b01f_01oi->b01f", (128, 512)),  # the gradient of its image
    ("weight", (128, 28, 28, 512), (128, 28, 28, 128), (1, 1, 512, 128),
     "size=28x28 f01b_i01o->01bf", (512, 128)),
]  # fmt: skip


@pytest.mark.parametrize(("gradient", "left", "right", "out", "how", "channels"), SINGLE_TAPS)
def test_a_single_tap_over_an_image_is_a_convolution(
    gradient, left, right, out, how, channels
) -> None:
    """Its FLOPs are those of a matmul; one over a sequence is one, as of any tokens."""
    found = convolution(left, right, out, how)
    assert found.flops == 2 * 128 * 28 * 28 * 512 * 128
    work = found.work(3, 2, 1)
    assert isinstance(work, ConvolutionWork)
    assert (work.batch, work.positions, work.taps) == (128, 28 * 28, 1)
    assert (work.in_channels, work.out_channels) == channels
    assert (work.gradient, work.window, work.strides) == (gradient, (1, 1), (1, 1))
    assert (work.read_bytes, work.write_bytes, work.epilogue_flops, work.tiled) == (3, 2, 1, True)


@pytest.mark.parametrize(
    ("left", "right", "out", "how"),
    [
        ((128, 28, 1, 512), (1, 1, 512, 128), (128, 28, 1, 128), "size=1x1 b01f_01io->b01f"),
        # a gradient of weights that sums over tokens and has heads in its rows
        ((4, 8, 512, 64), (1, 8, 512, 256), (4, 1, 64, 256), "size=1x8 01fb_01io->01bf"),
    ],
)
def test_one_dimension_of_positions_is_a_matmul(left, right, out, how) -> None:
    assert isinstance(convolution(left, right, out, how).work(0, 0, 0), MatmulWork)


@pytest.mark.parametrize("labels", ["bf_io->bf", "0bf_io0->0bf"])
def test_the_order_of_dimensions_does_not_matter(labels: str) -> None:
    ones = (1,) if "0" in labels else ()
    left, right, out = (*ones, 48, 64), (64, 32, *ones), (*ones, 48, 32)
    found = convolution(left, right, out, f"{'size=1 ' if ones else ''}{labels}")
    assert found.flops == 2 * 48 * 64 * 32


def test_an_image_counts_all_taps() -> None:
    """3 x 3 on 4 x 4 with a border of padding: 12 products a dimension, 10 of them on the image."""
    found = convolution(
        (2, 4, 4, 16), (3, 3, 16, 8), (2, 4, 4, 8), "size=3x3 pad=1_1x1_1 b01f_01io->b01f"
    )
    assert found.flops == 2 * 2 * 16 * 8 * 12 * 12
    work = found.work(0, 0, 0)
    assert isinstance(work, ConvolutionWork)
    assert (work.positions, work.taps) == (16, 9)


def test_grouped_features_are_groups_of_matmuls() -> None:
    instruction = Instruction(
        "c", "convolution", "", (),
        ", window={size=1}, dim_labels=b0f_0io->b0f, feature_group_count=4",
    )  # fmt: skip
    shapes = (Shape("bf16", (8, 3, 64)), Shape("bf16", (1, 16, 128)), Shape("bf16", (8, 3, 128)))
    found = dot_shape(instruction, *shapes)
    assert found.flops == 2 * 8 * 3 * 16 * 128
    assert (found.groups, found.k, found.n) == (4, 16, 32)
    together = found.work(0, 0, 0)
    assert (together.batch, together.k, together.n) == (1, 64, 128)


def test_channels_of_their_own_are_a_depthwise_convolution() -> None:
    instruction = Instruction(
        "c", "convolution", "", (),
        ", window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f, feature_group_count=256",
    )  # fmt: skip
    shapes = (Shape("bf16", (8, 32, 256)), Shape("bf16", (3, 1, 256)), Shape("bf16", (8, 32, 256)))
    found = dot_shape(instruction, *shapes)
    assert found.flops == 2 * 8 * 3 * 32 * 256
    work = found.work(0, 0, 0)
    assert isinstance(work, ConvolutionWork)
    assert (work.batch, work.in_channels, work.out_channels, work.groups) == (8, 256, 256, 256)
    assert is_depthwise(work)


GRADIENTS = [
    ((8, 32, 32, 64), (3, 3, 64, 128), (8, 16, 16, 128),
     "size=3x3 stride=2x2 pad=0_1x0_1 b01f_01io->b01f", ""),
    ((8, 16, 16, 128), (3, 3, 64, 128), (8, 32, 32, 64),
     "size=3x3 pad=2_1x2_1 lhs_dilate=2x2 rhs_reversal=1x1 b01f_01oi->b01f", "input"),
    ((8, 32, 32, 64), (8, 16, 16, 128), (3, 3, 64, 128),
     "size=16x16 pad=0_1x0_1 rhs_dilate=2x2 f01b_i01o->01bf", "weight"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "out", "how", "gradient"), GRADIENTS)
def test_gradients_have_the_sizes_of_the_forward_convolution(
    left, right, out, how, gradient
) -> None:
    """As the TPU compiler writes the three: all have 8 x 16 x 16 outputs of 3 x 3 x 64, by 128."""
    found = convolution(left, right, out, how)
    work = found.work(10, 20, 30)
    assert isinstance(work, ConvolutionWork)
    assert (work.gradient, work.window, work.strides) == (gradient, (3, 3), (2, 2))
    assert (work.batch, work.in_channels, work.out_channels) == (8, 64, 128)
    assert (work.positions, work.taps) == (256, 9)
    assert work.flops == found.flops == 2 * 8 * 48**2 * 64 * 128
    on_data = 48 - 1  # the third tap of the last position is beyond the image
    assert found.padding_flops == pytest.approx(2 * 8 * (48**2 - on_data**2) * 64 * 128)
    assert (work.read_bytes, work.write_bytes, work.epilogue_flops) == (10, 20, 30)
    assert work.tiled


def test_a_patch_is_no_gradient() -> None:
    """16 x 16 taps with a stride of 16 on 224 are more than their 14 x 14 outputs."""
    sizes = ((8, 224, 224, 3), (16, 16, 3, 768), (8, 14, 14, 768))
    work = convolution(*sizes, "size=16x16 stride=16x16 b01f_01io->b01f").work(0, 0, 0)
    assert (work.gradient, work.positions, work.taps) == ("", 14 * 14, 16 * 16)


def test_a_dot_says_its_dimensions() -> None:
    text = ", lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}"
    shapes = (Shape("s8", (4, 16, 64)), Shape("s8", (4, 64, 32)), Shape("s32", (4, 16, 32)))
    found = dot_shape(Instruction("d", "dot", "", (), text), *shapes)
    assert (found.batch, found.m, found.k, found.n, found.dtype) == (4, 16, 64, 32, "int8")


@pytest.mark.parametrize(
    ("dtype", "precision", "passes"),
    [("f32", "", 1), ("f32", "highest,highest", 6), ("f32", "default,high", 3),
     ("bf16", "highest,highest", 1)],
)  # fmt: skip
def test_f32_above_default_precision_takes_more_passes(dtype, precision, passes) -> None:
    text = ", dim_labels=bf_io->bf" + (precision and f", operand_precision={{{precision}}}")
    shapes = (Shape(dtype, (64, 64)),) * 3
    found = dot_shape(Instruction("c", "convolution", "", (), text), *shapes)
    assert found.passes == passes
    assert found.work(0, 0, 0).batch == passes


@pytest.mark.parametrize("how", ["", "size=1x1 bf_io->bf", "b0f_0io->b0f"])
def test_labels_that_do_not_fit_are_refused(how: str) -> None:
    with pytest.raises(ValueError, match=r"dim_labels|window"):
        convolution((8, 8), (8, 8), (8, 8), how or "x")


few = st.integers(1, 7)


@given(few, few, st.integers(0, 9), few, few, few, few)
def test_pairs_are_those_that_one_counts(window, stride, low, dilation, spread, size, out) -> None:
    hits = 0
    for o, w in every(range(out), range(window)):
        at = o * stride + w * spread - low
        hits += at % dilation == 0 and 0 <= at // dilation < size
    assert window_pairs(window, stride, low, dilation, spread, size, out) == hits
