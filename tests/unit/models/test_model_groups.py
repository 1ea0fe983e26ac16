"""The keys of a model, flat and grouped."""

from dataclasses import fields, replace
from typing import Any

import pytest
from plans import small

from tpusim.base import ModelError
from tpusim.models import MODEL_KEYS, Latent, MoE, SelfAttention, Transformer, load

OTHER: dict[str, dict[str, Any]] = {
    "attention": {"attention": "dot", "softmax_dtype": "f32", "window": 8, "global_every": 2,
                  "global_head_dim": 64, "global_kv_heads": 2, "global_keys_as_values": True,
                  "rotary": False, "qk_norm": True, "qk_norm_heads": "each", "global_first": True},
    "latent": {"q_rank": 16, "kv_rank": 8, "rope_dim": 4, "v_head_dim": 16},
    "moe": {"experts": 8, "experts_per_token": 2, "expert_mlp": 64, "shared_mlp": 32,
            "shared_gate": True, "dense_layers": 1, "expert_every": 2},
    "norms": {"norm": "layer", "pre_norms": False, "sum_norms": True, "embed_norm": True},
    "biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "head_bias": True,
               "router_bias": True},
}  # fmt: skip
"""Values of the keys of each group that are not the defaults."""

APART: dict[str, dict[str, Any]] = {
    "attention": {"fused_qkv": True, "out_gate": True, "global_every": 2, "global_ends": "last",
                  "linear": "gated-delta", "linear_heads": 4, "linear_key_heads": 2,
                  "linear_head_dim": 16, "linear_value_dim": 24, "linear_conv": 4},
    "norms": {"mlp_norm": True},
}  # fmt: skip
"""The same for keys that some of those above rule out."""


def test_every_field_has_one_flat_key() -> None:
    homes = [(group, f.name) for group, kind in MODEL_KEYS.groups.items() for f in fields(kind)]
    own = [("", field.name) for field in fields(Transformer) if field.name not in OTHER]
    assert sorted(MODEL_KEYS.table.values()) == sorted(homes + own)
    assert {key for keys in (*OTHER.values(), *APART.values()) for key in keys} == {
        key for key, (group, _) in MODEL_KEYS.table.items() if group
    }


@pytest.mark.parametrize(("group", "keys"), [*OTHER.items(), *APART.items()])
def test_flat_and_grouped_are_one_model(group: str, keys: dict[str, Any]) -> None:
    inner = {MODEL_KEYS.table[key][1]: value for key, value in keys.items()}
    plain = small(parallel="mlp_norm" in keys)
    flat = plain.replace(**keys)
    assert small(**plain.flat() | keys) == flat
    assert replace(plain, **{group: MODEL_KEYS.groups[group](**inner)}) == flat
    assert plain.replace(**{group: inner}) == flat
    assert flat.flat() == plain.flat() | keys


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma3-27b", "mixtral-8x7b"])
def test_a_published_model_is_its_flat_keys(name: str) -> None:
    model = load(name)
    assert Transformer(**model.flat()) == model
    assert replace(model, layers=6).layers == 6
    assert model.kv_rank == model.latent.kv_rank


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"moe": {"experts": 2}, "experts": 2}, "transformer: moe.experts and experts are both"),
        ({"latent": Latent(), "kv_rank": 3}, "transformer: latent and kv_rank are both given"),
        ({"moe": {"experts": -1}}, "transformer: moe.experts is -1; it must be at least 0"),
        ({"experts": -1}, "transformer: experts is -1; it must be at least 0"),
        ({"attention": "flat"}, "transformer: attention is 'flat'; write one of flash, dot, none"),
        (
            {"attention": {"kernel": "flat"}},
            "transformer: attention.kernel is 'flat'; write",
        ),
        ({"moe": {"expert": 3}}, "transformer: moe has no key 'expert'; did you mean 'experts'"),
        ({"window": 1.5}, "transformer: window is 1.5; it must be a whole number"),
        ({"q_rank": 8}, "transformer: q_rank is for latent attention; give kv_rank, or leave it"),
    ],
)
def test_a_mistake_is_told_by_the_key_as_written(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError) as raised:
        small(**keys)
    assert str(raised.value).startswith(sentence)


def test_groups_are_values() -> None:
    assert SelfAttention(window=4) == SelfAttention(window=4)
    assert len({MoE(), MoE(), Latent()}) == 2
