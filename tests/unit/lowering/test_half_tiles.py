"""Weights gathered in shards whose rows do not fill whole tiles: which matmuls fill them."""

from typing import Any

import pytest
from plans import flat, plan_of, program_of, small

from tpusim.costs.compute import matmul_seconds
from tpusim.hardware import Slice
from tpusim.program import Compute, MatmulWork

V7X = Slice("7x", "2x2x2")
FSDP = {"fsdp": 16}


def epilogues(embed: int, pod: Slice = V7X, **changes: Any) -> dict[str, float]:
    """The vector operations of each matmul, over its multiplications, by its name."""
    plan = plan_of(**({"mesh": FSDP, "style": "maxtext"} | changes))
    body = program_of(small(embed=embed, mlp=8192), plan, pod).body
    works = {op.name: op.work for op, _ in flat(body) if isinstance(op, Compute)}
    return {
        name: float(work.epilogue_flops / (work.batch * work.m * work.k * work.n))
        for name, work in works.items()
        if isinstance(work, MatmulWork)
    }


def filled(embed: int, pod: Slice = V7X, **changes: Any) -> set[str]:
    """The matmuls that its switch relieves of operations."""
    seen = epilogues(embed, pod, **changes)
    without = epilogues(embed, pod, without_passes=["half-tiles"], **changes)
    assert seen.keys() == without.keys()
    return {name for name in seen if seen[name] > without[name]}


def test_matmuls_fill_the_tiles_of_the_mlp_but_backwards_where_they_sum_over_the_rows() -> None:
    """6 rows; the projections of heads have whole tiles for each row."""
    again = {f"bwd/layer/{name}{of}" for name in ("wi_0", "wi_1") for of in ("", "/dx")}
    assert filled(96) == {"layer/wi_0", "layer/wi_1", "layer/wo_mlp", *again}


@pytest.mark.parametrize(("rows", "fills"), [(7, True), (8, False), (12, True), (120, False)])
def test_shards_of_eight_rows_or_a_multiple_have_whole_tiles(rows: int, fills: bool) -> None:
    assert bool(filled(rows * 16)) == fills


@pytest.mark.parametrize(
    ("pod", "changes"),
    [
        (Slice("v6e", "4x4"), {}),
        (V7X, {"style": "plain"}),
        (V7X, {"scan_layers": False}),
        (V7X, {"mesh": {"data": 16}}),
    ],
)
def test_other_chips_rings_layers_without_a_stack_and_whole_weights_have_none(
    pod: Slice, changes: dict[str, Any]
) -> None:
    assert not filled(96, pod, **changes)


@pytest.mark.parametrize(
    ("tokens", "name", "ratio"),
    [
        (32768, "layer/wi_0", 11474200 / 8449804),
        (8192, "layer/wi_0", 2874520 / 2182924),
        (32768, "bwd/layer/wi_0/dx", 10590312 / 8901768),
        (8192, "bwd/layer/wi_0/dx", 2652972 / 2231988),
    ],
)
def test_a_matmul_takes_longer_by_as_much_as_the_compiler_expects(
    tokens: int, name: str, ratio: float
) -> None:
    """Its cycles of [tokens, 3840] by [3840, 15360] on 7x, half-empty over whole tiles."""
    seen, without = (
        epilogues(96, without_passes=switches)[name] for switches in ((), ("half-tiles",))
    )
    flops = (seen - without) * tokens * 3840 * 15360
    weight, rows = 2 * 3840 * 15360, 2 * tokens * 3840
    whole = MatmulWork(1, tokens, 3840, 15360, "bf16", weight + rows, 2 * tokens * 15360)
    fuller = MatmulWork(
        1, tokens, 3840, 15360, "bf16", weight + rows, 2 * tokens * 15360, epilogue_flops=flops
    )
    chip = V7X.chip.device
    found = matmul_seconds(fuller, chip) / matmul_seconds(whole, chip)
    assert found == pytest.approx(ratio, abs=0.05)
