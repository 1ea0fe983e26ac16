"""Copies around exchanges with experts, as compiled layers have them."""

from collections import Counter
from math import prod
from typing import Any

import pytest
from plans import any_program_of, flat, plan_of, small

from tpusim.hardware import Slice
from tpusim.program import Collective, CollectiveKind, Compute, Op, VectorWork

BY_MASK = {"capacity_factor": 1.0}


def exchanges_and_copies(
    mesh: dict[str, int], sequences: int, **way: Any
) -> list[Compute | Collective]:
    """The exchanges of slots in a layer, and the copies beside them, in order.

    sequences: on each chip.
    """
    plan = plan_of(mesh, global_batch=sequences * prod(mesh.values()), **way)
    model = small(experts=8, experts_per_token=2, layers=2)
    program = any_program_of(model, plan, Slice("v4", "2x2x2"))
    return [op for op, _ in flat(program.body) if _is_exchange(op) or _is_copy(op)]


def _is_exchange(op: Op) -> bool:
    """Of slots: rows of the embedding are exchanged too, as tokens are fewer than rows."""
    is_exchange = isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL
    return is_exchange and "embedded" not in op.scope


def _is_copy(op: Op) -> bool:
    return isinstance(op, Compute) and op.name.startswith(("relayout/", "sort/"))


def sides(ops: list[Compute | Collective], tensor: str) -> list[str]:
    """Which sides of the exchange of a forward tensor are copied."""
    place = next(at for at, op in enumerate(ops) if _is_exchange(op) and op.scope == tensor)
    near = {"before": ops[max(place - 1, 0)], "after": ops[place + 1]}
    return [side for side, op in near.items() if _is_copy(op) and op.scope == f"{tensor}/turn"]


@pytest.mark.parametrize(
    ("mesh", "sequences", "there", "back"),
    [
        ({"expert": 4, "fsdp": 2}, 2, "before after", "before after"),  # v6e 4x4, v5p 4x4x4
        ({"expert": 8}, 2, "before", ""),  # v6e 16x16
        ({"expert": 4, "fsdp": 2}, 1, "", "before"),  # v5e 4x4, E=8 on 4 and E=64 on 16
        ({"expert": 8}, 1, "", ""),  # v5e 4x4, E=16 on 16
    ],
)
def test_products_copy_what_lies_otherwise_as_compiled(
    mesh: dict[str, int], sequences: int, there: str, back: str
) -> None:
    ops = exchanges_and_copies(mesh, sequences, **BY_MASK)
    got = [sides(ops, f"layer/{name}") for name in ("dispatched", "expert_out")]
    assert got == [there.split(), back.split()]
    each = len(there.split()) + len(back.split())
    assert sum(map(_is_copy, ops)) == 3 * each, "recomputed, and the gradients of both"


def test_a_copy_reads_and_writes_what_is_sent() -> None:
    ops = exchanges_and_copies({"expert": 4, "fsdp": 2}, 2, **BY_MASK)
    sent = {op.bytes for op in ops if isinstance(op, Collective)}
    for op in ops:
        if isinstance(op, Compute):
            assert isinstance(op.work, VectorWork)
            assert {op.work.read_bytes, op.work.write_bytes} == sent


@pytest.mark.parametrize("mesh", [{"expert": 4, "fsdp": 2}, {"expert": 8}])
def test_what_is_sorted_is_sorted_again_by_the_experts_devices(mesh: dict[str, int]) -> None:
    ops = exchanges_and_copies(mesh, 2)
    assert Counter(map(_is_copy, ops)) == {True: 6, False: 6}
    assert all(op.name.startswith("sort/") for op in ops if _is_copy(op))


def test_an_ideal_compiler_copies_nothing() -> None:
    ops = exchanges_and_copies({"expert": 8}, 2, lowering="ideal", **BY_MASK)
    assert ops
    assert not any(map(_is_copy, ops))
