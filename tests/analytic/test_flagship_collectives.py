"""The collectives of one layer of the 480-billion-parameter encoder, as its program has them.

Compiled program, libtpu 0.0.42.1: v4 8x16x16, mesh fsdp=256 x tensor=8. Sizes are of the full
(gathered or unreduced) tensor on one device. A collective matmul moves chunks of its tensor; it is
listed with the whole tensor's size.
"""

from collections import Counter

import pytest
from plans import ENCODER_480B, MIB, PLAN_480B, loop, program_of, v4_2048

from tpusim.program import Collective, CollectiveKind, Loop, Mode, Program

GATHER, SCATTER, REDUCE = "all-gather", "reduce-scatter", "all-reduce"
RING = "ring"

FORWARD = {
    ("fsdp", GATHER, "sync", 128): 2,  # wq, wo
    ("fsdp", GATHER, "sync", 4): 2,  # wk, wv
    ("fsdp", GATHER, "sync", 512): 3,  # wi_0, wi_1, wo_mlp
    ("tensor", GATHER, "sync", 256): 2,
    ("tensor", SCATTER, "sync", 256): 1,  # after wo_mlp
    ("tensor", RING, "ring", 256): 1,  # wo
    ("tensor", REDUCE, "sync", 4): 1,  # K and V, 2 MiB each
    ("tensor", REDUCE, "sync", 1 / 32): 2,  # the sums of two norms, f32
}
BACKWARD = {
    ("fsdp", GATHER, "sync", 128): 3,  # wq twice, wo
    ("fsdp", GATHER, "sync", 4): 3,
    ("fsdp", GATHER, "sync", 512): 3,
    ("fsdp", SCATTER, "sync", 128): 1,  # wq
    ("fsdp", SCATTER, "sync", 512): 3,
    ("fsdp", "reduce-scatter as all-reduce", "sync", 128): 1,  # wo: whole, then sliced
    ("fsdp", REDUCE, "sync", 1): 1,  # wk, wv and the norms together
    ("tensor", GATHER, "sync", 256): 4,
    ("tensor", SCATTER, "sync", 256): 1,  # gradients of wi_0 and wi_1, added first
    ("tensor", RING, "ring", 256): 4,  # wo again; dX and dW of wo, dX of wq
    ("tensor", REDUCE, "sync", 4): 2,
    ("tensor", REDUCE, "sync", 1 / 32): 4,
}


def collectives(body: tuple[object, ...]) -> Counter[tuple[str, str, str, float]]:
    """What was asked for, by axis, kind, mode and MiB; a loop of permutes is a ring."""
    found: Counter[tuple[str, str, str, float]] = Counter()
    for op in body:
        if isinstance(op, Loop):
            permutes = [inner for inner in op.body if isinstance(inner, Collective)]
            assert {permute.kind for permute in permutes} == {CollectiveKind.PERMUTE}
            whole = sum(permute.bytes for permute in permutes) * op.trips * 8 / 7
            found["+".join(permutes[0].axes), RING, permutes[0].mode, whole / MIB] += 1
        elif isinstance(op, Collective) and op.asked:
            kind = op.kind + (f" as {op.algorithm}" if op.algorithm else "")
            size = op.bytes / MIB
            found["+".join(op.axes), kind, op.mode, round(size) if size > 1 else size] += 1
    return found


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(ENCODER_480B, PLAN_480B, v4_2048())


@pytest.mark.parametrize(("name", "table"), [("layers", FORWARD), ("layers/d", BACKWARD)])
def test_a_layer_has_the_collectives_of_the_compiled_program(
    program: Program, name: str, table: dict[tuple[str, str, str, float], int]
) -> None:
    layer = loop(program.body, name)
    assert layer.trips == 64
    assert collectives(layer.body) == table


def test_a_step_moves_the_bytes_of_the_compiled_program(program: Program) -> None:
    """379 GB over fsdp (all-reduces counted twice), 122 GB over tensor, synchronous ones only."""
    moved = {"fsdp": 0.0, "tensor": 0.0}
    for name in ("layers", "layers/d"):
        layer = loop(program.body, name)
        for op in layer.body:
            if isinstance(op, Collective) and op.mode is Mode.SYNC:
                twice = 2 if "all-reduce" in (op.kind, op.algorithm) else 1
                moved[op.axes[0]] += layer.trips * twice * op.bytes
    assert moved["fsdp"] == pytest.approx(379e9, rel=0.05)
    assert moved["tensor"] == pytest.approx(122e9, rel=0.15)


def test_what_nobody_asked_for_is_small(program: Program) -> None:
    """Gradients of replicated weights, computed in shards: gathered again, 128 KiB a layer."""
    extra = [
        op
        for op in loop(program.body, "layers/d").body
        if isinstance(op, Collective) and not op.asked
    ]
    assert {op.scope for op in extra} == {
        "d(layer/mlp_norm_scale)", "d(layer/wv)", "d(layer/wk)", "d(layer/attn_norm_scale)",
    }  # fmt: skip
    assert sum(op.bytes for op in extra) <= MIB / 8
