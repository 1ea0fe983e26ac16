"""Collectives over several axes or dimensions, and permutes for which the core waits."""

from typing import Any

import pytest
from plans import any_program_of, flat, loop, plan_of, small

from tpusim.hardware import Slice
from tpusim.program import Collective, CollectiveKind, Mode


@pytest.mark.parametrize(
    ("chip", "topology", "at_once"), [("7x", "2x2x2", True), ("v6e", "4x4", False)]
)
def test_the_sparsecore_reduces_a_gradient_over_all_its_axes_at_once(
    chip: str, topology: str, at_once: bool
) -> None:
    plan = plan_of({"data": 4, "fsdp": 4}, global_batch=256, seq_len=512)
    body = loop(
        any_program_of(small(embed=4096, mlp=8192), plan, Slice(chip, topology)).body, "layers/d"
    ).body
    found = [
        op for op, _ in flat(body) if isinstance(op, Collective) and op.scope == "d(layer/wo_mlp)"
    ]
    kinds = [(op.kind, op.axes) for op in found]
    if at_once:
        assert kinds == [(CollectiveKind.ALL_REDUCE, ("data", "fsdp"))]
        assert found[0].mode is Mode.ASYNC
        waits = {dep.op for op, _ in flat(body) for dep in op.deps if dep.distance}
        assert found[0].name in waits
    else:
        assert (CollectiveKind.REDUCE_SCATTER, ("fsdp",)) in kinds


@pytest.mark.parametrize(("chip", "fsdp", "algorithm"), [("7x", 32, "nd"), ("v5p", 16, "")])
def test_the_sparsecore_gathers_over_all_dimensions_of_a_plane(
    chip: str, fsdp: int, algorithm: str
) -> None:
    """Two dimensions of 4x4x4 take half of the time of one ring through them."""
    plan = plan_of({"data": 4, "fsdp": fsdp}, global_batch=256, seq_len=512, style="maxtext")
    body = loop(
        any_program_of(small(embed=4096, mlp=8192), plan, Slice(chip, "4x4x4")).body, "layers"
    ).body
    found = [
        op for op, _ in flat(body) if isinstance(op, Collective) and op.scope == "layer/wo_mlp"
    ]
    assert [(op.kind, op.algorithm) for op in found] == [(CollectiveKind.ALL_GATHER, algorithm)]


@pytest.mark.parametrize(
    ("vocab", "style", "switched_off", "at_once"),
    [
        (2**15, "plain", [], True),
        (2**15 + 1, "plain", [], False),
        (2**15, "maxtext", [], False),
        (2**15, "plain", ["reduce-at-once"], False),
    ],
)
def test_a_table_to_which_each_device_adds_its_tokens_is_reduced_over_all_axes_at_once(
    vocab: int, style: str, switched_off: list[str], at_once: bool
) -> None:
    """2^16 tokens; gradients of more than half as many rows are gathered (15 of 15 programs).

    The optimizer slices the sum, which is held whole until then.
    """
    keys: dict[str, Any] = {"style": style, "without_passes": switched_off}
    plan = plan_of({"data": 4, "fsdp": 4}, seq_len=2**12, global_batch=16, **keys)
    program = any_program_of(small(vocab=vocab, embed=1024), plan, Slice("v6e", "4x4"))
    found = [op for op, _ in flat(program.body) if getattr(op, "scope", "") == "d(embedding)"]
    kinds = [(op.kind, op.axes) for op in found if isinstance(op, Collective)]
    assert (kinds == [(CollectiveKind.ALL_REDUCE, ("data", "fsdp"))]) is at_once
    if at_once:
        freed = next(op.name for op, _ in flat(program.body) if "d(embedding)" in op.frees)
        assert freed != found[0].name


@pytest.mark.parametrize(("topology", "waits"), [("4x4", False), ("4x8", True)])
def test_permutes_that_wait_go_one_way_after_the_other(topology: str, waits: bool) -> None:
    chips = 32 if waits else 16
    plan = plan_of({"fsdp": chips}, global_batch=256, seq_len=512)
    body = loop(any_program_of(small(), plan, Slice("v5e", topology)).body, "layers").body
    ring = loop(body, "layer/wo_mlp/ring")
    moved = [op for op in ring.body if isinstance(op, Collective)]
    assert {op.mode for op in moved} == {Mode.SYNC if waits else Mode.RING}
    assert {op.algorithm for op in moved} == {"onward" if waits else "mesh order"}
    sent = sum(op.bytes for op in moved) * ring.trips
    whole = sum(
        op.bytes
        for op in body
        if isinstance(op, Collective) and op.name.endswith("wo_mlp/first permute")
    )
    assert sent == whole * chips
