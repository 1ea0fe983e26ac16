"""Saving more: less is computed again and no less is stored, in whatever order it is named."""

import random
from collections.abc import Iterator
from itertools import pairwise
from math import prod

import pytest
from accounts import total_flops
from extent import seeds
from plans import any_program_of, flat, plan_of, small
from test_microbatches import taken

from tpusim.base import Phase
from tpusim.graph import COPY, POLICIES, Graph, Op, Remat, Scan, executed_flops, training_step, walk
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.program import Compute, Program


def random_model(rng: random.Random) -> Transformer:
    windows = rng.choice([{}, {}, {"window": 4, "global_every": 3}])
    return small(
        layers=6, attention=rng.choice(["dot", "flash"]), kv_heads=rng.choice([1, 2, 8]),
        gated=rng.random() < 0.5, activation=rng.choice(["relu", "gelu", "silu"]),
        softmax_dtype=rng.choice(["compute", "f32"]), parallel=rng.random() < 0.4,
        rotary=rng.random() < 0.5, kind=rng.choice(["decoder", "encoder"]), **windows,
    )  # fmt: skip


def layer(model: Transformer) -> tuple[Op, ...]:
    ops = model.graph(batch=4, seq_len=16).ops
    return next(op.body for op in ops if isinstance(op, Scan))


def growing_lists(model: Transformer, rng: random.Random) -> list[tuple[str, ...]]:
    """Save lists, each with one more tensor than the one before."""
    names = sorted({t.short for op in layer(model) for t in op.outputs})
    rng.shuffle(names)
    return [tuple(names[:number]) for number in range(len(names) + 1)]


def step(model: Transformer, remat: Remat) -> Graph:
    return training_step(model.graph(batch=4, seq_len=16), remat)


def again(graph: Graph) -> Iterator[tuple[Op, int]]:
    return ((op, n) for op, n in walk(graph.ops) if op.phase is Phase.RECOMPUTE)


def computed_again(graph: Graph) -> set[str]:
    """Return the operations that are computed again, less copies of what is saved."""
    saved = saved_names(graph)
    found = (op for op, _ in again(graph))
    return {
        op.name
        for op in found
        if not (getattr(op, "function", None) == COPY and {t.name for t in op.inputs} <= saved)
    }


def flops_again(graph: Graph) -> int:
    return sum(n * executed_flops(op, graph.sizes) for op, n in again(graph))


def saved_names(graph: Graph) -> set[str]:
    return {t.name for op in graph.ops if isinstance(op, Scan) for t in op.saves}


def saved_bytes(graph: Graph) -> int:
    """Of the stacks; activations are in bf16."""
    saves = (t for op in graph.ops if isinstance(op, Scan) for t in op.saves)
    itemsize = {"compute": 2, "f32": 4, "pred": 1}
    return sum(itemsize[t.saved_dtype] * prod(graph.sizes[dim] for dim in t.dims) for t in saves)


@pytest.mark.parametrize("seed", seeds(30))
def test_a_tensor_more_on_the_list_computes_no_more_again_and_stores_no_less(seed: int) -> None:
    """Operation by operation, down to copies of what is saved when all is."""
    rng = random.Random(seed)
    model, policy = random_model(rng), rng.choice(POLICIES)
    steps = [step(model, Remat(policy, names)) for names in growing_lists(model, rng)]
    for before, after in pairwise(steps):
        assert computed_again(after) <= computed_again(before)
        assert flops_again(after) <= flops_again(before)
        assert saved_bytes(after) >= saved_bytes(before)
    assert not computed_again(steps[-1])


@pytest.mark.parametrize("seed", seeds(30))
def test_policies_save_more_and_more(seed: int) -> None:
    """Full keeps least, then minimal, then dots; with none nothing is computed again."""
    model = random_model(random.Random(seed))
    kept = [
        {t.name for op in layer(model) for t in op.outputs if Remat(policy).keeps(op, t)}
        for policy in POLICIES
    ]
    assert all(less <= more for less, more in pairwise(kept))
    steps = [step(model, Remat(policy)) for policy in POLICIES]
    names = [{op.name for op, _ in again(each)} for each in steps]
    assert all(more >= less for more, less in pairwise(names))
    assert (names[0] > names[1], names[-1]) == (True, set())
    sizes = [saved_bytes(each) for each in steps]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("seed", seeds(20))
def test_the_order_of_a_list_and_the_place_of_its_tensors_change_nothing(seed: int) -> None:
    """Nor does it matter to the graph whether they are in HBM or on the host."""
    rng = random.Random(seed)
    model, policy = random_model(rng), rng.choice(POLICIES)
    names = rng.choice(growing_lists(model, rng)[1:])
    mixed = rng.sample(names, len(names))
    cut = rng.randrange(len(mixed) + 1)
    plain = step(model, Remat(policy, names))
    assert step(model, Remat(policy, tuple(mixed))).ops == plain.ops
    assert step(model, Remat(policy, tuple(mixed[:cut]), tuple(mixed[cut:]))).ops == plain.ops


@pytest.mark.parametrize("seed", seeds(20))
def test_nothing_is_saved_that_is_also_computed_again(seed: int) -> None:
    """And all that is saved was asked for, and is read."""
    rng = random.Random(seed)
    model = random_model(rng)
    remat = Remat(rng.choice(POLICIES), rng.choice(growing_lists(model, rng)))
    graph = step(model, remat)
    maker = {t.name: op for op in layer(model) for t in op.outputs}
    (backward,) = (op for op in graph.ops if isinstance(op, Scan) and op.loads)
    read = {t.name for op in backward.body for t in op.inputs}
    for tensor in backward.loads:
        assert tensor.name in read
        assert tensor.name not in maker or remat.keeps(maker[tensor.name], tensor)
    made = {t.name for op, _ in again(graph) for t in op.outputs if not remat.keeps(op, t)}
    assert not made & saved_names(graph)


@pytest.mark.parametrize("seed", seeds(8))
def test_partitioned_programs_obey_the_same(seed: int) -> None:
    """Whatever shards the tensors: FLOPs of the recomputation fall, stacks on a device rise.

    The whole of what is computed falls too: nothing is recomputed under another phase's name.
    """
    rng = random.Random(seed)
    model = random_model(rng)
    mesh = rng.choice([{"fsdp": 16}, {"data": 4, "tensor": 4}, {"fsdp": 2, "tensor": 8}])
    rules = rng.choice([{}, {"act_embed": "tensor"}] if "tensor" in mesh else [{}])
    style, policy = rng.choice(["plain", "maxtext"]), rng.choice(["full", "minimal"])
    programs = [
        any_program_of(
            model, plan_of(mesh, rules=rules, remat=policy, save=names, style=style),
            Slice("v5e", "4x4"),
        )
        for names in growing_lists(model, rng)[::3]
    ]  # fmt: skip
    for before, after in pairwise(programs):
        assert in_phase(after) <= in_phase(before)
        assert in_phase(after) == total_flops(after.body).recompute
        assert total_flops(after.body).model == total_flops(before.body).model
        assert total_flops(after.body).total <= total_flops(before.body).total
        assert taken(after, "saved activations") >= taken(before, "saved activations")


def in_phase(program: Program) -> float:
    """FLOPs of the operations whose phase is the recomputation, copies and padding left out."""
    ops = ((op, n) for op, n in flat(program.body) if isinstance(op, Compute))
    again = (n * (op.flops.model + op.flops.recompute) for op, n in ops
             if op.phase is Phase.RECOMPUTE)  # fmt: skip
    return sum(again)
