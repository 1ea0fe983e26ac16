"""Attention kernels: their work, from the name and the shapes of a custom call."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from tpusim.compiler.hlo.module import Instruction
from tpusim.compiler.hlo.shapes import Shape
from tpusim.compiler.work.dots import dtype_name
from tpusim.plan.serving_plan import PAGED_BLOCK
from tpusim.program import (
    ATTENTION_BLOCK,
    SPLASH,
    TOKAMAX,
    AttentionLoad,
    AttentionWork,
    CachedAttentionWork,
    seen_keys,
)

GRADIENTS = ("dq", "dkv")
"""Names of the backward pass's two kernels (JAX, splash and flash attention kernels)."""

ALL_GRADIENTS = "all"

TOKAMAX_SETTING = "use_base2_exp"
"""A setting of Tokamax's kernels that JAX's do not have; both have theirs in the metadata."""

USEFUL_MATMULS = {"dq": 1, "dkv": 3, ALL_GRADIENTS: 4}
"""Matmuls of a backward kernel whose result is new: dQ; dP, dK and dV. The probabilities are
recomputed, and dQ's kernel computes dP a second time."""

UNMASKED_OPERATIONS, MASKED_OPERATIONS = 2, 4
"""Operations per score, besides the matmuls, in the estimate of JAX's flash attention: with neither
scale nor causal mask, and with both. With three it has one of the two."""


@dataclass(frozen=True, slots=True)
class KernelMask:
    """The mask of a kernel, causal or full, and what was assumed."""

    causal: bool
    note: str = ""


FULL_MASK, CAUSAL_MASK = KernelMask(False), KernelMask(True)
ASSUMED_MASK = KernelMask(True, "attention kernel whose mask is not known: taken as causal")


def attention_work(
    instruction: Instruction,
    operands: Sequence[Shape],
    mask: KernelMask,
    read: float,
    written: float,
) -> AttentionWork:
    """Return the work of a forward or backward kernel, of queries, keys and values in this order.

    Raise ValueError for operands that are not [batch, heads, sequence, width], of which the first
    two may be missing.
    """
    query, key, value = float_arrays(operands)[:3]
    if not all(len(shape.dims) in (2, 3, 4) for shape in (query, key, value)):
        raise ValueError(f"queries {query} are not [batch, heads, sequence, width]")
    batch, heads = prod(query.dims[:-3]), prod(query.dims[-3:-2])
    width = value.dims[-1] if value.dims[-1] != query.dims[-1] else 0
    part = _backward_part(instruction, query, key, value)
    return AttentionWork(
        batch=batch,
        heads=heads,
        q_len=query.dims[-2],
        kv_len=key.dims[-2],
        head_dim=query.dims[-1],
        dtype=dtype_name(query.dtype),
        causal=mask.causal,
        window=0,
        backward=bool(part),
        read_bytes=read,
        write_bytes=written,
        value_dim=width,
        part=part,
        block=kernel_block(instruction),
        library=TOKAMAX if TOKAMAX_SETTING in instruction.attributes else SPLASH,
    )


def float_arrays(operands: Iterable[Shape]) -> list[Shape]:
    """Return the operands of at least two dimensions that hold floating-point numbers."""
    return [shape for shape in operands if is_float(shape) and len(shape.dims) >= 2]


def is_float(shape: Shape) -> bool:
    """Return True if the elements are floating-point numbers."""
    return shape.dtype.startswith(("bf", "f"))


_NAMED_PASS = re.compile(r"(?:splash|flash)_m[hq]a_(?:bwd_)?(fwd|dq|dkv)")


def gradient_part(instruction: Instruction) -> str:
    """Return the gradients that a kernel computes, by its name: `dq`, `dkv`, or neither ("").

    Kernels of JAX begin with their pass, and some go on with block sizes of every pass
    (`splash_mha_fwd_residuals_block_kv_dq_512`, JAX 0.5). Of other names, what stands before these
    sizes counts.
    """
    name = instruction.name.lower()
    if found := _NAMED_PASS.match(name):
        return found[1] if found[1] in GRADIENTS else ""
    before = name.partition("_block")[0]
    return next((part for part in GRADIENTS if f"_{part}" in before), "")


def kernel_block(instruction: Instruction) -> tuple[int, int]:
    """Return the queries and keys of a block of splash attention, by the kernel's name or metadata.

    Names have them up to JAX 0.5, metadata later (`block_q_dkv`, `block_kv_dkv` for dK and dV).
    `ATTENTION_BLOCK` where neither does.
    """
    part = gradient_part(instruction)
    suffix = f"_{part}" if part else ""
    queries, keys = (_named_size(instruction, f"block_{of}{suffix}") for of in ("q", "kv"))
    return queries, keys


def _named_size(instruction: Instruction, name: str) -> int:
    pattern = rf"{name}(?:_|\W{{1,6}})(\d+)"
    found = re.search(pattern, instruction.name) or re.search(pattern, instruction.attributes)
    return (int(found[1]) if found else 0) or ATTENTION_BLOCK


def _backward_part(instruction: Instruction, query: Shape, key: Shape, value: Shape) -> str:
    """Return the gradients that a kernel computes, by its name and results; "" if it is forward."""
    part = gradient_part(instruction)
    fused = part == "dkv" and _computes_dq(instruction, query, key, value)
    return ALL_GRADIENTS if fused else part


def _computes_dq(instruction: Instruction, query: Shape, key: Shape, value: Shape) -> bool:
    """Return True if a kernel for dK and dV also writes dQ.

    It has a result for each operand, at least as large. dQ may have one more dimension (a part for
    each block of keys), and dK and dV as few heads as the keys. Results of fewer dimensions are
    what a kernel keeps between blocks.
    """
    made = [shape for shape in instruction.arrays if len(shape.dims) >= len(key.dims)]
    for given in sorted((query, key, value), key=lambda shape: -shape.elements):
        match = next(
            (
                shape
                for shape in sorted(made, key=lambda shape: -shape.elements)
                if shape.dims[-1] == given.dims[-1] and shape.elements >= given.elements
            ),
            None,
        )
        if match is None:
            return False
        made.remove(match)
    return True


def useful_flops(instruction: Instruction, work: AttentionWork) -> float:
    """Return the FLOPs that count: two matmuls forward, four backward, causal ones at half."""
    matmuls = 2
    if work.backward:
        matmuls = USEFUL_MATMULS[work.part]
    scores = work.batch * work.heads * work.q_len * seen_keys(work)
    return float(2 * matmuls * scores * (work.head_dim + work.value_width) / 2)


def splash_mask(operands: Sequence[Shape]) -> KernelMask:
    """Return the mask of splash attention, from the operands after the values.

    A mask brings the queries' positions or its blocks; a full mask neither. Segments come in pairs,
    of queries and keys. The kind of mask is not recorded.
    """
    query, _, value = float_arrays(operands)[:3]
    last = max(at for at, shape in enumerate(operands) if shape == value)
    marks = [
        shape
        for shape in operands[last + 1 :]
        if not is_float(shape) and query.dims[-2] in shape.dims[-2:]
    ]
    return ASSUMED_MASK if len(marks) % 2 else FULL_MASK


def flash_mask(
    flops: float, transcendentals: float, operands: Sequence[Shape]
) -> KernelMask | None:
    """Return the mask of JAX's flash attention, from its author's estimate; None for other kernels.

    The estimate is one exponential per score, besides two matmuls over the width.
    """
    found = float_arrays(operands)
    if len(found) < 3 or len({len(shape.dims) for shape in found[:3]}) > 1:
        return None
    query, key, value = found[:3]
    scores = prod(query.dims[:-1]) * key.dims[-2]
    if not scores or transcendentals != scores:
        return None
    beside = flops / scores - 2 * (query.dims[-1] + value.dims[-1])
    if not UNMASKED_OPERATIONS - 1 < beside < MASKED_OPERATIONS + 1:
        return None
    return {UNMASKED_OPERATIONS: FULL_MASK, MASKED_OPERATIONS: CAUSAL_MASK}.get(
        round(beside), ASSUMED_MASK
    )


def paged_attention(
    operands: Sequence[Shape], read: float, written: float, pages_at: int
) -> AttentionWork:
    """Return the work of a kernel that reads keys and values by pages, with full page tables.

    pages_at: the dimension of the pages that numbers them. The queries are the last of each
        sequence.

    Raise ValueError if there is no page table.
    """
    tables = [shape for shape in operands if not is_float(shape) and len(shape.dims) == 2]
    found = float_arrays(operands)
    pages = next((shape for shape in found if len(shape.dims) == 4), None)
    if not tables or pages is None:
        raise ValueError("a paged attention kernel without a table of pages")
    query, (sequences, each) = found[0], tables[0].dims
    count = max(pages.dims[pages_at], 1)
    held = sum(shape.padded_bytes for shape in found if shape == pages)
    return AttentionWork(
        batch=sequences,
        heads=query.dims[-2],
        q_len=max(query.dims[0] / max(sequences, 1), 1),
        kv_len=each * pages.dims[pages_at + 1],
        head_dim=query.dims[-1],
        dtype=dtype_name(query.dtype),
        causal=True,
        window=0,
        backward=False,
        read_bytes=read - held * (1 - min(1.0, sequences * each / count)),
        write_bytes=written,
        late=True,
    )


def ragged_attention(given: AttentionWork, operands: Sequence[Shape]) -> CachedAttentionWork:
    """Return the work of ragged paged attention, whose tokens are those of all sequences.

    Each sequence has as many: one of each decodes, several are the last ones of a prompt. Its pages
    are [page, token, keys and values of each head, width].

    given: the same as attention of each sequence to a cache that is full.
    """
    found = float_arrays(operands)
    query, pages = found[0], next(shape for shape in found if len(shape.dims) == 4)
    tokens, keys = given.batch * given.q_len, given.batch * given.kv_len
    pairs = tokens * (given.kv_len - (given.q_len - 1) / 2)
    token_bytes = query.padded_bytes / max(query.dims[0], 1)
    return CachedAttentionWork(
        heads=given.heads,
        kv_heads=max(pages.dims[2] // 2, 1),
        head_dim=given.head_dim,
        value_dim=given.value_width,
        ranks=1,
        load=AttentionLoad(tokens, keys, 0, 0, 0)
        if given.q_len == 1
        else AttentionLoad(0, 0, tokens, keys, pairs),
        drafted=1,
        window=0,
        dtype=given.dtype,
        key_bytes=pages.padded_bytes / max(pages.dims[0] * pages.dims[1], 1),
        query_bytes=token_bytes,
        output_bytes=token_bytes,
        block=PAGED_BLOCK,
    )
