"""FLOPs of the recomputation, counted by hand from the dimensions of a layer."""

from dataclasses import dataclass

import pytest
from plans import plan_of, small

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.simulation import simulate

POD = Slice("v5e", "4x4")
BATCH, SEQ = 32, 128
TOKENS = BATCH * SEQ


@dataclass(frozen=True)
class Forward:
    """FLOPs of one layer's forward pass: of 2 FLOPs a weight and token, and of attention."""

    qkv: int
    attention: int
    wo: int
    mlp_in: int
    mlp_out: int

    @property
    def all(self) -> int:
        return self.qkv + self.attention + self.wo + self.mlp_in + self.mlp_out


def forward(m: Transformer) -> Forward:
    inputs = 2 if m.gated else 1
    scores = 4 * BATCH * SEQ * SEQ * m.heads * m.head_dim
    return Forward(
        qkv=2 * TOKENS * m.embed * (m.heads + 2 * m.kv_heads) * m.head_dim,
        attention=scores // 2 if m.kind == "decoder" else scores,
        wo=2 * TOKENS * m.heads * m.head_dim * m.embed,
        mlp_in=inputs * 2 * TOKENS * m.embed * m.mlp,
        mlp_out=2 * TOKENS * m.mlp * m.embed,
    )


def flops(model: Transformer, remat: str, save: tuple[str, ...] = ()) -> tuple[int, int]:
    """The model's FLOPs, and those of the recomputation."""
    plan = plan_of({"fsdp": 16}, seq_len=SEQ, global_batch=BATCH, remat=remat, save=save)
    found = simulate(model, plan, POD)
    assert found.hfu / found.mfu == pytest.approx(1 + found.flops.recompute / found.flops.model)
    return int(found.flops.model), int(found.flops.recompute)


MODELS = [
    small(attention=attention, **changes)
    for attention in ("flash", "dot")
    for changes in (
        {},
        {"gated": False, "kind": "encoder", "kv_heads": 1},
        {"parallel": True, "kv_heads": 2},
        {"rotary": False, "layers": 1},
    )
]
IDS = [f"{m.attention.kernel}-{n}" for n, m in enumerate(MODELS)]


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_full_remat_is_a_forward_pass_of_the_layers_without_their_last_projections(
    model: Transformer,
) -> None:
    """In serial blocks that of the MLP; in parallel ones attention's too. The head is outside."""
    one = forward(model)
    head = 2 * TOKENS * model.embed * model.vocab
    last = one.mlp_out + (one.wo if model.parallel else 0)
    needed, again = flops(model, "full")
    assert needed == 3 * (model.layers * one.all + head)
    assert again == model.layers * (one.all - last)


@pytest.mark.parametrize("model", MODELS, ids=IDS)
@pytest.mark.parametrize(
    ("remat", "save", "parts"),
    [
        ("minimal", (), ("attention",)),
        ("dots", (), ("kernel",)),
        ("dots", ("context",), ()),
        ("minimal", ("context",), ("scores",)),
        ("none", (), ()),
        ("full", ("q", "k", "v"), ("attention", "wo", "mlp_in")),
        ("full", ("context",), ("qkv", "scores", "wo", "mlp_in")),
        ("full", ("q", "k", "v", "context", "out"), ("scores", "mlp_in")),
    ],
)
def test_what_is_computed_again_under_each_list(
    model: Transformer, remat: str, save: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    """kernel: attention where it is fused, which no policy for products keeps.

    scores: half of attention where it is not fused; its gradient needs the probabilities. A
    parallel block needs neither its sums nor attention's projection again.
    """
    one = forward(model)
    counted = {"qkv": one.qkv, "wo": 0 if model.parallel else one.wo, "mlp_in": one.mlp_in}
    fused = model.attention.kernel == "flash"
    counted |= {"attention": one.attention, "kernel": one.attention if fused else 0}
    counted |= {"scores": 0 if fused else one.attention // 2}
    assert flops(model, remat, save)[1] == model.layers * sum(counted[part] for part in parts)


def test_the_sum_in_the_middle_spares_the_projection_before_it() -> None:
    model = MODELS[0]
    one = forward(model)
    again = one.qkv + one.attention + one.mlp_in
    assert flops(model, "full", ("mid",))[1] == model.layers * again
