"""Kinds of plans that the first sample has not: experts by a sort, and circular pipelines.

Even numbers are the plans with experts of `sample.py`, in their order, without a capacity, so that
tokens are sorted to their experts. Odd numbers are circular pipelines, a row of `PIPELINES` each.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import Any

import sample
from sample import Twin

from tpusim.hardware import parse_slice

SORTED = 24
"""Plans with sorted experts."""

_DENSE = {
    "layers": 8, "embed": 2048, "mlp": 8192, "heads": 16, "head_dim": 128, "vocab": 32000,
    "attention": "flash",
}  # fmt: skip
_LONG = {"global_batch": 64, "microbatches": 8, "seq_len": 2048}
_SHORT = {"global_batch": 128, "microbatches": 4, "seq_len": 1024}

PIPELINES: tuple[tuple[str, dict[str, int], dict[str, Any]], ...] = (
    ("v4:2x2x4", {"stage": 4, "fsdp": 4}, _LONG),
    ("v4:2x2x4", {"stage": 2, "fsdp": 4, "tensor": 2}, _SHORT),
    ("v5e:4x4", {"stage": 4, "fsdp": 4}, _LONG),
    ("v5e:4x4", {"stage": 4, "data": 2, "tensor": 2}, _SHORT),
    ("v5e:4x4", {"stage": 2, "fsdp": 8}, {**_LONG, "virtual_stages": 2}),
    ("v5p:2x2x4", {"stage": 4, "fsdp": 4}, _LONG),
    ("v5p:2x2x4", {"stage": 4, "fsdp": 2, "tensor": 2}, {**_SHORT, "virtual_stages": 2}),
    ("v6e:4x4", {"stage": 4, "fsdp": 4}, _LONG),
    ("v6e:4x4", {"stage": 2, "fsdp": 4, "tensor": 2}, _SHORT),
    ("v6e:8x8", {"stage": 8, "fsdp": 8}, {**_LONG, "global_batch": 256}),
    ("7x:2x2x2", {"stage": 4, "fsdp": 4}, _LONG),
    ("7x:2x2x2", {"stage": 2, "fsdp": 4, "tensor": 2}, {**_SHORT, "virtual_stages": 2}),
)
"""Slices, meshes and other fields of the plan: stages of one layer to four."""


def numbers() -> Iterator[int]:
    """Return the numbers of all twins."""
    experts = (2 * place for place in range(SORTED))
    return chain(experts, (2 * place + 1 for place in range(len(PIPELINES))))


def draw(number: int) -> Twin:
    """Return twin `number`."""
    place, odd = divmod(number, 2)
    if odd:
        pod, mesh, fields = PIPELINES[place]
        plan = {"mesh": mesh, "remat": "full", "schedule": "circular", **fields}
        return Twin(number, parse_slice(pod), {"name": "twin", **_DENSE}, plan, "")
    twin = _with_experts()[place]
    fields = {key: value for key, value in twin.plan.items() if key != "capacity_factor"}
    return replace(twin, number=number, plan=fields)


@cache
def _with_experts() -> tuple[Twin, ...]:
    drawn = (sample.draw(number) for number in sample.numbers())
    found = (twin for twin in drawn if twin is not None and "experts" in twin.model)
    return tuple(islice(found, SORTED))
