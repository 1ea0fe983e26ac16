"""Pallas kernels: custom calls that say little, so their work is read from names and shapes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from tpusim.program import Matmul, Vector, Work
from tpusim.program.grouped import bytes_read
from tpusim.xla.attention import (
    GUESSED,
    Mask,
    attention,
    flash_mask,
    floats,
    paged,
    splash_mask,
    useful_flops,
)
from tpusim.xla.attributes import kernel_config, op_name, target
from tpusim.xla.bodies import body_of, moved_bytes, tally_of
from tpusim.xla.dots import dtype_name
from tpusim.xla.masked import EVEN
from tpusim.xla.module import Computation, Instruction, Module
from tpusim.xla.opcodes import KERNELS
from tpusim.xla.shapes import BITS, Shape

MATRIX_SIDE = 128
"""A kernel whose FLOPs would not fill a product of this size is taken for vector work."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The work of a kernel, the matrix FLOPs that count, and what is assumed."""

    work: Work
    flops: float
    note: str = ""
    understood: bool = True


def kernel(
    module: Module, instruction: Instruction, operands: Sequence[Shape], read: float, written: float
) -> Kernel:
    """What a Pallas kernel does: attention, grouped matmuls, or what its author estimates.

    A kernel of an unknown name is as long as its estimate of FLOPs and bytes; without one, as what
    its body does; and where that cannot be read, as its operands and results take to pass, and then
    it is not understood.
    """
    name = f"{instruction.name} {op_name(instruction)}".lower()
    if "paged" in name and "attention" in name:
        work = paged(operands, read, written, 0 if "ragged" in name else 1)
        return Kernel(
            work, useful_flops(instruction, work), "paged attention: caches taken as full"
        )  # fmt: skip
    mask = _mask(module, instruction, name, operands)
    if mask is not None:
        work = attention(instruction, operands, mask, read, written)
        return Kernel(work, useful_flops(instruction, work), mask.note)
    found = _grouped(instruction, floats(operands), written) if _GROUPED.search(name) else None
    return (
        found or _by_body(module, instruction, operands) or _estimated(instruction, read, written)
    )


_GROUPED = re.compile(r"\bt?gmm|ragged[-_]dot(?!-metadata)")
_BACKWARD = re.compile(r"flash_m[hq]a_bwd|flash_attention.*_(dq|dkv)")


def _mask(
    module: Module, instruction: Instruction, name: str, operands: Sequence[Shape]
) -> Mask | None:
    """The mask of an attention kernel; None of any other kernel."""
    if len(floats(operands)) < 3:
        return None
    if "splash" in name:
        return splash_mask(operands)
    if _BACKWARD.search(name):
        return _forward_mask(module)
    found = flash_mask(*_estimate(instruction), operands)
    return found or (GUESSED if "flash" in name else None)


def _forward_mask(module: Module) -> Mask:
    """The mask of the module's forward kernels, where they agree: the backward ones say nothing."""
    found = {
        flash_mask(*_estimate(instruction), _shapes(computation, instruction))
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "custom-call" and target(instruction) in KERNELS
    }
    masks = [mask for mask in found if mask is not None]
    return masks[0] if len(masks) == 1 else GUESSED


def _shapes(computation: Computation, instruction: Instruction) -> tuple[Shape, ...]:
    return tuple(shape for name in instruction.operands for shape in computation[name].arrays)


def _grouped(
    instruction: Instruction, matrices: Sequence[Shape], written: float
) -> Kernel | None:  # fmt: skip
    """Products of groups of rows: each with its own matrix, or of rows by rows."""
    if len(matrices) != 2:
        return None
    left, right = matrices
    out = instruction.arrays[0]
    m: float
    k: float
    if len(left.dims) == 2 and len(right.dims) == 3 and len(out.dims) == 2:
        groups, n = right.dims[0], out.dims[1]
        m, k, ragged = left.dims[0] / max(groups, 1), left.dims[1], "m"
    elif len(left.dims) == len(right.dims) == 2 and len(out.dims) == 3:
        groups, m, n = out.dims
        k, ragged = left.elements / max(m * groups, 1), "k"
    else:
        return None
    read = _number(_given(instruction), "bytes_accessed") - written
    if read <= 0:
        read = float(bytes_read(groups, m, k, n, ragged, BITS.get(left.dtype, 16) / 8))
    work = Matmul(groups, m, k, n, dtype_name(left.dtype), read, written, ragged=ragged)
    return Kernel(work, float(2 * groups * m * k * n), EVEN)


def _by_body(
    module: Module, instruction: Instruction, operands: Sequence[Shape]
) -> Kernel | None:  # fmt: skip
    """By what its body does; but a kernel for the metadata of groups is known by its name."""
    body = module.bodies.get(body_of(instruction))
    if body is None or "metadata" in instruction.name:
        return None
    read, written = moved_bytes(body, operands, instruction.arrays)
    tally = tally_of(body)
    note = BY_BODY + (", with loops counted once whose trips are not constant" if body.once else "")
    return Kernel(tally.work(read, written, 0), tally.flops, note)


BY_BODY = "kernel by what its body does"


def _estimated(instruction: Instruction, read: float, written: float) -> Kernel:
    """By the estimate that the kernel's author gave; FLOPs count as those of the matrix units."""
    flops, transcendentals = _estimate(instruction)
    moved = _number(_given(instruction), "bytes_accessed")
    if not (flops or transcendentals or moved):
        understood = "metadata" in instruction.name
        note = "" if understood else "kernel of unknown work"
        return Kernel(Vector(read, written, 0), 0, note, understood)
    read = max(read, moved - written)
    side = (flops / 2) ** (1 / 3)
    note = "kernel by its author's estimate"
    if side < MATRIX_SIDE:
        return Kernel(Vector(read, written, flops + transcendentals), 0, note)
    return Kernel(Matmul(1, side, side, side, "bf16", read, written), flops, note)


def _estimate(instruction: Instruction) -> tuple[float, float]:
    """FLOPs and transcendental operations, as the kernel's author estimates them, or nothing."""
    given = _given(instruction)
    return _number(given, "flops"), _number(given, "transcendentals")


def _given(instruction: Instruction) -> Mapping[str, Any]:
    found = kernel_config(instruction).get("cost_estimate", {})
    return found if isinstance(found, dict) else {}


def _number(given: Mapping[str, Any], key: str) -> float:
    try:
        found = float(given.get(key, 0))
    except (TypeError, ValueError):
        return 0.0
    return found if 0 < found < inf else 0.0
