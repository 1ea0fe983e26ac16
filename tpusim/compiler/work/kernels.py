"""Pallas kernels: their work from names and shapes, their authors' estimates, or their bodies."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from tpusim.compiler.hlo.attributes import call_target, kernel_config, op_name
from tpusim.compiler.hlo.module import (
    Computation,
    HloModule,
    Instruction,
    KernelBody,
    KernelMatmuls,
)
from tpusim.compiler.hlo.opcodes import KERNEL_TARGETS, vector_weight
from tpusim.compiler.hlo.read import encoded_body
from tpusim.compiler.hlo.shapes import ELEMENT_BITS, Shape
from tpusim.compiler.work.attention_kernels import (
    ASSUMED_MASK,
    KernelMask,
    attention_work,
    flash_mask,
    float_arrays,
    paged_attention,
    ragged_attention,
    splash_mask,
    useful_flops,
)
from tpusim.compiler.work.dots import BF16_PASSES, DotShape, dtype_name, matmul_dtype
from tpusim.compiler.work.fusion_cost import EVEN_GROUPS, FusionCost
from tpusim.compiler.work.shaped_kernels import work_by_shapes
from tpusim.program import MatmulWork, VectorWork, Work, grouped_bytes_read

MIN_MATMUL_SIDE = 128
"""A kernel whose FLOPs would not fill a matmul of this size is taken as vector work."""


@dataclass(frozen=True, slots=True)
class KernelWork:
    """The work of a kernel, the matrix FLOPs that count, and what is assumed."""

    work: Work
    flops: float
    note: str = ""
    understood: bool = True


def kernel_work(
    module: HloModule,
    instruction: Instruction,
    operands: Sequence[Shape],
    read: float,
    written: float,
) -> KernelWork:
    """Return the work of a Pallas kernel: attention, grouped matmuls, or its author's estimate.

    A kernel of unknown name takes the time of its estimated FLOPs and bytes; without an estimate,
    that of the work in its body. If that cannot be read, it takes the time of its operands and
    results and is not understood.
    """
    name = kernel_names(instruction)
    if _PAGED_KERNEL.search(name):
        ragged = "ragged" in name
        full = paged_attention(operands, read, written, 0 if ragged else 1)
        return KernelWork(
            ragged_attention(full, operands) if ragged else full,
            useful_flops(instruction, full),
            "paged attention: caches taken as full",
        )
    mask = _mask(module, instruction, name, operands)
    if mask is not None:
        work = attention_work(instruction, operands, mask, read, written)
        return KernelWork(work, useful_flops(instruction, work), mask.note)
    found = (
        _grouped(module, instruction, float_arrays(operands), written)
        if _GROUPED_KERNEL.search(name)
        else None
    )
    return (
        found
        or _by_body(module, instruction, operands)
        or _by_shapes(instruction, operands, read, written)
        or _estimated(instruction, read, written)
    )


def kernel_names(instruction: Instruction) -> str:
    """Return the names of a kernel itself: the compiler's, its primitive's, and its author's.

    Functions and layers around it are not among them, as their names say nothing of the kernel.
    """
    parts = op_name(instruction).split("/")
    own = parts[-2:] if parts[-1] == _KERNEL_CALL else parts[-1:]
    return " ".join((instruction.name, *own)).lower()


_KERNEL_CALL = "pallas_call"
"""JAX's name of a kernel's call, after the name that its author gave it."""
_PAGED_KERNEL = re.compile(r"\b(?:ragged_)?paged_(?:flash_)?attention")
_GROUPED_KERNEL = re.compile(r"\bt?gmm(?![a-z])|\bragged[-_]dot(?!-metadata)")
SPLASH_KERNEL = re.compile(r"\bsplash_m[hq]a")
_FLASH_KERNEL = re.compile(r"\bflash_(?:m[hq]a|attention)")
_BACKWARD_KERNEL = re.compile(r"\bflash_m[hq]a_bwd|\bflash_attention.*_(dq|dkv)")
"""Names of JAX's kernels, from their beginnings on."""


def _mask(
    module: HloModule, instruction: Instruction, name: str, operands: Sequence[Shape]
) -> KernelMask | None:
    """Return the mask of an attention kernel; None for other kernels."""
    if len(float_arrays(operands)) < 3:
        return None
    if SPLASH_KERNEL.search(name):
        return splash_mask(operands)
    if _BACKWARD_KERNEL.search(name):
        return _forward_mask(module)
    found = flash_mask(*_estimate(instruction), operands)
    return found or (ASSUMED_MASK if _FLASH_KERNEL.search(name) else None)


def _forward_mask(module: HloModule) -> KernelMask:
    """Return the mask of the forward kernels, if they agree; backward kernels do not record it."""
    found = {
        flash_mask(*_estimate(instruction), _shapes(computation, instruction))
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "custom-call" and call_target(instruction) in KERNEL_TARGETS
    }
    masks = [mask for mask in found if mask is not None]
    return masks[0] if len(masks) == 1 else ASSUMED_MASK


def _shapes(computation: Computation, instruction: Instruction) -> tuple[Shape, ...]:
    return tuple(shape for name in instruction.operands for shape in computation[name].arrays)


def _grouped(
    module: HloModule, instruction: Instruction, matrices: Sequence[Shape], written: float
) -> KernelWork | None:
    """Return matmuls of groups of rows: each by its own matrix, or of rows by rows."""
    if len(matrices) != 2 or not instruction.arrays:
        return None
    left, right = matrices
    out = instruction.arrays[0]
    filled = 1.0
    m: float
    k: float
    if len(left.dims) == 2 and len(right.dims) == 3 and len(out.dims) == 2:
        groups, n = right.dims[0], out.dims[1]
        filled = _filled_share(module, left.dims[0])
        m, k, ragged = filled * left.dims[0] / max(groups, 1), left.dims[1], "m"
        written *= filled
    elif len(left.dims) == len(right.dims) == 2 and len(out.dims) == 3:
        groups, m, n = out.dims
        filled = _filled_share(module, right.dims[0])
        k, ragged = filled * left.elements / max(m * groups, 1), "k"
    else:
        return None
    read = _number(_cost_estimate(instruction), "bytes_accessed") - written
    if read <= 0 or filled < 1:
        read = float(
            grouped_bytes_read(groups, m, k, n, ragged, ELEMENT_BITS.get(left.dtype, 16) / 8)
        )
    work = MatmulWork(groups, m, k, n, dtype_name(left.dtype), read, written, ragged=ragged)
    note = EVEN_GROUPS + (EVEN_EXCHANGE if filled < 1 else "")
    return KernelWork(work, float(2 * groups * m * k * n), note)


EVEN_EXCHANGE = ", and as many rows arrived in an exchange as were sent"


def _filled_share(module: HloModule, rows: int) -> float:
    """Return the share of a buffer of so many rows that holds any, which a grouped kernel computes.

    A ragged exchange makes a buffer for all rows that could arrive; on average as many arrive as a
    device sends, which are the rows of its operand. Other buffers are full.
    """
    sent = [
        given.dims[0]
        for computation in module.computations.values()
        for one in computation.instructions
        if one.opcode == "ragged-all-to-all" and one.arrays[0].dims[:1] == (rows,)
        for given in _shapes(computation, one)[:1]
    ]
    return min(1.0, max(sent, default=rows) / max(rows, 1))


def _by_body(
    module: HloModule, instruction: Instruction, operands: Sequence[Shape]
) -> KernelWork | None:
    """Return the work in a kernel's body, except for kernels that prepare metadata of groups."""
    body = module.bodies.get(encoded_body(instruction))
    if body is None or "metadata" in instruction.name:
        return None
    read, written = moved_bytes(body, operands, instruction.arrays)
    tally = body_cost(body)
    once = ", with loops of unknown trip count counted once" if body.once else ""
    return KernelWork(tally.work(read, written, 0), tally.flops, BODY_NOTE + once)


def _by_shapes(
    instruction: Instruction, operands: Sequence[Shape], read: float, written: float
) -> KernelWork | None:
    """Return the work that shapes tell, of kernels without an estimate."""
    if any(_estimate(instruction)):
        return None
    found = work_by_shapes(instruction, operands, read, written)
    return None if found is None else KernelWork(*found)


BODY_NOTE = "kernel costed by its body"


def _estimated(instruction: Instruction, read: float, written: float) -> KernelWork:
    """Return the work that the kernel's author estimated; FLOPs are the matrix units'."""
    flops, transcendentals = _estimate(instruction)
    moved = _number(_cost_estimate(instruction), "bytes_accessed")
    if not (flops or transcendentals or moved):
        understood = "metadata" in instruction.name
        note = "" if understood else "kernel of unknown work"
        return KernelWork(VectorWork(read, written, 0), 0, note, understood)
    read = max(read, moved - written)
    side = (flops / 2) ** (1 / 3)
    note = "kernel by its author's estimate"
    if side < MIN_MATMUL_SIDE:
        return KernelWork(VectorWork(read, written, flops + transcendentals), 0, note)
    return KernelWork(MatmulWork(1, side, side, side, "bf16", read, written), flops, note)


def _estimate(instruction: Instruction) -> tuple[float, float]:
    given = _cost_estimate(instruction)
    return _number(given, "flops"), _number(given, "transcendentals")


def _cost_estimate(instruction: Instruction) -> Mapping[str, Any]:
    found = kernel_config(instruction).get("cost_estimate", {})
    return found if isinstance(found, dict) else {}


def _number(given: Mapping[str, Any], key: str) -> float:
    said = given.get(key, 0)
    try:
        found = float(said) if isinstance(said, (int, float, str)) else 0.0
    except ValueError:
        return 0.0
    return found if 0 < found < inf else 0.0


def moved_bytes(
    body: KernelBody, operands: Sequence[Shape], results: Sequence[Shape]
) -> tuple[float, float]:
    """Return the bytes that cross HBM: read of operands, and written of results.

    Blocked arrays cross one block at a time, as often as it is transferred. All others cross once,
    such as numbers prefetched before the grid begins (the first operands), or what the kernel
    fetches itself.
    """
    shapes = [*operands, *results]
    before = len(shapes) - len(body.moved)
    moved = [None] * before + [*body.moved] if before >= 0 else [None] * len(shapes)
    crossing = [
        shape.hbm_bytes * (1.0 if elements is None else elements / max(shape.elements, 1))
        for shape, elements in zip(shapes, moved, strict=True)
    ]
    return sum(crossing[: len(operands)]), sum(crossing[len(operands) :])


def body_cost(body: KernelBody) -> FusionCost:
    """Return the matmuls of a body, and its vector operations."""
    vector = sum(_mlir_weight(name) * elements for name, elements in body.operations.items())
    return FusionCost(vector, dots=[_dot_shape(each) for each in body.matmuls if each.times])


def _dot_shape(found: KernelMatmuls) -> DotShape:
    dtype = matmul_dtype(*map(_as_in_hlo, (found.left, found.right)))
    return DotShape(
        batch=found.times * found.batch,
        m=found.m,
        k=found.k,
        n=found.n,
        dtype=dtype,
        passes=BF16_PASSES["highest"] if found.exact and dtype == "f32" else 1,
    )


def _as_in_hlo(dtype: str) -> str:
    """Return the name of an MLIR dtype in HLO: `i8` is `s8`, `f8E4M3FN` the same in lower case."""
    return dtype.replace("i", "s") if dtype.startswith("i") else dtype.lower()


def _mlir_weight(name: str) -> float:
    """Return the vector operations per element, as for the same operation in HLO."""
    dialect, _, word = name.partition(".")
    if dialect not in _COMPUTE_DIALECTS and word not in _IN_HLO:
        return 0.0
    found = vector_weight(_IN_HLO.get(word, word))
    return 1.0 if found is None else found


_COMPUTE_DIALECTS = ("arith", "math")

_IN_HLO: Mapping[str, str] = {
    **dict.fromkeys(("multi_reduction", "reduction", "all_reduce"), "add"),
    **dict.fromkeys(("divf", "divsi", "divui", "reciprocal"), "divide"),
    **dict.fromkeys(("remf", "remsi", "remui"), "remainder"),
    **dict.fromkeys(("exp", "exp2"), "exponential"),
    **dict.fromkeys(("expm1", "log1p", "log2"), "log"),
    **dict.fromkeys(("powf", "fpowi", "ipowi"), "power"),
    **dict.fromkeys(("sin", "cos"), "sine"),
}
"""HLO opcodes of kernel operations whose weight is not one operation per element."""
