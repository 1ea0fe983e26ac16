"""The loss in tiles before it is partitioned: what is cut, what is shared, what is summed."""

from math import prod

import pytest
from plans import small

from tpusim.base import Phase, PlanError
from tpusim.graph import (
    COMPUTE,
    POLICIES,
    STORED,
    VOCAB_TILES,
    Graph,
    Remat,
    Scan,
    Tensor,
    TensorRole,
    executed_flops,
    training_step,
    walk,
    whole_dim,
    with_tiled_loss,
)
from tpusim.models import Transformer

PARTS = {"batch": 2, "seq": 4}


def forward(model: Transformer) -> Graph:
    return model.graph(batch=4, seq_len=16)


def tiled(model: Transformer, policy: str = "full") -> Graph:
    return training_step(with_tiled_loss(forward(model), PARTS), Remat(policy))


def scan(graph: Graph, phase: Phase) -> Scan:
    name = VOCAB_TILES + ("/d" if phase is Phase.BACKWARD else "")
    (found,) = (op for op in graph.ops if op.name == name)
    assert isinstance(found, Scan)
    return found


def names(pairs: tuple[tuple[Tensor, Tensor], ...]) -> list[tuple[str, str]]:
    return [(one.name, other.name) for one, other in pairs]


def test_one_part_is_the_graph_itself() -> None:
    graph = forward(small())
    assert with_tiled_loss(graph, {"batch": 1, "seq": 1}) is graph


def test_a_tile_is_a_part_of_the_tokens() -> None:
    """Every operation behind the layers runs on it, and each part has the size of its share."""
    graph = forward(small())
    cut = with_tiled_loss(graph, PARTS)
    found = scan(cut, Phase.FORWARD)
    assert found.trips == 8
    assert [op.name for op in found.body] == [op.name for op in graph.ops[-3:]]
    assert names(found.slices) == [("layers_out", "tile/layers_out"), ("ids", "tile/ids")]
    assert names(found.stacks) == [("tile/loss", "loss")]
    assert [tensor.name for tensor in found.shared] == ["final_norm_scale", "head"]
    before, after = graph.sizes, cut.sizes
    for inside, outside in (*found.stacks, *((i, o) for o, i in found.slices)):
        assert tuple(map(whole_dim, inside.dims)) == outside.dims
        tile, whole = (prod(after[dim] for dim in t.dims) for t in (inside, outside))
        assert tile * 8 == whole
    assert before.items() <= after.items()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_weight_still_has_one_gradient(policy: str, tied: bool) -> None:
    model = small(tied_embeddings=tied)
    graph, whole = tiled(model, policy), training_step(forward(model), Remat(policy))
    assert [p.tensor.name for p in graph.parameters] == [p.tensor.name for p in whole.parameters]
    assert graph.parameter_count == whole.parameter_count
    assert dict(graph.gradients).keys() == dict(whole.gradients).keys()
    for weight, gradient in graph.gradients:
        assert gradient.primal == weight
        assert set(gradient.dims) <= {"embed", "vocab", "mlp", "heads", "head_dim"}


def test_what_the_tiles_share_gets_the_sum_of_their_gradients() -> None:
    """As weights are stored, unless each tile reduces its term.

    What they take in parts gets its gradient in the same parts.
    """
    back = scan(tiled(small()), Phase.BACKWARD)
    assert {outside.primal: outside.dtype for _, outside in back.sums} == {
        "final_norm_scale": STORED, "head": STORED,
    }  # fmt: skip
    apart = training_step(with_tiled_loss(forward(small()), PARTS, apart=True), Remat())
    assert {outside.dtype for _, outside in scan(apart, Phase.BACKWARD).sums} == {COMPUTE}
    assert names(back.stacks) == [("d(tile/layers_out)", "d(layers_out)")]
    assert ("d(loss)", "d(tile/loss)") in names(back.slices)
    assert all(
        inside.role is TensorRole.INPUT for _, inside in back.slices if "loss" in inside.name
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_computes_the_logits_again_and_saves_none(policy: str) -> None:
    graph = tiled(small(attention="dot"), policy)
    whole = training_step(forward(small(attention="dot")), Remat(policy))
    assert scan(graph, Phase.FORWARD).saves == scan(graph, Phase.BACKWARD).loads == ()

    def again(step: Graph) -> int:
        return sum(
            trips * executed_flops(op, step.sizes)
            for op, trips in walk(step.ops)
            if op.phase is Phase.RECOMPUTE
        )

    assert again(graph) - again(whole) == 2 * 4 * 16 * 64 * 512
    assert graph.model_flops() == whole.model_flops()


def test_a_tensor_of_the_tiles_cannot_be_saved() -> None:
    with pytest.raises(PlanError, match="save lists 'logits', which is no activation of a layer"):
        training_step(with_tiled_loss(forward(small()), PARTS), Remat(save=("logits",)))
