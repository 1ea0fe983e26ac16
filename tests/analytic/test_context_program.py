"""The collectives over a context axis in compiled layers, and what is copied beside them.

fsdp 4 x context 4 on v6e 4x4: embed 4096, mlp 14336, 32 heads and 8 K/V heads of 128, a sequence of
32,768 for each group of four; weights sharded over fsdp alone (libtpu 0.0.42.1).
"""

from functools import lru_cache

import pytest
from plans import MIB, flat, loop

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Compute, Mode, Program, Transfer, VectorWork
from tpusim.simulation import simulate

GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
REDUCE, EXCHANGE = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL
WEIGHTS = {"wq": 32, "wk": 8, "wv": 8, "wo": 32, "wi_0": 112, "wi_1": 112, "wo_mlp": 112}
FORWARD, BACKWARD = "layers", "layers/d"
WAYS = ("gather", "ring", "all-to-all")


@lru_cache
def program(way: str, chip: str = "v6e", lowering: str = "xla") -> Program:
    model = Transformer(layers=3, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=32000)
    plan = Plan(
        mesh={"fsdp": 4, "context": 4}, seq_len=32768, global_batch=4, context_exchange=way,
        rules={"embed": "fsdp"}, lowering=lowering,
    )  # fmt: skip
    topology = "4x4" if chip == "v6e" else "2x2x2"
    return simulate(model, plan, Slice(chip, topology)).program


def layer(way: str, name: str, lowering: str = "xla") -> list[Compute | Collective | Transfer]:
    return [op for op, _ in flat(loop(program(way, lowering=lowering).body, name).body)]


def over(way: str, name: str, *axes: str, chip: str = "v6e") -> list[Collective]:
    ops = flat(loop(program(way, chip).body, name).body)
    return [op for op, _ in ops if isinstance(op, Collective) and op.axes == axes]


@pytest.mark.parametrize("way", WAYS)
def test_weight_gradients_are_reduced_over_fsdp_and_then_once_over_context(way: str) -> None:
    """Seven fused reduce-scatters, and one all-reduce of all seven shards, 104 MiB; all in bf16."""
    scattered = [op for op in over(way, BACKWARD, "fsdp") if op.kind is SCATTER]
    assert {op.scope: op.bytes / MIB for op in scattered} == {
        f"d(layer/{name})": size for name, size in WEIGHTS.items()
    }
    assert {(op.mode, op.algorithm, op.dtype) for op in scattered} == {(Mode.SYNC, "", "bf16")}
    (merged,) = [op for op in over(way, BACKWARD, "context") if op.kind is REDUCE]
    assert (merged.bytes / MIB, merged.mode, merged.dtype) == (104, Mode.SYNC, "bf16")
    order = [op.name for op in layer(way, BACKWARD)]
    assert order.index(merged.name) > max(order.index(op.name) for op in scattered)


def test_heads_are_exchanged_four_times_forward_and_eight_times_backward() -> None:
    """Q 64 MiB, K and V 16 each, and the result; backward these again, then four gradients."""
    ahead = [op.bytes / MIB for op in over("all-to-all", FORWARD, "context")]
    back = [op for op in over("all-to-all", BACKWARD, "context") if op.kind is EXCHANGE]
    assert ahead == [64, 16, 16, 64]
    assert [op.bytes / MIB for op in back] == [64, 16, 16, 64, 64, 64, 16, 16]
    assert {op.mode for op in (*over("all-to-all", FORWARD, "context"), *back)} == {Mode.SYNC}


@pytest.mark.parametrize("name", [FORWARD, BACKWARD])
def test_each_exchange_of_heads_is_copied_once(name: str) -> None:
    """Read and written whole: 71k cycles for 16 MiB, and 284k to 355k for 64."""
    ops = layer("all-to-all", name)
    for at, op in enumerate(ops):
        if isinstance(op, Collective) and op.kind is EXCHANGE:
            copy = ops[at + 1]
            assert isinstance(copy, Compute)
            assert copy.name == f"turn/{op.name.removeprefix('all-to-all/')}"
            assert isinstance(copy.work, VectorWork)
            assert (copy.work.read_bytes, copy.work.write_bytes) == (op.bytes, op.bytes)
    ideal = layer("all-to-all", name, "ideal")
    assert not any(op.name.startswith("turn/") for op in ideal)


def test_keys_are_gathered_twice_and_their_gradients_all_reduced() -> None:
    """K and V, 64 MiB each: forward, again where it is computed again, and then whole dK and dV."""
    ahead = [(op.kind, op.bytes / MIB) for op in over("gather", FORWARD, "context")]
    assert ahead == 2 * [(GATHER, 64)]
    back = [(op.kind, op.algorithm, op.bytes / MIB) for op in over("gather", BACKWARD, "context")]
    assert back[:2] == 2 * [(GATHER, "", 64)]
    assert back[2:4] == 2 * [(SCATTER, "all-reduce", 64)], "all of it, then each takes its part"


def test_on_7x_gradients_of_keys_are_all_reduced_beside_the_core() -> None:
    back = [op for op in over("gather", BACKWARD, "context", chip="7x") if op.kind is SCATTER]
    assert [(op.algorithm, op.mode) for op in back] == 2 * [("all-reduce", Mode.ASYNC)]


@pytest.mark.parametrize(("name", "hops"), [(FORWARD, 3), (BACKWARD, 3 + 3 + 4)])
def test_a_ring_sends_keys_and_values_beside_kernels(name: str, hops: int) -> None:
    """16 MiB each a hop, and their sums in f32, 32 each, one hop more to come home.

    The compiled loop sends keys once more than anybody reads them.
    """
    body = loop(program("ring").body, name).body
    sent: dict[str, float] = {}
    count = 0
    for op, times in flat(body):
        if isinstance(op, Collective) and op.kind is CollectiveKind.PERMUTE:
            sent[op.dtype] = max(sent.get(op.dtype, 0), op.bytes / MIB)
            count += times
            assert op.mode is Mode.RING
    assert sent == {"bf16": 32} | ({"f32": 64} if name == BACKWARD else {})
    assert count == hops
