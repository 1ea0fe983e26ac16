"""Kernels of inference whose work their shapes tell, where neither a body nor an estimate does."""

import re
from collections.abc import Sequence
from math import ceil

from tpusim.compiler.hlo.module import Instruction
from tpusim.compiler.hlo.opcodes import vector_weight
from tpusim.compiler.hlo.shapes import ELEMENT_BITS, Shape
from tpusim.compiler.work.dots import dtype_name
from tpusim.program import CombinedWork, MatmulWork, Work

SCALE_BLOCK = 512
"""Weights along k that share a scale, if no operand of scales is there (tpu-inference, fp4)."""
QUANTISE_OPERATIONS = 3
"""Per element of rows that a kernel quantises: the largest of all, a product, a conversion."""

QUERY_BLOCK, KEY_BLOCK = 32, 4096
"""Queries and keys of a step of ragged paged attention, if the kernel's name does not have them
(tpu-inference's table of block sizes, for prefill on 7x)."""
_KEY_BLOCK = re.compile(r"bkvp_(\d+)-p_(\d+)")


def work_by_shapes(
    instruction: Instruction, operands: Sequence[Shape], read: float, written: float
) -> tuple[Work, float, str] | None:
    """Return the work of a kernel, its FLOPs and what is assumed; None for unknown shapes."""
    made = instruction.arrays
    if len(made) == 2 and all(len(shape.dims) == 5 for shape in made):
        return _ragged_attention(instruction, made[0], written=made[0].hbm_bytes)
    if len(made) == 1 and len(made[0].dims) == 2:
        return _quantised_matmul(made[0], operands, read, written)
    return None


def _quantised_matmul(
    made: Shape, operands: Sequence[Shape], read: float, written: float
) -> tuple[Work, float, str] | None:
    """Return rows [m, k] by narrower weights [n, k], whose blocks along k have a scale each.

    The kernel quantises the rows too, multiplies in the dtype of the weights, and scales the
    product of every block while it adds it: one operation per element of the result and block.
    """
    m, n = made.dims
    flat = [shape for shape in operands if len(shape.dims) == 2]
    rows = next((shape for shape in flat if shape.dims[0] == m), None)
    if rows is None:
        return None
    k = rows.dims[1]
    narrow = (shape for shape in flat if shape.elements == n * k and _bits(shape) < _bits(rows))
    weights = next(narrow, None)
    if weights is None:
        return None
    scales = next((s.elements / n for s in operands if s.dtype == "f32" and len(s.dims) == 3), 0.0)
    blocks = max(scales or ceil(k / SCALE_BLOCK), 1)
    dtype = "fp8" if weights.dtype.startswith("f") else dtype_name(weights.dtype)
    around = float(m * n * blocks + QUANTISE_OPERATIONS * m * k)
    work = MatmulWork(1, m, k, n, dtype, read, written, around)
    return work, 2.0 * m * k * n, "kernel taken by its shapes as a matmul of quantised weights"


def _bits(shape: Shape) -> int:
    return ELEMENT_BITS.get(shape.dtype, 32)


def _ragged_attention(
    instruction: Instruction, queries: Shape, written: float
) -> tuple[Work, float, str]:
    """Return the attention of queries [kv_heads, tokens, groups, packed, width] to a paged cache.

    A step computes the scores of a block of queries with a whole block of keys, masked afterwards,
    with an exponential for each. All tokens are taken as the prefill of one sequence.
    """
    heads, tokens, groups, packed, width = queries.dims
    found = _KEY_BLOCK.search(instruction.name)
    block = int(found[1]) * int(found[2]) if found else KEY_BLOCK
    keys = ceil(tokens / max(block, 1)) * max(block, 1)
    rows = min(QUERY_BLOCK, tokens) * groups * packed
    steps = heads * ceil(tokens / QUERY_BLOCK)
    cached = 2.0 * tokens * heads * width * _bits(queries) / 8
    exponentials = float((vector_weight("exponential") or 0) * steps * rows * keys)
    dtype = dtype_name(queries.dtype)
    scores = MatmulWork(
        steps, rows, width, keys, dtype, written + cached * steps / heads, 0, exponentials
    )
    sums = MatmulWork(steps, rows, keys, width, dtype, 0, written)
    flops = 4.0 * heads * groups * packed * tokens * width * tokens / 2
    note = "kernel taken by its shapes as ragged paged attention: one sequence of all tokens"
    return CombinedWork((scores, sums)), flops, note
