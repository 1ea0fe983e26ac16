"""Rules, layouts and the collectives between two layouts."""

from itertools import product

import pytest
from plans import graph_of, partitioned_of, plan_of, small, tiles_weights
from steps import checked_rules

from tpusim.graph import Tensor, TensorRole
from tpusim.partition import Layout, is_across, reshard, within_slice
from tpusim.program import CollectiveKind

AXES = ("data", "fsdp", "tensor")
GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
REDUCE, EXCHANGE = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL


PARTIAL = 4


def layout_of(where: tuple[int, ...], names: tuple[str, ...] = AXES) -> Layout:
    """The layout of a tensor of three dimensions, from the place of each axis."""
    return tuple(tuple(a for a, at in zip(names, where, strict=True) if at == d) for d in range(3))


def flat(layout: Layout) -> set[str]:
    return {axis for axes in layout for axis in axes}


def check_steps(source: Layout, partial: tuple[str, ...], target: Layout, spare: int = 0) -> None:
    now, left = source, set(partial)
    for step in reshard(source, partial, target, lambda: spare):
        assert step.axes
        if step.kind in (SCATTER, REDUCE):
            left -= set(step.axes)
        if step.kind is GATHER:
            assert set(step.axes).isdisjoint(flat(target))
            assert flat(step.after) == flat(now) - set(step.axes)
        if step.kind is EXCHANGE:
            assert flat(step.after) == flat(now)
        now = step.after
    assert not left
    for have, want in zip(now, target, strict=True):
        assert set(have) <= set(want)


def test_the_steps_lead_from_any_layout_to_any_other() -> None:
    """All of them: each axis on one of three dimensions, on none, or still to be summed over.

    Slices are free: what is left to do after the last collective only divides further.
    """
    for before in product(range(5), repeat=3):
        for after in product(range(4), repeat=3):
            partial = tuple(a for a, at in zip(AXES, before, strict=True) if at == PARTIAL)
            check_steps(layout_of(before), partial, layout_of(after))


ACROSS = ("dcn_data", "fsdp", "dcn_fsdp", "data")


def test_the_steps_lead_there_across_slices_too() -> None:
    """And a sum or a gather is over the slice or across slices, in the order that moves least."""
    for before in product((0, 1, PARTIAL), repeat=4):
        for after in product((0, 1, 3), repeat=4):
            partial = tuple(a for a, at in zip(ACROSS, before, strict=True) if at == PARTIAL)
            source, target = layout_of(before, ACROSS), layout_of(after, ACROSS)
            check_steps(source, partial, target, spare=2)
            found = reshard(source, partial, target, lambda: 2)
            steps = [step for step in found if step.kind != EXCHANGE]
            assert all(
                is_across(step.axes) or within_slice(step.axes) == step.axes for step in steps
            )
            sums = [is_across(step.axes) for step in steps if step.kind is not GATHER]
            gathers = [is_across(s.axes) for s in steps if s.kind is GATHER and not s.sharing]
            assert sums == sorted(sums)
            assert gathers == sorted(gathers, reverse=True)


def test_a_whole_sum_that_crosses_is_shared_out_in_the_slice() -> None:
    """Each chip takes its part across, over the dimension that is spare, and gathers the rest."""
    whole = ((), ("tensor",))
    scatter, reduce, gather = reshard(whole, ("data", "dcn_data"), whole, spare=lambda: 0)
    shard = (("data",), ("tensor",))
    assert (scatter.kind, scatter.axes, scatter.after) == (SCATTER, ("data",), shard)
    assert (reduce.kind, reduce.axes, reduce.payload) == (REDUCE, ("dcn_data",), shard)
    assert (gather.kind, gather.axes, gather.after) == (GATHER, ("data",), whole)
    scalar = list(reshard((), ("data", "dcn_data"), ()))
    assert [(s.kind, s.axes) for s in scalar] == [(REDUCE, ("data",)), (REDUCE, ("dcn_data",))]


def test_a_tensor_that_lies_as_wanted_needs_nothing() -> None:
    for where in product(range(4), repeat=3):
        assert list(reshard(layout_of(where), (), layout_of(where))) == []


A, NONE = ("a",), ()


@pytest.mark.parametrize(
    ("source", "partial", "target", "kinds"),
    [
        ((NONE, NONE), A, (A, NONE), [SCATTER]),
        ((NONE, NONE), A, (NONE, NONE), [REDUCE]),
        ((A, NONE), NONE, (NONE, NONE), [GATHER]),
        ((NONE, NONE), NONE, (A, NONE), []),
        ((A, NONE), NONE, (NONE, A), [EXCHANGE]),
        ((A, NONE), ("b",), (NONE, A), [REDUCE, EXCHANGE]),
        ((A, NONE), ("b",), (NONE, ("b",)), [SCATTER, GATHER]),
    ],
)
def test_the_collective_follows_from_the_mismatch(
    source: Layout, partial: tuple[str, ...], target: Layout, kinds: list[CollectiveKind]
) -> None:
    """GSPMD, arXiv:2105.04663, section 3.5."""
    assert [step.kind for step in reshard(source, partial, target)] == kinds


def rule_layout(tensor: Tensor, mesh: dict[str, int], **changes: object) -> Layout:
    plan = plan_of(mesh, **changes)
    return checked_rules(plan, graph_of(small(), plan)).layout(tensor)


MESH = {"data": 2, "fsdp": 4, "tensor": 4}


@pytest.mark.parametrize(
    ("dims", "role", "layout"),
    [
        (("embed", "mlp"), TensorRole.PARAM, (("fsdp",), ("tensor",))),
        (("vocab", "embed"), TensorRole.PARAM, (("tensor",), ("fsdp",))),
        (("heads", "head_dim", "embed"), TensorRole.PARAM, (("tensor",), (), ("fsdp",))),
        (("embed",), TensorRole.PARAM, ((),)),
        (("batch", "seq", "embed"), TensorRole.ACTIVATION, (("data", "fsdp"), (), ())),
        (("batch", "seq", "mlp"), TensorRole.ACTIVATION, (("data", "fsdp"), (), ("tensor",))),
    ],
)
def test_the_default_rules_are_those_that_jax_users_know(
    dims: tuple[str, ...], role: TensorRole, layout: Layout
) -> None:
    """`data` replicates weights, `fsdp` shards them over embed, `tensor` over heads and mlp."""
    assert rule_layout(Tensor("t", dims, role), MESH) == layout


def test_tables_of_layers_are_sharded_by_their_width_and_their_gates_by_embed() -> None:
    """MaxText's `embed_vocab` and `embed`; the norm of the width is replicated as others are."""
    found = partitioned_of(small(layer_embed=64), plan_of(MESH)).layouts
    assert found["layer/layer_embed_table"] == (("tensor",), ("fsdp",))
    assert found["layer/layer_embed_gate"] == found["layer/layer_embed_wi"] == (("fsdp",), ())
    assert found["layer/layer_embed_norm_scale"] == ((),)


def test_the_width_of_tables_of_layers_does_not_shard_weights_that_embed_leaves_whole() -> None:
    """Models without such tables have the rule too, and it shards nothing of theirs."""
    assert tiles_weights(plan_of({"fsdp": 8}))
    assert not tiles_weights(plan_of({"fsdp": 8}, rules={"embed": None}))


def test_a_tensor_takes_each_axis_once() -> None:
    tensor = Tensor("t", ("batch", "embed", "mlp"))
    given = {"act_embed": "tensor"}
    assert rule_layout(tensor, MESH, rules=given) == (("data", "fsdp"), ("tensor",), ())


def test_axes_of_size_one_change_nothing() -> None:
    one = partitioned_of(small(), plan_of({"data": 1, "fsdp": 4, "tensor": 1}))
    other = partitioned_of(small(), plan_of({"fsdp": 8}))
    assert one.nodes is other.nodes


def test_maxtext_shards_activations_on_embed() -> None:
    tensor = Tensor("t", ("batch", "seq", "embed"))
    assert rule_layout(tensor, MESH, style="maxtext") == (("data", "fsdp"), (), ("tensor",))
    kept = rule_layout(tensor, MESH, style="maxtext", rules={"act_embed": None})
    assert kept == (("data", "fsdp"), (), ())


def test_a_tensor_lies_over_the_dimensions_that_it_is_made_with() -> None:
    """Attention calls the keys' sequence `kv_seq`; they are still made, and lie, as sequences."""
    plan = plan_of({"data": 2, "tensor": 4}, rules={"act_seq": "tensor"})
    found = partitioned_of(small(), plan).layouts
    assert found["layer/k_rotary"] == found["layer/q_rotary"] == (("data",), ("tensor",), (), ())


def test_annotations_outrank_rules_and_rules_fill_the_rest() -> None:
    batch = ("data", "fsdp")
    plan = plan_of(MESH, annotate={"layer/mlp_hidden": (batch, "tensor", None)})
    found = partitioned_of(small(), plan).layouts
    assert found["layer/mlp_hidden"] == found["layer/mlp_in_0"] == (batch, ("tensor",), ())
    assert found["layer/layer_in"] == (batch, ("tensor",), ())
    assert found["layer/wi_0"] == (("fsdp",), ("tensor",))
    assert partitioned_of(small(), plan_of(MESH)).layouts["layer/layer_in"] == (batch, (), ())
