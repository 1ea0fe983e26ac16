"""Muon: which weights are matrices, how they are divided, and what their iterations do."""

from typing import Any

import pytest
from plans import flat, graph_of, loop, plan_of, small

from tpusim.graph import Matrix, layer_matrices
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.program import Collective, CollectiveKind, Compute, MatmulWork, Program
from tpusim.simulation import simulate

POD = Slice("v5p", "2x2x4")
LAYERS, EMBED, MLP, F32 = 3, 64, 256, 4
FSDP = {"fsdp": 16}
EXPERTS = {"experts": 4, "experts_per_token": 2, "expert_mlp": 128, "layers": 4}
KINDS = CollectiveKind


def program(mesh: dict[str, int], model: Transformer | None = None, **keys: Any) -> Program:
    return simulate(model or small(heads=16), plan_of(mesh, optimizer="muon", **keys), POD).program


def moved(made: Program, weight: str) -> list[tuple[CollectiveKind, float, int]]:
    """Kind, bytes and runs of what the iterations of a weight move, but for their norms."""
    return [
        (op.kind, op.bytes, n)
        for op, n in flat(made.body)
        if isinstance(op, Collective) and f"newton_schulz/layer/{weight}/" in op.name
        if "/norm@" not in op.name
    ]


def test_matrices_are_the_weights_that_a_layer_multiplies_with() -> None:
    found = layer_matrices(graph_of(small(tied_embeddings=True), plan_of(FSDP)))
    assert found["layer/wq"] == Matrix(("embed",), ("heads", "head_dim"))
    assert found["layer/wo"] == Matrix(("heads", "head_dim"), ("embed",))
    assert {name.removeprefix("layer/") for name in found} == {
        "wq", "wk", "wv", "wo", "wi_0", "wi_1", "wo_mlp"
    }  # fmt: skip


def test_tiles_of_the_head_are_no_matrices_and_experts_are_one_each() -> None:
    found = layer_matrices(graph_of(small(**EXPERTS), plan_of(FSDP, vocab_tiles=4)))
    assert found["layer/expert_wi_0"] == Matrix(("embed",), ("expert_mlp",))
    assert found["layer/router"] == Matrix(("embed",), ("expert",))
    assert not [name for name in found if "head" in name or "embedding" in name]


def test_matmuls_of_a_narrow_dtype_have_the_same_matrices() -> None:
    wide, narrow = (
        graph_of(small(), plan_of(FSDP, **keys)) for keys in ({}, {"matmul_dtype": "fp8"})
    )
    assert layer_matrices(wide) == layer_matrices(narrow)


def test_an_iteration_is_three_matmuls_and_an_all_reduce_of_the_rows_products() -> None:
    """wi_0 is [64, 256]: each of 16 devices has 16 columns of the three layers' matrices."""
    made = program(FSDP)
    body = loop(made.body, "newton_schulz/layer/wi_0").body
    works = [op.work for op in body if isinstance(op, Compute)]
    assert all(isinstance(work, MatmulWork) for work in works)
    extents = [(w.batch, w.m, w.k, w.n) for w in works if isinstance(w, MatmulWork)]
    width = MLP // 16
    assert extents == [
        (LAYERS, EMBED, width, EMBED), (LAYERS, EMBED, EMBED, EMBED), (LAYERS, EMBED, EMBED, width)
    ]  # fmt: skip
    assert loop(made.body, "newton_schulz/layer/wi_0").trips == 5
    (reduced,) = (op for op in body if isinstance(op, Collective))
    assert (reduced.kind, reduced.axes, reduced.dtype) == (KINDS.ALL_REDUCE, ("fsdp",), "f32")
    assert reduced.bytes == F32 * LAYERS * EMBED**2


def test_rows_that_are_sharded_are_exchanged_there_and_back() -> None:
    """wi_0 is stored with 4 of its 64 rows on each device."""
    exchange = (KINDS.ALL_TO_ALL, F32 * LAYERS * EMBED * MLP / 16, 1)
    products = (KINDS.ALL_REDUCE, F32 * LAYERS * EMBED**2, 5)
    assert moved(program(FSDP), "wi_0") == [exchange, products, exchange]


def test_columns_that_are_sharded_stay() -> None:
    """An MLP narrower than the model: wi_0 is [64, 32], and its transpose has 4 of 64 columns.

    A wider one's wo_mlp is transposed, and then it is the rows that are sharded.
    """
    products = (KINDS.ALL_REDUCE, F32 * LAYERS * 32**2, 5)
    narrow = small(mlp=32, heads=16)
    assert moved(program(FSDP, narrow), "wo_mlp") == [products]
    assert moved(program(FSDP, narrow), "wi_0") == [products]
    assert len(moved(program(FSDP), "wo_mlp")) == 3


def test_whole_weights_move_nothing() -> None:
    made = program({"data": 16})
    assert not moved(made, "wi_0")
    work = loop(made.body, "newton_schulz/layer/wi_0").body[0]
    assert isinstance(work, Compute)
    assert work.flops.optimizer == 16 * 2 * LAYERS * EMBED**2 * MLP


@pytest.mark.parametrize(("heads", "kind"), [(16, KINDS.ALL_TO_ALL), (8, KINDS.ALL_GATHER)])
def test_heads_that_the_axes_do_not_divide_are_gathered(heads: int, kind: CollectiveKind) -> None:
    there, _, back = moved(program(FSDP, small(heads=heads)), "wq")
    assert there == back
    part = 16 if kind is KINDS.ALL_TO_ALL else 1
    assert there[:2] == (kind, F32 * LAYERS * EMBED * heads * 32 / part)


@pytest.mark.parametrize("layers", [4, 3])
def test_experts_are_divided_as_whole_matrices_if_the_axes_divide_their_number(layers: int) -> None:
    """Of 4 layers' 16 experts each device has one; of 3 layers' 12 it has columns of all."""
    made = program(FSDP, small(**EXPERTS | {"layers": layers}), capacity_factor=1.0)
    kinds = [kind for kind, _, _ in moved(made, "expert_wi_0")]
    gram = loop(made.body, "newton_schulz/layer/expert_wi_0").body[0]
    assert isinstance(gram, Compute)
    assert isinstance(gram.work, MatmulWork)
    extents = gram.work.batch, gram.work.m, gram.work.k
    if layers == 4:
        assert kinds == [KINDS.ALL_TO_ALL] * 2
        assert extents == (1, 64, 128)
    else:
        assert kinds == [KINDS.ALL_TO_ALL, KINDS.ALL_REDUCE, KINDS.ALL_TO_ALL]
        assert extents == (12, 64, 8)


def test_experts_that_an_axis_divides_have_their_columns_divided_by_the_others() -> None:
    made = program({"fsdp": 4, "expert": 4}, small(**EXPERTS), capacity_factor=1.0)
    gram = loop(made.body, "newton_schulz/layer/expert_wi_0").body[0]
    assert isinstance(gram, Compute)
    assert isinstance(gram.work, MatmulWork)
    assert (gram.work.batch, gram.work.m, gram.work.k) == (4, 64, 32)
    reduced = moved(made, "expert_wi_0")[1]
    assert reduced == (KINDS.ALL_REDUCE, F32 * 4 * 64**2, 5)


def test_moments_on_the_host_come_before_the_momentum() -> None:
    made = program(FSDP, offload_optimizer=True)
    ops = {op.name: op for op, _ in flat(made.body)}
    needs = [dep.op for dep in ops["momentum/layer/wq"].deps]
    assert "from-host/layer/wq/moments" in needs


def test_matrices_have_one_moment_and_other_weights_two() -> None:
    made = simulate(small(), plan_of({"data": 16}, optimizer="muon"), POD)
    layer = 4 * 64 * 8 * 32 + 3 * 64 * 256
    others = 2 * 512 * 64 + (2 * LAYERS + 1) * 64
    assert made.memory_bytes["optimizer state"] == F32 * (LAYERS * layer + 2 * others)


def test_what_crosses_slices_is_gathered_in_two_steps_with_a_buffer_each() -> None:
    """Two heads over 8 devices of two slices: X is gathered whole, within the slice and across."""
    plan = plan_of({"dcn_fsdp": 2, "fsdp": 8}, optimizer="muon", seq_len=64)
    made = simulate(small(heads=2), plan, Slice("v5p", "2x2x2", num_slices=2)).program
    whole = [
        alloc.tensor
        for op, _ in flat(made.body)
        if isinstance(op, Collective) and "newton_schulz/layer/wq/" in op.name
        for alloc in op.allocs
    ]
    assert len(whole) == len(set(whole)) >= 2
