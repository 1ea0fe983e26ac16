"""Tables whose shards have few columns: copies around their gather and before their reduction."""

from typing import Any

import pytest
from plans import holders, plan_of, program_of, small

from tpusim.hardware import Slice

POD = Slice("v6e", "4x4")
MESH = {"fsdp": 8, "context": 2}
FORWARD, BACKWARD = "turn/embedding@fsdp+context", "turn/d(embedding) turn sent"


def copies(embed: int, pod: Slice = POD, mesh: dict[str, int] = MESH, **changes: Any) -> list[str]:
    """The names of the copies of the table and of its gradient, in order."""
    body = program_of(small(embed=embed), plan_of(mesh, **changes), pod).body
    return [op.name for op, _ in holders(body) if op.name.startswith("turn/")]


@pytest.mark.parametrize(("embed", "expected"), [(2048, []), (2032, [FORWARD, BACKWARD])])
def test_a_table_is_copied_where_a_shard_has_fewer_columns_than_lanes(
    embed: int, expected: list[str]
) -> None:
    """16 devices: 128 columns or 127 of a token's row."""
    assert copies(embed) == expected


def test_a_loop_over_microbatches_has_its_table_in_rows() -> None:
    assert copies(64, global_batch=256, microbatches=2) == []


def test_a_gather_that_is_an_all_reduce_leaves_rows() -> None:
    """Over three dimensions of v4 a cleared buffer is all-reduced."""
    mesh = {"fsdp": 32, "context": 2}
    assert copies(64, Slice("v4", "4x4x4"), mesh, global_batch=64) == [BACKWARD]


def test_rows_that_are_exchanged_need_no_copy() -> None:
    assert copies(64, mesh={"fsdp": 16}) == []
