"""Frozen weights and adapters: what has a gradient, what is computed for it, what is refused."""

from collections import Counter
from math import prod

import pytest
from plans import plan_of, small

from tpusim.base import Phase, PlanError
from tpusim.graph import (
    ADAPTER_RANK,
    Adapters,
    Graph,
    Remat,
    executed_flops,
    training_step,
    walk,
    with_trainable,
)
from tpusim.hardware import Slice
from tpusim.models import Architecture, ResNet
from tpusim.simulation import simulate

TOKENS, RANK = 4 * 16, 8
DENSE, EXPERTS = small(), small(experts=4, experts_per_token=2)
NONE = Adapters()


def forward(model: Architecture, adapters: Adapters = NONE, *trainable: str) -> Graph:
    return with_trainable(model.graph(batch=4, seq_len=16), adapters, trainable)


def step(model: Architecture, adapters: Adapters = NONE, *trainable: str) -> Graph:
    return training_step(forward(model, adapters, *trainable), Remat("none"))


def flops(graph: Graph) -> Counter[Phase]:
    found: Counter[Phase] = Counter()
    for op, trips in walk(graph.ops):
        found[op.phase] += trips * executed_flops(op, graph.sizes)
    return found


def elements(graph: Graph, *, adapters: bool) -> int:
    """Parameters of adapters, or of all other weights but the looked up embedding and norms."""
    sizes, found = graph.sizes, 0
    for p in graph.parameters:
        matrix = len(p.tensor.dims) > 1 and p.tensor.name != "embedding"
        if matrix and (ADAPTER_RANK in p.tensor.dims) == adapters:
            found += p.copies * prod(sizes[dim] for dim in p.tensor.dims)
    return found


def attention_flops(graph: Graph, phase: Phase) -> int:
    ops = ((op, trips) for op, trips in walk(graph.ops) if op.phase is phase)
    named = (each for each in ops if type(each[0]).__name__ == "Attention")
    return sum(trips * executed_flops(op, graph.sizes) for op, trips in named)


def test_a_graph_that_trains_all_is_the_models_own() -> None:
    graph = DENSE.graph(batch=4, seq_len=16)
    assert with_trainable(graph, NONE, ()) is graph
    assert with_trainable(graph, NONE, ("*",)) is graph


def test_a_step_of_adapters_has_four_flops_a_token_and_frozen_weight() -> None:
    """2 forward and 2 for the gradient of its input; an adapter has 6, of which 2 are its own."""
    graph = step(DENSE, Adapters(rank=RANK))
    frozen, own = (elements(graph, adapters=adapters) for adapters in (False, True))
    found = flops(graph)
    assert frozen == elements(step(DENSE), adapters=False)
    ahead, back = (attention_flops(graph, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert found[Phase.FORWARD] == 2 * TOKENS * (frozen + own) + ahead
    assert found[Phase.BACKWARD] == 2 * TOKENS * (frozen + 2 * own) + back
    whole = flops(step(DENSE))
    assert whole[Phase.BACKWARD] == 4 * TOKENS * frozen + back


def test_the_parameters_of_adapters_are_rank_times_rows_and_columns() -> None:
    graph = step(DENSE, Adapters(rank=RANK))
    heads, mlp = 8 * 32, 256
    each = 4 * (64 + heads) + (3 if DENSE.gated else 2) * (64 + mlp)
    assert elements(graph, adapters=True) == 3 * RANK * each
    gradients = {weight for weight, _ in graph.gradients}
    assert gradients == {p.tensor.name for p in graph.parameters if "_adapter_" in p.tensor.name}


def test_the_backward_pass_ends_at_the_lowest_trained_weight() -> None:
    head = step(DENSE, NONE, "head")
    assert [weight for weight, _ in head.gradients] == ["head"]
    back = [op for op, _ in walk(head.ops) if op.phase is not Phase.FORWARD]
    assert {op.name for op in back} == {"loss/d", "logits/dw"}
    adapters = step(DENSE, Adapters(rank=RANK))
    assert not any(op.name.startswith("embed/") for op, _ in walk(adapters.ops))
    assert all(t.primal != "embedding" for op, _ in walk(adapters.ops) for t in op.outputs)


def test_what_only_frozen_gradients_read_is_not_saved() -> None:
    def saved(graph: Graph) -> set[str]:
        return {t.short for op in graph.ops for t in getattr(op, "saves", ())}

    whole, some = saved(step(DENSE)), saved(step(DENSE, NONE, "wo_mlp"))
    assert {"attn_norm", "mlp_norm"} <= whole
    assert not {"attn_norm", "mlp_norm"} & some
    assert "mlp_hidden" in some


def test_experts_have_adapters_of_their_own() -> None:
    graph = step(EXPERTS, Adapters(rank=RANK, weights=("expert_wi_0",)))
    dims = {p.tensor.name: p.tensor.dims for p in graph.parameters}
    assert dims["layer/expert_wi_0_adapter_a"] == ("expert", "embed", ADAPTER_RANK)
    assert dims["layer/expert_wi_0_adapter_b"] == ("expert", ADAPTER_RANK, "expert_mlp")
    assert len(graph.gradients) == 2


@pytest.mark.parametrize(
    ("model", "keys", "sentence"),
    [
        (DENSE, {"trainable": ["wqq"]}, "plan.trainable lists 'wqq', which matches no such weight "
         "of transformer: did you mean 'wq'?"),
        (DENSE, {"adapter_rank": 4, "adapter_weights": ["head"]},
         "plan.adapter_weights lists 'head', which matches no such weight of transformer: valid "
         "are wi_0, wi_1, wk, wo, wo_mlp, wq, wv"),
        (DENSE, {"adapter_weights": ["wq"]}, "plan.adapter_weights is ['wq'], but "
         "plan.adapter_rank is 0: no weight has an adapter; write a rank, such as 16"),
        (DENSE, {"adapter_rank": -1}, "plan.adapter_rank is -1; write a whole number, such as 16, "
         "or 0 for no adapters"),
        (DENSE, {"trainable": "wq"}, "plan.trainable is 'wq'; write a list of names, such as "
         '["head", "*scale"]'),
        (ResNet.published("resnet-50"), {"adapter_rank": 4, "seq_len": 0}, "plan.adapter_rank is "
         "4, but resnet-50 has no layers with matrices that could have an adapter; write 0, and "
         "name the weights to train in plan.trainable"),
    ],
)  # fmt: skip
def test_what_no_weight_has_is_refused(model: Architecture, keys: dict, sentence: str) -> None:
    with pytest.raises(PlanError) as raised:
        simulate(model, plan_of({"fsdp": 4}, **keys), Slice("v4", "2x2x1"))
    assert str(raised.value) == sentence
