"""One model through the zoo, a Hugging Face config and MaxText: parameters, FLOPs and seconds."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from extent import sample, thorough
from hf_facts import CONFIGS, MODELS_OF_2026
from inputs import Biases, Norms
from inputs import models as maxtext_models

import tpusim as ts
from tpusim import models
from tpusim.base import TpusimError
from tpusim.models import Transformer, from_hf, hf_notes

LENGTH = 8192
"""Tokens of a sequence: more than any window."""

OTHER_NAMES = {
    "deepseek2-16b": "deepseek-v2-lite", "deepseek2-236b": "deepseek-v2",
    "deepseek3-671b": "deepseek-v3", "kimi-k2-1t": "kimi-k2", "llama3-405b": "llama3.1-405b",
}  # fmt: skip
"""What MaxText calls a model otherwise."""

OF_MAXTEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt3-175b": (
        "MaxText has a table of 16384 positions, biases, norms with shifts and fused projections; "
        "the zoo's has none of them, as the runs that MLPerf publishes count their parameters",
        {"positions": 16384, "fused_qkv": True, "norms": Norms(kind="layer"),
         "biases": Biases(qkv=True, out=True, mlp=True)},
    ),
    "mistral-7b": ("MaxText's block has no window", {"window": 0}),
}  # fmt: skip
"""Models of which MaxText's program is another one: why, and the keys that make the zoo's equal."""

PADDED = {
    **dict.fromkeys(["gemma-2b", "gemma-7b", "gemma2-2b", "gemma2-9b", "gemma2-27b"], 256128),
    **dict.fromkeys(["gemma3-4b", "gemma3-12b", "gemma3-27b"], 262144),
}
"""Rows of the vocabulary that MaxText has, and the zoo after it: a multiple of 128 for Gemma and
Gemma 2, and for Gemma 3 without the 64 that follow the tokens of text."""


def numbers(model: Transformer) -> tuple[int, int, int]:
    """Parameters, FLOPs and picoseconds of a step."""
    plan = ts.Plan(mesh={"fsdp": 64}, seq_len=LENGTH, global_batch=64)
    result = ts.simulate(model, plan, ts.Slice("v5p", "4x4x4"))
    return model.parameter_count, step_flops(model), round(result.step_time_s * 1e12)


@cache
def step_flops(model: Transformer) -> int:
    return model.graph(batch=1, seq_len=LENGTH).model_flops()


def of_maxtext(name: str) -> Transformer:
    run = ts.from_maxtext(None, {"model_name": name, "compile_topology": "v5p-128"})
    return run.model


def known_to_maxtext() -> list[str]:
    """The models that MaxText and the zoo have."""
    zoo = models.names(Transformer)
    return [name for name in maxtext_models() if OTHER_NAMES.get(name, name) in zoo]


def test_the_doors_know_what_they_know() -> None:
    assert len(known_to_maxtext()) == 46
    assert CONFIGS.keys() | MODELS_OF_2026.keys() <= set(models.names(Transformer))
    without = {OTHER_NAMES.get(name, name) for name in known_to_maxtext()} - CONFIGS.keys()
    assert without == {"gpt3-175b"}, "GPT-3 has no config.json"


@pytest.mark.parametrize("name", sample(known_to_maxtext(), 6))
def test_maxtext_and_the_zoo_give_one_model(name: str) -> None:
    zoo = models.load(OTHER_NAMES.get(name, name))
    theirs = of_maxtext(name)
    if name in OF_MAXTEXT:
        _, changes = OF_MAXTEXT[name]
        assert numbers(theirs) != numbers(zoo)
        zoo = zoo.replace(**changes)
    assert numbers(theirs) == numbers(zoo)


@pytest.mark.parametrize("name", sample(CONFIGS, 6))
def test_hugging_face_and_the_zoo_give_one_model(name: str) -> None:
    zoo, config = models.load(name), from_hf(CONFIGS[name])
    if name in PADDED:
        assert zoo.vocab == PADDED[name] != config.vocab
        rows = (1 if zoo.tied_embeddings else 2) * (zoo.vocab - config.vocab)
        assert zoo.parameter_count - config.parameter_count == rows * zoo.embed
        config = config.replace(vocab=zoo.vocab)
    assert numbers(config) == numbers(zoo)


def test_gpt_3_differs_by_what_is_said() -> None:
    """Positions, five biases and two shifts a layer, and the last norm's shift."""
    zoo, theirs = models.load("gpt3-175b"), of_maxtext("gpt3-175b")
    layer = 3 * zoo.embed + zoo.embed + zoo.mlp + zoo.embed + 2 * zoo.embed
    more = 16384 * zoo.embed + zoo.layers * layer + zoo.embed
    assert theirs.parameter_count - zoo.parameter_count == more
    assert step_flops(theirs) == step_flops(zoo)


def test_gpt_oss_takes_its_biases_through_each_door() -> None:
    """1.25 s without them (`qkv_bias`, `out_bias`, `mlp_bias`, `router_bias`)."""
    given = [models.load("gpt-oss-20b"), from_hf(CONFIGS["gpt-oss-20b"]), of_maxtext("gpt-oss-20b")]
    assert {model.biases for model in given} == {Biases(qkv=True, out=True, mlp=True, router=True)}
    assert len({numbers(model) for model in given}) == 1


PUBLISHED_2026 = {
    "kimi-k2": (1.04e12, 32e9, "arXiv:2602.02276 and arXiv:2507.20534, the language model"),
    "mistral-small-4": (
        119e9,
        6.5e9,
        "mistral.ai, Mistral Small 4; with an encoder of 0.4 billion",
    ),
    "ax-k1": (519e9, 33e9, "arXiv:2601.09200"),
    "sarvam-105b": (106e9, 10.3e9, "model card of sarvamai/sarvam-105b"),
    "glm-4.7-flash": (30e9, 3e9, "model card of zai-org/GLM-4.7-Flash, 30B-A3B"),
    "solar-open-100b": (102.6e9, 12e9, "arXiv:2601.07022"),
    "hy3": (295e9, 21e9, "model card of tencent/Hy3-preview"),
    "mellum2-12b": (12e9, 2.5e9, "arXiv:2605.31268"),
}
"""Published parameters, those that a token passes, and where."""

WITHOUT_TABLES = ("sarvam-105b", "glm-4.7-flash")
"""Models whose active parameters are published without embedding and head."""


def test_each_model_of_2026_has_a_published_count() -> None:
    assert PUBLISHED_2026.keys() == MODELS_OF_2026.keys()


@pytest.mark.parametrize("name", PUBLISHED_2026)
def test_models_of_2026_have_their_published_parameters(name: str) -> None:
    config, zoo = from_hf(MODELS_OF_2026[name]), models.load(name)
    assert replace(config, name=name).parameter_count == zoo.parameter_count
    assert numbers(config) == numbers(zoo)
    total, active, _ = PUBLISHED_2026[name]
    assert config.parameter_count == pytest.approx(total, rel=0.015)
    passed = config.active_parameter_count
    passed -= 2 * config.vocab * config.embed if name in WITHOUT_TABLES else 0
    assert passed == pytest.approx(active, rel=0.1)


REFUSED_2026 = {
    "a Qwen of 2026": (
        {"model_type": "qwen4_exp",
         "text_config": {"model_type": "qwen4_exp_text", "linear_num_value_heads": 32}},
        "linear attention (linear_num_value_heads = 32)",
    ),
    "zai-org/GLM-5": (
        {"model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"],
         "index_topk": 2048},
        "sparse attention with selected keys (index_topk = 2048)",
    ),
    "stepfun-ai/Step-3.7-Flash": (
        {"model_type": "step3p7", "text_config": {"model_type": "step3p5"}},
        "heads that differ in windows, and a gate on the result of attention",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_2026)
def test_a_model_of_2026_that_is_refused_names_its_feature(name: str) -> None:
    config, feature = REFUSED_2026[name]
    with pytest.raises(TpusimError) as error:
        from_hf(config)
    assert f"cannot be simulated yet, as it has {feature}" in str(error.value)


@pytest.mark.parametrize("count", [20, thorough(400)])
def test_a_models_name_changes_no_number(count: int) -> None:
    """Of any architecture of the zoo, and as `_name_or_path` of a Hugging Face config."""
    for name in models.names()[:: max(1, len(models.names()) // count)]:
        model = models.load(name)
        other = replace(model, name="gemma4-e2b")
        one, same = (m.graph(batch=4, seq_len=8 * m.reads_text) for m in (model, other))
        assert (one.dims, one.ops, one.outputs) == (same.dims, same.ops, same.outputs), name
    for name, config in [*CONFIGS.items()][:: max(1, len(CONFIGS) // count)]:
        own = from_hf(config)
        for path in ("gpt-oss-20b", "gemma4-e2b", "x/" * 20, "Llama 4 with linear attention"):
            called = config | {"_name_or_path": path}
            assert replace(from_hf(called), name=own.name) == own, name
            assert hf_notes(called) == hf_notes(config)


@pytest.mark.parametrize("name", sample([*models.ARCHITECTURES], 8))
def test_a_renamed_model_takes_the_same_step(name: str) -> None:
    """Of each architecture, on each of two meshes."""
    kind = models.ARCHITECTURES[name]
    published = models.names(kind)
    model = models.load(published[0]) if published else kind()
    for mesh in ({"fsdp": 8}, {"data": 8}):
        plan = ts.Plan(mesh=mesh, seq_len=128 * model.reads_text, global_batch=64)
        one, same = (
            ts.simulate(each, plan, ts.Slice("v5e", "2x4"))
            for each in (model, replace(model, name="llama4 'with' an \"experts\" window"))
        )
        for key in ("step_time_s", "mfu", "hfu", "hbm_peak_bytes"):
            assert getattr(one, key) == getattr(same, key), key
