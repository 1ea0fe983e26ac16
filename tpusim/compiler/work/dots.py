"""Dots and convolutions of HLO: their exact FLOPs, and the equivalent matmuls.

The TPU compiler writes every dot as a convolution. Dimensions of a dot beyond the first of their
kind become spatial ones, whose windows encode the kind: a batch dimension has one pair of a
position and a tap for each element, and so on (XLA, `HloCostAnalysis::HandleConvolution`).

Of windows that slide, all taps count, also those on padding: the array multiplies them. The
compiler's estimates of 3 x 3 taps on 7 x 7 positions, where a fifth of the products is on padding,
are those of all taps within 7 %, and 8 to 22 % more than those of the others (21 convolutions and
gradients on five chips, `tests/analytic/compiler_convolutions.csv`). XLA's own analysis leaves the
products on padding out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod
from typing import Any

from tpusim.compiler.hlo.attributes import plain_attribute
from tpusim.compiler.hlo.module import Instruction
from tpusim.compiler.hlo.shapes import Shape, integers
from tpusim.program import ConvolutionWork, MatmulWork

DOT_OPCODES = ("convolution", "dot")
_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_PRECISION = re.compile(r"operand_precision=\{(\w+),(\w+)\}")
BF16_PASSES = {"default": 1, "high": 3, "highest": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class DotShape:
    """The sizes of a dot or convolution: `batch` matmuls of [m, k] by [k, n].

    groups: feature groups, each multiplied by its own weights; k and n are of one group.
    positions, taps: of sliding dimensions, 1 for a plain matmul, as the forward convolution has
        them; the product of both is in `window_products`.
    on_padding: fraction of these products whose tap is on padding.
    passes: number of bf16 passes over f32 operands: 1 at default precision, 3 or 6 above it (XLA,
        `PrecisionConfig`).
    ragged: True if each batch element has its own part of k, evenly, and the rest is skipped.
    gradient, window, strides, dilation: of a convolution, as `ConvolutionWork` has them.
    image: positions of an image in two dimensions or more, to each of which a single tap is
        applied; they are in `m`, or in `k` for the gradient of the weights. 1 for others.
    """

    batch: int
    m: int
    k: int
    n: int
    groups: int = 1
    positions: float = 1
    taps: float = 1
    on_padding: float = 0
    dtype: str = "bf16"
    passes: int = 1
    ragged: bool = False
    gradient: str = ""
    window: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilation: int = 1
    image: int = 1

    @property
    def each(self) -> float:
        """Elements that each batch element contracts."""
        return self.k / self.batch if self.ragged else self.k

    @property
    def flops(self) -> float:
        """FLOPs, 2 per multiplication and addition."""
        pairs = self.positions * self.taps
        return 2.0 * self.batch * self.groups * self.m * self.each * self.n * pairs

    @property
    def padding_flops(self) -> float:
        """Those of the FLOPs whose tap is on padding."""
        return self.flops * self.on_padding

    def work(self, read: float, written: float, epilogue: float) -> MatmulWork | ConvolutionWork:
        """Return the dot's work, with its bytes and the vector operations that are fused into it.

        Groups of a matmul narrower than the array are multiplied together, with zeros between them.
        """
        if self.positions != 1 or self.taps != 1 or self.image != 1:
            return self._convolution(read, written, epilogue)
        together = _groups_together(self.groups, max(self.n, 1))
        batch = self.batch * self.passes * (self.groups // together)
        k, n = self.each * together, self.n * together
        return MatmulWork(
            batch, self.m, k, n, self.dtype, read, written, epilogue, "k" if self.ragged else ""
        )

    def _convolution(self, read: float, written: float, epilogue: float) -> ConvolutionWork:
        """Return the work with the sizes of the forward convolution, as costs have it."""
        rows, deep, wide = self.batch * self.m, self.groups * self.k, self.groups * self.n
        if self.gradient == "weight":
            rows, deep = self.k, self.groups * self.m
        elif self.gradient == "input":
            deep, wide = wide, deep
        return ConvolutionWork(
            rows // self.image * self.passes, self.positions * self.image, self.taps, deep, wide,
            self.dtype, read, written, epilogue,
            gradient=self.gradient, window=self.window, strides=self.strides, groups=self.groups,
            dilation=self.dilation, tiled=True,
        )  # fmt: skip


ARRAY_COLUMNS = 128
"""Columns that groups share: those of the smallest matrix unit."""


def _groups_together(groups: int, columns: int) -> int:
    """Return the number of groups that fill the array: a divisor of all."""
    return next(
        (n for n in range(min(ARRAY_COLUMNS // columns, groups), 1, -1) if groups % n == 0), 1
    )


def dot_shape(instruction: Instruction, left: Shape, right: Shape, out: Shape) -> DotShape:
    """Return the sizes of a `dot` or `convolution` with operands and result of these shapes.

    Raise ValueError for attributes that do not fit the shapes.
    """
    make = _dot if instruction.opcode == "dot" else _convolution
    return make(instruction, left, right, out)


def _dot(instruction: Instruction, left: Shape, right: Shape, out: Shape) -> DotShape:
    text = instruction.attributes
    batch = _sizes("lhs_batch_dims", text, left)
    k = _sizes("lhs_contracting_dims", text, left)
    if not batch * k:
        return DotShape(batch=0, m=0, k=0, n=0)
    m, n = (shape.elements // (batch * k) for shape in (left, right))
    return DotShape(
        batch=batch,
        m=m,
        k=k,
        n=n,
        dtype=matmul_dtype(left.dtype, right.dtype),
        passes=_passes(text, left, right),
    )


def _sizes(key: str, text: str, shape: Shape) -> int:
    """Return the number of elements over the dimensions that an attribute names."""
    found = re.search(rf"{key}=\{{([\d,]*)\}}", text)
    dims = integers(found[1]) if found else ()
    if max(dims, default=-1) >= len(shape.dims):
        raise ValueError(f"its {key} do not fit {shape}")
    return prod(shape.dims[dim] for dim in dims)


def _convolution(instruction: Instruction, left: Shape, right: Shape, out: Shape) -> DotShape:
    text = instruction.attributes
    found = _DIM_LABELS.search(text)
    if found is None:
        raise ValueError("it has no dim_labels")
    labels = found.groups()
    for label, shape in zip(labels, (left, right, out), strict=True):
        if len(label) != len(shape.dims):
            raise ValueError(f"dim_labels {found[0]} do not fit {left}, {right}, {out}")
    lhs, rhs, res = labels
    groups = int(plain_attribute(instruction, "feature_group_count") or 1)
    batches = int(plain_attribute(instruction, "batch_group_count") or 1)
    sizes: dict[str, Any] = {
        "batch": 1,
        "m": left.dims[lhs.index("b")] // batches,
        "k": right.dims[rhs.index("i")],
        "n": right.dims[rhs.index("o")] // (groups * batches),
    }
    sliding: list[tuple[_HloWindow, int, int]] = []
    plain: dict[str, list[int]] = {}
    for window, at in zip(_windows(text, len(lhs) - 2), map(str, range(len(lhs) - 2)), strict=True):
        size, outputs = left.dims[lhs.index(at)], out.dims[res.index(at)]
        kind = window.kind(size, outputs)
        if kind:
            plain.setdefault(kind, []).append(window.pairs(size, outputs))
        elif outputs:
            sliding.append((window, size, outputs))
    sizes |= {kind: sizes[kind] * prod(pairs) for kind, pairs in plain.items()}
    dot = DotShape(
        **sizes,
        groups=groups * batches,
        dtype=matmul_dtype(left.dtype, right.dtype),
        passes=_passes(text, left, right),
    )
    if not sliding and sizes["batch"] == dot.groups == 1:
        return replace(dot, **_single_tap(plain))
    return replace(dot, **_forward(sliding, sizes["batch"]))


def _single_tap(plain: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return the positions of an image that is multiplied by a single tap, and the gradient.

    plain: sizes of the spatial dimensions of a dot, by the dimension of a matmul that they are.

    A dot of two matrices has one spatial dimension of a kind at most, as the first of its rows and
    the first that it sums over are the batch and the features.
    """
    for kind, gradient in (("m", ""), ("k", "weight")):
        dims = [size for size in plain.get(kind, ()) if size > 1]
        if len(dims) >= IMAGE_DIMENSIONS and plain.keys() <= {kind}:
            ones = (1,) * len(dims)
            return {"image": prod(dims), "gradient": gradient, "window": ones, "strides": ones}
    return {}


IMAGE_DIMENSIONS = 2
"""Dimensions of positions that an image has at least. What has one is a sequence, whose convolution
of a single tap is a matmul of tokens in every program."""


def _forward(sliding: "list[tuple[_HloWindow, int, int]]", batch: int) -> dict[str, Any]:
    """Return how the forward convolution slides, of (window, size, outputs) in each dimension.

    The gradient of the weights has the outputs as its window, which spans the image, and the taps
    as its outputs, so that strides and dilation change places; that of the input has the strides as
    the dilation of its operand.
    """
    windows = [window for window, _, _ in sliding]
    pairs = prod(window_products(one.size, size, outputs) for one, size, outputs in sliding)
    on_data = prod(one.pairs(size, outputs) for one, size, outputs in sliding)
    taps, strides = tuple(one.size for one in windows), tuple(one.stride for one in windows)
    spread, gradient = tuple(one.spread for one in windows), ""
    if windows and batch == 1 and all(one.spans(size, outputs) for one, size, outputs in sliding):
        gradient, strides, spread = "weight", spread, strides
        taps = tuple(outputs for _, _, outputs in sliding)
    elif any(one.dilation > 1 for one in windows):
        gradient, strides = "input", tuple(one.dilation for one in windows)
    return {
        "gradient": gradient, "window": taps, "strides": strides,
        "dilation": max(spread, default=1), "taps": prod(taps), "positions": pairs / prod(taps),
        "on_padding": 1 - on_data / pairs if pairs else 0,
    }  # fmt: skip


def window_products(window: int, size: int, outputs: int) -> int:
    """Return the products of a dimension whose window slides, taps on padding included.

    Every tap meets every position, inputs or outputs, whichever are less; of the gradient of a
    kernel, whose outputs are the taps, the window is as the outputs forward. So it is the product
    of the two least of the three, for a convolution and for both of its gradients.
    """
    least, middle, _ = sorted((window, size, outputs))
    return least * middle


@dataclass(frozen=True, slots=True)
class _HloWindow:
    """One spatial dimension.

    dilation: that of the input.
    spread: the dilation of the window.
    """

    size: int
    stride: int
    low: int
    dilation: int
    spread: int

    def pairs(self, size: int, outputs: int) -> int:
        """Return the number of pairs of an output and a tap that fall on one of `size` elements."""
        return window_pairs(
            self.size, self.stride, self.low, self.dilation, self.spread, size, outputs
        )

    def spans(self, size: int, outputs: int) -> bool:
        """Return whether the window spans most of `size` elements, and slides to fewer outputs."""
        return self.size > outputs and 2 * self.size * self.spread > size

    def kind(self, size: int, outputs: int) -> str:
        """Return the dimension of a matmul that this one is, or "" if the window slides.

        Each of its pairs is a batch element; or it has one tap, one output, or one input element.
        """
        pairs = self.pairs(size, outputs)
        if self.size == 1:
            return "m" if pairs == outputs else ""
        if outputs == 1:
            return "k"
        if size == 1:
            return "n" if pairs == outputs == self.size else ""
        return "batch" if pairs == outputs == self.size == size else ""


MAX_WINDOW_TAPS = 1_000_000
"""Bound on the taps of a sliding window; a longer loop takes seconds."""


@lru_cache(maxsize=4096)
def window_pairs(
    window: int, stride: int, low: int, dilation: int, spread: int, size: int, outputs: int
) -> int:
    """Return the number of (output o, tap w) with `o stride + w spread - low` on an input element.

    Elements are at multiples of the dilation below `size x dilation`. The loop is over the shorter
    of the two; the other's hits are an arithmetic progression. Raise ValueError if both are longer
    than any window that slides.
    """
    if window > outputs:
        return window_pairs(outputs, spread, low, dilation, stride, size, window)
    if window > MAX_WINDOW_TAPS:
        raise ValueError(f"its window has {window:,} taps and {outputs:,} outputs")
    return sum(_hits(w * spread - low, stride, dilation, size, outputs) for w in range(window))


def _hits(start: int, stride: int, dilation: int, size: int, outputs: int) -> int:
    """Return the number of o < outputs with `start + o stride` on an input element."""
    common = gcd(stride, dilation)
    if start % common:
        return 0
    period = dilation // common
    first = -start // common * pow(stride // common, -1, period) % period
    last = dilation * (size - 1)
    low = max(0, -(start // stride))
    high = min(outputs - 1, (last - start) // stride)
    low += (first - low) % period
    return (high - low) // period + 1 if high >= low else 0


def _windows(text: str, count: int) -> list[_HloWindow]:
    found = _WINDOW.search(text)
    given = dict(part.split("=") for part in found[1].split()) if found else {}
    columns = {key: value.split("x") for key, value in given.items()}
    for key, column in columns.items():
        if len(column) != count:
            raise ValueError(f"the window's {key} has {len(column)} of {count} dimensions")
    ones, pads = ["1"] * count, ["0_0"] * count
    return [
        _HloWindow(
            int(columns.get("size", ones)[d]),
            int(columns.get("stride", ones)[d]),
            int(columns.get("pad", pads)[d].split("_")[0]),
            int(columns.get("lhs_dilate", ones)[d]),
            int(columns.get("rhs_dilate", ones)[d]),
        )
        for d in range(count)
    ]


def matmul_dtype(*dtypes: str) -> str:
    """Return the dtype that the array multiplies, of the wider operand; f32 runs in bf16 passes."""
    return max(map(dtype_name, dtypes), key=_DTYPES_BY_WIDTH.index)


_DTYPES_BY_WIDTH = ("int4", "fp8", "int8", "bf16", "f32")


def dtype_name(dtype: str) -> str:
    """Return tpusim's name for the dtype in which the matrix units process a dtype of HLO."""
    if dtype in ("s4", "u4", "s2", "u2"):
        return "int4"
    if dtype in ("s8", "u8", "pred"):
        return "int8"
    if dtype.startswith(("f8", "f4")):
        return "fp8"
    return "bf16" if dtype in ("bf16", "f16") else "f32"


def _passes(text: str, left: Shape, right: Shape) -> int:
    """Return the bf16 passes that f32 operands take, by the higher of the two precisions."""
    found = _PRECISION.search(text)
    if found is None or not {left.dtype, right.dtype} & {"f32", "f64"}:
        return 1
    return max(BF16_PASSES.get(name, 1) for name in found.groups())
