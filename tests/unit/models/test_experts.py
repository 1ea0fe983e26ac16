"""Models of experts: their weights, their layers, and what cannot be."""

from fractions import Fraction
from math import prod
from typing import Any

import pytest
from plans import small

from tpusim.base import ModelError
from tpusim.graph import Einsum, Remat, Scan, TokenRouting, training_step, walk
from tpusim.models import ExpertRouting, GraphChoices, Transformer

MIXTRAL = Transformer(
    name="mixtral-8x7b", layers=32, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=32000,
    experts=8, experts_per_token=2,
)  # fmt: skip


def routed(capacity: float) -> GraphChoices:
    return GraphChoices(routing=ExpertRouting(capacity_factor=capacity))


def moe(**changes: Any) -> Transformer:
    return small(**({"experts": 8, "experts_per_token": 2, "expert_mlp": 128} | changes))


def test_mixtral_has_46_7_billion_weights_and_uses_12_9() -> None:
    """Jiang et al., Mixtral of Experts (arXiv:2401.04088): 47B and 13B."""
    assert MIXTRAL.parameter_count == pytest.approx(46.70e9, rel=1e-4)
    assert MIXTRAL.active_parameter_count == pytest.approx(12.88e9, rel=1e-3)


def test_deepseek_v3_without_its_attention_has_dense_layers_first() -> None:
    """DeepSeek-V3 (arXiv:2412.19437, section 4.2); its MLPs hold all but 1.7 % of 671B."""
    model = Transformer(
        layers=61, embed=7168, mlp=18432, heads=128, kv_heads=1, head_dim=1, vocab=129280,
        experts=256, experts_per_token=8, expert_mlp=2048, shared_mlp=2048, dense_layers=3,
    )  # fmt: skip
    experts, others = 58 * 257 * 3 * 7168 * 2048, 3 * 3 * 7168 * 18432
    rest = 2 * 129280 * 7168 + 58 * 256 * 7168
    assert model.parameter_count == pytest.approx(experts + others + rest, rel=3e-4)
    scans = [op for op in model.graph(batch=1, seq_len=8).ops if isinstance(op, Scan)]
    assert [(scan.name, scan.trips) for scan in scans] == [("dense_layers", 3), ("layers", 58)]


def test_what_is_active_is_what_a_dense_model_of_the_choices_has() -> None:
    model = moe(shared_mlp=96, expert_every=3)
    dense = moe(shared_mlp=96, expert_every=3, experts=2)
    router = (8 - 2) * 64
    assert model.active_parameter_count == dense.parameter_count + router


@pytest.mark.parametrize(
    ("fields", "scans"),
    [
        ({"layers": 6, "expert_every": 2}, [("layers", 3, "-e")]),
        ({"layers": 7, "expert_every": 2}, [("layers", 3, "-e"), ("last_layers", 1, "-")]),
        ({"layers": 8, "expert_every": 3}, [("layers", 2, "--e"), ("last_layers", 2, "-")]),
        ({"layers": 5, "dense_layers": 2}, [("dense_layers", 2, "-"), ("layers", 3, "e")]),
        (
            {"layers": 5, "dense_layers": 1, "expert_every": 2},
            [("dense_layers", 1, "-"), ("layers", 2, "e-")],
        ),
        (
            {"layers": 7, "window": 4, "global_every": 4, "expert_every": 2},
            [("layers", 1, "-e-e"), ("last_layers", 1, "-e-")],
        ),
    ],
)
def test_layers_with_experts_come_as_often_as_said(
    fields: dict[str, int], scans: list[tuple[str, int, str]]
) -> None:
    """GShard (arXiv:2006.16668, section 2.2) has them in every other layer."""
    graph = moe(**fields).graph(batch=2, seq_len=16)
    found = []
    for scan in graph.ops:
        if isinstance(scan, Scan):
            last = [op.name for op in scan.body if op.name.endswith("wo_mlp")]
            kinds = "".join("e" if "expert_" in name else "-" for name in last)
            found.append((scan.name, scan.trips, kinds))
    assert found == scans
    count = sum(n for op, n in walk(graph.ops) if op.name.endswith("/router"))
    assert count == sum(map(moe(**fields).moe.has_experts, range(fields["layers"])))


@pytest.mark.parametrize(
    ("seq_len", "capacity", "slots"),
    [
        (4096, 1.25, 1280),
        (4096, 0.0, 1024),
        (10, 0.0, 3),
        (4096, 1.1, 1127),
        (4, 8.0, 4),
        (1, 1, 1),
    ],
)
def test_slots_of_an_expert(seq_len: int, capacity: float, slots: int) -> None:
    """`ceil(seq k / experts x capacity)`, at least 1, at most the sequence's tokens."""
    assert ExpertRouting(capacity_factor=capacity).slots(seq_len, 8, 2) == slots


@pytest.mark.parametrize("capacity", [0.0, 1.0, 1.25, 2.0])
@pytest.mark.parametrize("seq_len", [16, 10])
def test_the_models_flops_are_those_of_its_choices(seq_len: int, capacity: float) -> None:
    """Neither a mask's products nor slots that stay empty are the model's, to the last FLOP."""
    tokens = 3 * 2 * seq_len
    model, dense = moe(), small(mlp=2 * 128)
    graph = model.graph(
        batch=2,
        seq_len=seq_len,
        choices=routed(capacity),
    )
    same = dense.graph(batch=2, seq_len=seq_len)
    assert graph.model_flops() == same.model_flops() + 2 * tokens * 64 * 8


def test_slots_that_are_too_few_need_their_own_flops_only() -> None:
    graph = moe().graph(batch=2, seq_len=16, choices=routed(0.5))
    shares = {op.model_share for op, _ in walk(graph.ops) if op.name.startswith("layer/expert_w")
              and isinstance(op, Einsum)}  # fmt: skip
    assert shares == {Fraction(1)}


def test_a_sort_and_its_transpose() -> None:
    """Only the way back weighs slots, so only its transpose makes the gates' gradient."""
    step = training_step(moe().graph(batch=2, seq_len=16), Remat())
    routes = {op.name: op for op, _ in walk(step.ops) if isinstance(op, TokenRouting)}
    assert {name: (r.dispatch, r.weighted) for name, r in routes.items()} == {
        "layer/dispatch": (True, False), "layer/dispatch/d": (False, False),
        "layer/combine": (False, True), "layer/combine/d": (True, True),
    }  # fmt: skip
    made = {name: [t.name for t in r.outputs] for name, r in routes.items()}
    assert made["layer/combine/d"] == ["d(layer/expert_out)", "d(layer/gates)~combine"]
    assert made["layer/dispatch/d"] == ["d(layer/mlp_norm)~dispatch"]
    assert "layer/expert_out" in [t.name for t in routes["layer/combine/d"].inputs]


def test_a_mask_of_places_has_no_gradient() -> None:
    graph = moe().graph(batch=2, seq_len=16, choices=routed(1.0))
    step = training_step(graph, Remat())
    primals = {t.primal for op, _ in walk(step.ops) for t in op.outputs}
    assert "layer/combine_mask" in primals
    (whole,) = {t.name for op, _ in walk(step.ops) for t in op.outputs
                if t.primal == "layer/combine_mask"}  # fmt: skip
    assert whole.endswith("~combine"), "from the way back alone"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"experts": 0, "experts_per_token": 2}, "experts_per_token is 2, but the model has no "
         "experts; give experts, or write experts_per_token = 0"),
        ({"experts": 0, "experts_per_token": 0}, "expert_mlp is 128, but the model has no experts"),
        ({"experts": 0, "experts_per_token": 0, "expert_mlp": 0, "shared_mlp": 64}, "shared_mlp is "
         "64, but"),
        ({"experts": 0, "experts_per_token": 0, "expert_mlp": 0, "expert_every": 2}, "expert_every "
         "is 2, but"),
        ({"experts_per_token": 9}, "experts_per_token is 9; write how many of the 8 experts a "
         "token goes to, from 1 to 8"),
        ({"experts_per_token": 0}, "experts_per_token is 0; write"),
        ({"experts": -8}, "experts is -8; it must be at least 0"),
        ({"expert_every": 0}, "expert_every is 0; it must be at least 1"),
        ({"dense_layers": 3}, "none of the 3 layers has experts, as dense_layers is 3"),
        ({"expert_every": 4}, "none of the 3 layers has experts, as dense_layers is 0 and "
         "expert_every is 4; write smaller ones, or leave experts out"),
    ],
)  # fmt: skip
def test_experts_that_cannot_be(fields: dict[str, int], sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        moe(**fields)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"experts": "8"}, "transformer: experts is '8'; it must be a whole number"),
    ({"expert_every": 1.5}, "transformer: expert_every is 1.5; it must be a whole number"),
    ({"shared_mlp": None}, "transformer: shared_mlp is None; it must be a whole number"),
    ({"dense_layers": True}, "transformer: dense_layers is True; it must be a whole number"),
    ({"qk_norm": 1}, "transformer: qk_norm is 1; it must be True or False"),
    ({"activation": 3}, "transformer: activation is 3; it must be text"),
])  # fmt: skip
def test_fields_of_another_type_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError) as told:
        Transformer(layers=2, embed=64, mlp=128, heads=4, vocab=256, **changes)
    assert str(told.value) == sentence


def test_sequences_of_a_group_share_their_slots() -> None:
    """The mask of a group has a place for each of its tokens in each slot, so it grows with it."""
    model = moe()
    for sequences in (1, 4):
        routing = ExpertRouting(capacity_factor=1.25, group=sequences)
        graph = model.graph(batch=8, seq_len=16, choices=GraphChoices(routing=routing))
        (made,) = (op for op, *_ in walk(graph.ops) if op.name == "layer/dispatch")
        assert isinstance(made, Einsum)
        tokens, mask = (prod(graph.sizes[d] for d in t.dims) for t in (made.lhs, made.rhs))
        assert tokens == 8 * 16 * 64
        assert mask == 8 * 16 * 8 * (5 * sequences)  # ceil(16 x 2 / 8 x 1.25) slots a sequence
    uneven = GraphChoices(routing=ExpertRouting(capacity_factor=1.25, group=3))
    with pytest.raises(ModelError, match="groups of 3 sequences, which do not divide a batch of 8"):
        model.graph(batch=8, seq_len=16, choices=uneven)
