"""Dots and convolutions of HLO: their exact FLOPs, and the matmul that each of them is.

The TPU compiler writes every dot as a convolution. A dimension of a dot that is neither the first
of its kind becomes a spatial one, whose window says what it is: a batch dimension has one pair of a
position and a tap for each element, and so on (XLA, `HloCostAnalysis::HandleConvolution`).
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

from tpusim.program import Convolution, Matmul
from tpusim.xla.attributes import word
from tpusim.xla.module import Instruction
from tpusim.xla.shapes import Shape

PRODUCTS = ("convolution", "dot")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_PRECISION = re.compile(r"operand_precision=\{(\w+),(\w+)\}")
PASSES = {"default": 1, "high": 3, "highest": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What a dot or convolution multiplies: `batch` products of [m, k] by [k, n].

    groups: of features, each of which is multiplied with its own weights; k and n are of one.
    positions, taps: of its dimensions that slide, 1 of a plain matmul; taps are those of a position
    that fall on an element, on average. passes: how often f32 operands are multiplied, 1 at default
    precision, 3 or 6 above it (XLA, `PrecisionConfig`). ragged: each of the batch has its own part
    of k, evenly, and the rest of it is skipped.
    """

    batch: int
    m: int
    k: int
    n: int
    groups: int = 1
    positions: int = 1
    taps: float = 1
    dtype: str = "bf16"
    passes: int = 1
    ragged: bool = False

    @property
    def each(self) -> float:
        """Elements that each of the batch contracts."""
        return self.k / self.batch if self.ragged else self.k

    @property
    def flops(self) -> float:
        """2 a multiplication and addition on elements that there are."""
        pairs = self.positions * self.taps
        return 2.0 * self.batch * self.groups * self.m * self.each * self.n * pairs

    def work(self, read: float, written: float, epilogue: float) -> Matmul | Convolution:
        """It, with its bytes and the vector operations that are fused to it.

        Groups that are narrower than the array are multiplied together, zeros between them.
        """
        together = _together(self.groups, max(self.n, 1))
        batch = self.batch * self.passes * (self.groups // together)
        k, n = self.each * together, self.n * together
        if self.positions == self.taps == 1:
            return Matmul(
                batch, self.m, k, n, self.dtype, read, written, epilogue, "k" if self.ragged else ""
            )
        return Convolution(
            batch * self.m, self.positions, self.taps, k, n, self.dtype, read, written, epilogue
        )


ARRAY = 128
"""Columns that groups share: those of the smallest array."""


def _together(groups: int, columns: int) -> int:
    """How many groups fill the array: a divisor of all."""
    return next((n for n in range(min(ARRAY // columns, groups), 1, -1) if groups % n == 0), 1)


def product(instruction: Instruction, left: Shape, right: Shape, out: Shape) -> Product:
    """What a `dot` or `convolution` of these shapes multiplies.

    Raises ValueError for attributes that do not fit the shapes.
    """
    make = _dot if instruction.opcode == "dot" else _convolution
    return make(instruction, left, right, out)


def _dot(instruction: Instruction, left: Shape, right: Shape, out: Shape) -> Product:
    text = instruction.attributes
    batch = prod(left.dims[d] for d in _dims("lhs_batch_dims", text))
    k = prod(left.dims[d] for d in _dims("lhs_contracting_dims", text))
    if not batch * k:
        return Product(batch=0, m=0, k=0, n=0)
    m, n = (shape.elements // (batch * k) for shape in (left, right))
    return Product(
        batch=batch,
        m=m,
        k=k,
        n=n,
        dtype=multiplied(left.dtype, right.dtype),
        passes=_passes(text, left, right),
    )


def _dims(key: str, text: str) -> tuple[int, ...]:
    found = re.search(rf"{key}=\{{([\d,]*)\}}", text)
    return tuple(int(dim) for dim in found[1].split(",") if dim) if found else ()


def _convolution(instruction: Instruction, left: Shape, right: Shape, out: Shape) -> Product:
    text = instruction.attributes
    found = _LABELS.search(text)
    if found is None:
        raise ValueError("it has no dim_labels")
    labels = found.groups()
    for label, shape in zip(labels, (left, right, out), strict=True):
        if len(label) != len(shape.dims):
            raise ValueError(f"dim_labels {found[0]} do not fit {left}, {right}, {out}")
    lhs, rhs, res = labels
    groups = int(word(instruction, "feature_group_count") or 1)
    batches = int(word(instruction, "batch_group_count") or 1)
    sizes = {
        "batch": 1,
        "m": left.dims[lhs.index("b")] // batches,
        "k": right.dims[rhs.index("i")],
        "n": right.dims[rhs.index("o")] // (groups * batches),
    }
    positions, taps = 1, 1.0
    for window, at in zip(_windows(text, len(lhs) - 2), map(str, range(len(lhs) - 2)), strict=True):
        size, outputs = left.dims[lhs.index(at)], out.dims[res.index(at)]
        kind, pairs = window.kind(size, outputs), window.pairs(size, outputs)
        if kind:
            sizes[kind] *= pairs
        elif outputs:
            positions, taps = positions * outputs, taps * pairs / outputs
    return Product(
        **sizes, groups=groups * batches, positions=positions, taps=taps,
        dtype=multiplied(left.dtype, right.dtype),
        passes=_passes(text, left, right), ragged=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Window:
    """One spatial dimension. dilation: of the input; spread: of the window."""

    size: int
    stride: int
    low: int
    dilation: int
    spread: int

    def pairs(self, size: int, outputs: int) -> int:
        """Pairs of an output's position and a tap that fall on one of `size` elements."""
        return _pairs(self.size, self.stride, self.low, self.dilation, self.spread, size, outputs)

    def kind(self, size: int, outputs: int) -> str:
        """What dimension of a matmul it is, or nothing where it slides.

        Each of its pairs is a batch; or it has one tap, one output, or one element of the input.
        """
        pairs = self.pairs(size, outputs)
        if self.size == 1:
            return "m" if pairs == outputs else ""
        if outputs == 1:
            return "k"
        if size == 1:
            return "n" if pairs == outputs == self.size else ""
        return "batch" if pairs == outputs == self.size == size else ""


MOST_TAPS = 1_000_000
"""More taps than a window has that slides; so long a loop takes seconds."""


@lru_cache(maxsize=4096)
def _pairs(
    window: int, stride: int, low: int, dilation: int, spread: int, size: int, outputs: int
) -> int:
    """How many (output o, tap w) have `o stride + w spread - low` on an element of the input.

    Elements lie at multiples of the dilation below `size x dilation`. The loop is over the shorter
    of the two: the other's hits are an arithmetic progression. Raises ValueError where both are
    longer than any window that slides.
    """
    if window > outputs:
        return _pairs(outputs, spread, low, dilation, stride, size, window)
    if window > MOST_TAPS:
        raise ValueError(f"its window has {window:,} taps and {outputs:,} outputs")
    return sum(_hits(w * spread - low, stride, dilation, size, outputs) for w in range(window))


def _hits(start: int, stride: int, dilation: int, size: int, outputs: int) -> int:
    """How many o < outputs have `start + o stride` at a multiple of dilation in the input."""
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


def _windows(text: str, count: int) -> list[_Window]:
    found = _WINDOW.search(text)
    given = dict(part.split("=") for part in found[1].split()) if found else {}
    columns = {key: value.split("x") for key, value in given.items()}
    for key, column in columns.items():
        if len(column) != count:
            raise ValueError(f"the window's {key} has {len(column)} of {count} dimensions")
    ones, pads = ["1"] * count, ["0_0"] * count
    return [
        _Window(
            int(columns.get("size", ones)[d]), int(columns.get("stride", ones)[d]),
            int(columns.get("pad", pads)[d].split("_")[0]),
            int(columns.get("lhs_dilate", ones)[d]), int(columns.get("rhs_dilate", ones)[d]),
        )
        for d in range(count)
    ]  # fmt: skip


def multiplied(*dtypes: str) -> str:
    """What the array multiplies, by the wider operand: f32 runs in passes of bf16."""
    return max(map(dtype_name, dtypes), key=_WIDTHS.index)


_WIDTHS = ("int4", "fp8", "int8", "bf16", "f32")


def dtype_name(dtype: str) -> str:
    """The name in tpusim of what the matrix units make of a dtype of HLO."""
    if dtype in ("s4", "u4", "s2", "u2"):
        return "int4"
    if dtype in ("s8", "u8", "pred"):
        return "int8"
    if dtype.startswith(("f8", "f4")):
        return "fp8"
    return "bf16" if dtype in ("bf16", "f16") else "f32"


def _passes(text: str, left: Shape, right: Shape) -> int:
    """Passes of bf16 that f32 operands take: by the more exact of the two precisions."""
    found = _PRECISION.search(text)
    if found is None or not {left.dtype, right.dtype} & {"f32", "f64"}:
        return 1
    return max(PASSES.get(name, 1) for name in found.groups())
