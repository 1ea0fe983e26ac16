"""Pallas kernels: custom calls that say little, so their work is read from names and shapes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpusim.program import Attention, Matmul, Vector, Work
from tpusim.program.keys import seen_keys
from tpusim.xla.attributes import backend_config, op_name
from tpusim.xla.dots import dtype_name
from tpusim.xla.module import Instruction
from tpusim.xla.shapes import Shape

TARGETS = frozenset({"tpu_custom_call", "mosaic", "mosaic_tpu"})
"""Targets of custom calls that are Pallas kernels."""

BACKWARD_SHARES = {"dq": 3 / 7, "dkv": 4 / 7}
"""Parts of the backward pass that its two kernels are: dQ takes three products, dK and dV four, as
both compute the scores and their gradient (JAX, splash and flash attention kernels)."""

FUSED_SHARE = 5 / 7
"""Part that the one kernel is which computes all three gradients: five products, not seven."""

USEFUL = {"dq": 1, "dkv": 3, "": 4}
"""Products of a backward kernel that nothing computed before: dQ; dP, dK and dV. Those of the
probabilities are not, and dQ's kernel computes dP a second time."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The work of a kernel, the matrix FLOPs that it adds to the model's, and what is assumed."""

    work: Work
    flops: float
    note: str = ""
    understood: bool = True


def kernel(
    instruction: Instruction, operands: Sequence[Shape], read: float, written: float
) -> Kernel:
    """What a Pallas kernel does: attention, grouped matmuls, or what its author estimates.

    A kernel of an unknown name is as long as its estimate of FLOPs and bytes; without one, as its
    operands and results take to pass, and then it is not understood.
    """
    name = f"{instruction.name} {op_name(instruction)}".lower()
    floats = [shape for shape in operands if _is_float(shape) and len(shape.dims) >= 2]
    if re.search(r"splash_m[hq]a|flash_m[hq]a|flash_attention", name) and len(floats) >= 3:
        return _attention(instruction, name, operands, floats, read, written)
    if re.search(r"\bt?gmm|ragged[-_]dot[-_](?!metadata)", name) and len(floats) == 2:
        found = _grouped(instruction, floats, read, written)
        if found is not None:
            return found
    return _estimated(instruction, read, written)


def _is_float(shape: Shape) -> bool:
    return shape.dtype.startswith(("bf", "f"))


def _attention(
    instruction: Instruction, name: str, operands: Sequence[Shape], floats: Sequence[Shape],
    read: float, written: float,
) -> Kernel:  # fmt: skip
    query, key, value = floats[:3]
    if not all(len(shape.dims) in (2, 3, 4) for shape in (query, key, value)):
        raise ValueError(f"queries of {query} are not [batch, heads, sequence, width]")
    part = next((part for part in ("dkv", "dq") if f"_{part}" in instruction.name.lower()), "")
    part = part or next((part for part in ("dkv", "dq") if f"_{part}_" in name), "")
    causal, note = _mask(name, operands, query, value)
    share = BACKWARD_SHARES.get(part, 0)
    if part == "dkv" and _also_query(instruction, query):
        part, share = "", FUSED_SHARE
    batch, heads = query.dims[:-3], query.dims[-3:-2]
    work = Attention(
        batch=batch[0] if batch else 1, heads=heads[0] if heads else 1,
        q_len=query.dims[-2], kv_len=key.dims[-2], head_dim=query.dims[-1],
        dtype=dtype_name(query.dtype), causal=causal, window=0, backward=bool(share),
        read_bytes=read, write_bytes=written, share=share,
        value_dim=value.dims[-1] if value.dims[-1] != query.dims[-1] else 0,
    )  # fmt: skip
    products = USEFUL[part] if share else 2
    scores = work.batch * work.heads * work.q_len * seen_keys(work)
    width = (work.head_dim + work.value_width) / 2
    return Kernel(work, float(2 * products * scores * width), note)


def _also_query(instruction: Instruction, query: Shape) -> bool:
    """Whether a kernel for dK and dV writes dQ as well: one more result as big as the queries.

    Of three results that are as wide as the queries, the third is dQ, one part a block of keys.
    """
    wide = [shape for shape in instruction.arrays if shape.dims[-1:] == query.dims[-1:]]
    return len([shape for shape in wide if shape.elements >= query.elements]) >= 3


def _mask(
    name: str, operands: Sequence[Shape], query: Shape, value: Shape
) -> tuple[bool, str]:  # fmt: skip
    """Whether the mask is causal, and what is assumed.

    Splash attention is given a mask's positions or blocks after the values, and a full mask has
    none of either; segments come in pairs, of queries and keys. Flash attention says nothing.
    """
    if "splash" not in name:
        return True, "attention kernel that says nothing of its mask: taken as causal"
    last = max(at for at, shape in enumerate(operands) if shape == value)
    masks = [
        shape for shape in operands[last + 1 :]
        if not _is_float(shape) and shape.dims[-2:] and query.dims[-2] in shape.dims[-2:]
    ]  # fmt: skip
    if len(masks) % 2:
        return True, "attention kernel with a mask: taken as causal"
    return False, ""


def _grouped(
    instruction: Instruction, floats: Sequence[Shape], read: float, written: float
) -> Kernel | None:
    """Products of groups of rows: each with its own matrix, or of rows by rows."""
    left, right = floats
    out = instruction.arrays[0]
    m: float
    k: float
    if len(left.dims) == 2 and len(right.dims) == 3 and len(out.dims) == 2:
        groups, rows, n = right.dims[0], left.dims[0], out.dims[1]
        m, k, ragged = rows / max(groups, 1), left.dims[1], "m"
    elif len(left.dims) == len(right.dims) == 2 and len(out.dims) == 3:
        groups, m, n = out.dims
        k, ragged = left.elements / max(m * groups, 1), "k"
    else:
        return None
    work = Matmul(
        groups, m, k, n, dtype_name(left.dtype), read, written, ragged=ragged
    )  # fmt: skip
    return Kernel(work, float(2 * groups * m * k * n), "grouped matmul: groups taken as even")


def _estimated(instruction: Instruction, read: float, written: float) -> Kernel:
    """By the estimate that the kernel's author gave; FLOPs count as those of the matrix units."""
    given = _cost_estimate(instruction)
    flops = _number(given, "flops")
    moved = _number(given, "bytes_accessed")
    if not given or not (flops or moved):
        return Kernel(Vector(read, written, 0), 0, "kernel of unknown work", False)
    lanes = flops + _number(given, "transcendentals")
    read = max(read, moved - written)
    side = (flops / 2) ** (1 / 3)
    if side < MATRIX_SIDE:
        return Kernel(Vector(read, written, lanes), 0, "kernel by its author's estimate")
    work = Matmul(1, side, side, side, "bf16", read, written)
    return Kernel(work, flops, "kernel by its author's estimate")


MATRIX_SIDE = 128
"""A kernel whose FLOPs would not fill a product of this size is taken for vector work."""


def _cost_estimate(instruction: Instruction) -> Mapping[str, Any]:
    config = backend_config(instruction).get("custom_call_config", {})
    found = config.get("cost_estimate", {}) if isinstance(config, dict) else {}
    return found if isinstance(found, dict) else {}


def _number(given: Mapping[str, Any], key: str) -> float:
    try:
        return max(float(given.get(key, 0)), 0.0)
    except (TypeError, ValueError):
        return 0.0
