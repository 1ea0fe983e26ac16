"""Norms, biases and tables of a transformer: their parameters, and what contradicts what."""

from typing import Any

import pytest
from plans import small

from tpusim import graph
from tpusim.base import ModelError, PlanError

EMBED, LAYERS = small().embed, small().layers


def more(**keys: Any) -> int:
    """Weights of a small model beyond those of the plain one."""
    start = {"parallel": True} if "mlp_norm" in keys else {}
    return small(**start, **keys).parameter_count - small(**start).parameter_count


def test_weights_of_norms() -> None:
    scales = (2 * LAYERS + 1) * EMBED
    assert more(norm="layer") == scales
    assert more(norm="layer-unshifted") == 0
    assert more(norm="layer-unscaled") == more(norm="rms-unscaled") == -scales
    assert more(embed_norm=True) == EMBED
    assert more(mlp_norm=True) == LAYERS * EMBED
    assert more(pre_norms=False, post_norms=True) == 0
    assert more(pre_norms=False, sum_norms=True) == -EMBED


def test_weights_of_norms_of_heads() -> None:
    m = small()
    assert more(qk_norm=True) == 2 * LAYERS * m.head_dim
    every = LAYERS * (m.heads + m.kv_heads) * m.head_dim
    assert more(qk_norm=True, qk_norm_heads="each") == every
    assert more(qk_norm=True, qk_norm_heads="all") == every


def test_weights_of_biases() -> None:
    m = small()
    assert more(qkv_bias=True) == LAYERS * (m.heads + 2 * m.kv_heads) * m.head_dim
    assert more(out_bias=True) == LAYERS * EMBED
    assert more(mlp_bias=True) == LAYERS * ((1 + m.gated) * m.mlp + EMBED)
    assert more(head_bias=True) == m.vocab


def test_weights_of_tables_and_the_layer_before_the_head() -> None:
    assert more(positions=64, segments=2) == 66 * EMBED
    assert more(head_layer=True) == EMBED * EMBED + EMBED


def test_weights_of_experts() -> None:
    moe = {"experts": 4, "experts_per_token": 2, "expert_mlp": 32, "shared_mlp": 16}
    plain = small(**moe).parameter_count
    assert small(**moe, shared_gate=True).parameter_count - plain == LAYERS * EMBED
    assert small(**moe, router_bias=True).parameter_count - plain == LAYERS * 4
    width = 1 + small().gated
    biases = 4 * (width * 32 + EMBED) + width * 16 + EMBED
    assert small(**moe, mlp_bias=True).parameter_count - plain == LAYERS * biases


def test_biases_and_norms_have_no_flops_of_matmuls() -> None:
    plain = small().graph(batch=2, seq_len=32)
    keys = {"norm": "layer", "qkv_bias": True, "out_bias": True, "mlp_bias": True}
    own = small(**keys, positions=32).graph(batch=2, seq_len=32)
    flops = [graph.training_step(g, graph.Remat("full")).model_flops() for g in (plain, own)]
    assert flops[0] == flops[1]


def test_the_first_of_each_pattern_sees_all_keys() -> None:
    attention = small(layers=8, window=16, global_every=3, global_first=True).attention
    windows = [attention.kind_of(layer, 8)[0] for layer in range(7)]
    assert windows == [0, 16, 16, 0, 16, 16, 0]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"norm": "batch"}, "norm is 'batch'; write one of rms, layer, layer-unshifted"),
        ({"mlp_norm": True}, "mlp_norm is true, but it is for parallel layers"),
        ({"sum_norms": True}, "sum_norms is true, but then sums are the only norms"),
        ({"qk_norm_heads": "each"}, "but queries and keys are not normed; write .*qk_norm = true"),
        ({"qk_norm": True, "qk_norm_heads": "two"}, "qk_norm_heads is 'two'; write one of each, a"),
        ({"global_first": True}, "global_first is True, but no layer differs"),
        ({"experts": 4, "experts_per_token": 1, "shared_gate": True}, "no expert is shared"),
        ({"kv_rank": 8, "rope_dim": 4, "qkv_bias": True}, "queries, keys and values are made of l"),
        ({"positions": -1}, "positions is -1; it must be at least 0"),
    ],
)
def test_what_cannot_be(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        small(**keys)


def test_a_sequence_is_no_longer_than_its_table() -> None:
    with pytest.raises(PlanError, match=r"seq_len is 65, and .* has 64 positions; write seq_len"):
        small(positions=64).graph(batch=1, seq_len=65)
