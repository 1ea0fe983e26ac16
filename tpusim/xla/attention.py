"""Attention kernels: what a custom call's name and shapes say of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from tpusim.program import Attention
from tpusim.program.keys import seen_keys
from tpusim.xla.dots import dtype_name
from tpusim.xla.module import Instruction
from tpusim.xla.shapes import Shape

BACKWARD_SHARES = {"dq": 3 / 7, "dkv": 4 / 7}
"""Parts of the backward pass that its two kernels are: dQ takes three products, dK and dV four, as
both compute the scores and their gradient (JAX, splash and flash attention kernels)."""

FUSED_SHARE = 5 / 7
"""Part that the one kernel is which computes all three gradients: five products, not seven."""

USEFUL = {"dq": 1, "dkv": 3, "": 4}
"""Products of a backward kernel that nothing computed before: dQ; dP, dK and dV. Those of the
probabilities are not, and dQ's kernel computes dP a second time."""

UNMASKED, MASKED = 2, 4
"""Operations a score, besides the products, in the estimate of JAX's flash attention: with neither
scale nor causal mask, and with both. With three it has one of the two."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Whether a kernel is causal, and what was assumed."""

    causal: bool
    note: str = ""


FULL, CAUSAL = Mask(False), Mask(True)
GUESSED = Mask(True, "attention kernel whose mask is not known: taken as causal")


def attention(
    instruction: Instruction, operands: Sequence[Shape], mask: Mask, read: float, written: float
) -> Attention:
    """The work of a forward or backward kernel, of queries, keys and values in this order.

    Raises ValueError for operands that are not [batch, heads, sequence, width], where the first
    two may be missing.
    """
    query, key, value = floats(operands)[:3]
    if not all(len(shape.dims) in (2, 3, 4) for shape in (query, key, value)):
        raise ValueError(f"queries {query} are not [batch, heads, sequence, width]")
    batch, heads = prod(query.dims[:-3]), prod(query.dims[-3:-2])
    width = value.dims[-1] if value.dims[-1] != query.dims[-1] else 0
    share = share_of(instruction, query)
    return Attention(
        batch=batch, heads=heads, q_len=query.dims[-2], kv_len=key.dims[-2],
        head_dim=query.dims[-1], dtype=dtype_name(query.dtype), causal=mask.causal, window=0,
        backward=bool(share), read_bytes=read, write_bytes=written, value_dim=width, share=share,
    )  # fmt: skip


def floats(operands: Iterable[Shape]) -> list[Shape]:
    """The matrices and stacks of matrices among a kernel's operands."""
    return [shape for shape in operands if is_float(shape) and len(shape.dims) >= 2]


def is_float(shape: Shape) -> bool:
    """Whether its elements are floating-point numbers."""
    return shape.dtype.startswith(("bf", "f"))


def part_of(instruction: Instruction) -> str:
    """Which gradients a kernel computes, by its name: `dq`, `dkv`, or none."""
    return next((part for part in BACKWARD_SHARES if f"_{part}" in instruction.name.lower()), "")


def share_of(instruction: Instruction, query: Shape) -> float:
    """The part of the backward pass that a kernel is; 0 of a forward kernel."""
    part = part_of(instruction)
    fused = part == "dkv" and _also_queries(instruction, query)
    return FUSED_SHARE if fused else BACKWARD_SHARES.get(part, 0)


def _also_queries(instruction: Instruction, query: Shape) -> bool:
    """Whether a kernel for dK and dV writes dQ as well: it has a third result that is as big."""
    wide = [shape for shape in instruction.arrays if shape.dims[-1:] == query.dims[-1:]]
    return len([shape for shape in wide if shape.elements >= query.elements]) >= 3


def useful_flops(instruction: Instruction, work: Attention) -> float:
    """FLOPs that count: two products forward, four backward, causal ones at half."""
    products = 2
    if work.backward:
        products = USEFUL["" if work.share == FUSED_SHARE else part_of(instruction)]
    scores = work.batch * work.heads * work.q_len * seen_keys(work)
    return float(2 * products * scores * (work.head_dim + work.value_width) / 2)


def splash_mask(operands: Sequence[Shape]) -> Mask:
    """The mask of splash attention, by what follows the values.

    A mask brings the queries' positions or its blocks; a full mask neither. Segments come in pairs,
    of queries and keys. Which mask it is, nothing says.
    """
    query, _, value = floats(operands)[:3]
    last = max(at for at, shape in enumerate(operands) if shape == value)
    marks = [
        shape
        for shape in operands[last + 1 :]
        if not is_float(shape) and query.dims[-2] in shape.dims[-2:]
    ]
    return GUESSED if len(marks) % 2 else FULL


def flash_mask(flops: float, transcendentals: float, operands: Sequence[Shape]) -> Mask | None:
    """The mask of JAX's flash attention, by its author's estimate; None where it is not its own.

    The estimate is one exponential a score, and two products of the width beside it.
    """
    found = floats(operands)
    if len(found) < 3 or len({len(shape.dims) for shape in found[:3]}) > 1:
        return None
    query, key, value = found[:3]
    scores = prod(query.dims[:-1]) * key.dims[-2]
    if not scores or transcendentals != scores:
        return None
    beside = flops / scores - 2 * (query.dims[-1] + value.dims[-1])
    if not UNMASKED - 1 < beside < MASKED + 1:
        return None
    return {UNMASKED: FULL, MASKED: CAUSAL}.get(round(beside), GUESSED)


def paged(
    operands: Sequence[Shape], read: float, written: float, pages_at: int
) -> Attention:  # fmt: skip
    """A kernel that reads keys and values by pages, of as many as its tables have room for.

    pages_at: which dimension of the pages numbers them. The queries are the last of each sequence.
    Raises ValueError where there is no table of pages.
    """
    tables = [shape for shape in operands if not is_float(shape) and len(shape.dims) == 2]
    found = floats(operands)
    pages = next((shape for shape in found if len(shape.dims) == 4), None)
    if not tables or pages is None:
        raise ValueError("a paged attention kernel without a table of pages")
    query, (sequences, each) = found[0], tables[0].dims
    count = max(pages.dims[pages_at], 1)
    held = sum(shape.padded_bytes for shape in found if shape == pages)
    return Attention(
        batch=sequences, heads=query.dims[-2],
        q_len=max(query.dims[0] / max(sequences, 1), 1), kv_len=each * pages.dims[pages_at + 1],
        head_dim=query.dims[-1], dtype=dtype_name(query.dtype), causal=True, window=0,
        backward=False, read_bytes=read - held * (1 - min(1.0, sequences * each / count)),
        write_bytes=written, late=True,
    )  # fmt: skip
