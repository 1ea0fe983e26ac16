"""LoRA of a MaxText config: adapters of the modules that its expression matches."""

from typing import Any

import pytest

import tpusim as ts
from tpusim.maxtext import from_maxtext
from tpusim.runfile import SimulationRun

LORA = {"lora.enable_lora": True, "lora.lora_rank": 16}
DENSE = ("wq", "wk", "wv", "wo", "wi_0", "wi_1", "wo_mlp")


def run(**keys: Any) -> SimulationRun:
    return from_maxtext(None, {**LORA, "per_device_batch_size": 2, **keys}, pod="v5p-8")


def test_the_optimizer_has_no_state_of_the_base_weights() -> None:
    """1.1B weights in f32, two moments of them in 4 shards, against those of 14M adapters."""
    full, adapted = run(**{"lora.enable_lora": False}), run()
    before, after = (ts.simulate(each.model, each.plan, each.pod) for each in (full, adapted))
    assert adapted.plan.adapters.rank == 16
    assert adapted.plan.adapters.weights == DENSE
    assert adapted.plan.replace(adapter_rank=0, adapter_weights=()) == full.plan
    assert after.step_time_s < 0.85 * before.step_time_s
    assert after.hbm_peak_bytes < 0.6 * before.hbm_peak_bytes


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("qwen3-4b", DENSE),
        ("gpt3-6b", ("wqkv", "wo", "wi", "wo_mlp")),
        ("gemma2-2b", DENSE),
        ("gemma3-4b", DENSE),
        ("gemma4-31b", DENSE),
        ("olmo3-7b", DENSE),
        ("mixtral-8x7b", ("wq", "wk", "wv", "wo")),
        ("gpt-oss-20b", ("wq", "wk", "wv", "wo")),
        ("gemma4-26b", ("wq", "wk", "wv", "wo", "shared_wi_0", "shared_wi_1", "shared_wo_mlp")),
        ("deepseek2-16b", ("wq", "wkv_a", "wkv_b", "wo", "wi_0", "wi_1", "wo_mlp", "shared_wi_0",
                           "shared_wi_1", "shared_wo_mlp")),
    ],
)  # fmt: skip
def test_a_block_has_adapters_where_maxtext_gives_them(name: str, weights: tuple[str, ...]) -> None:
    """By configs/post_train/lora_module_path.yml; experts are no modules of their own."""
    assert run(model_name=name).plan.adapters.weights == weights


@pytest.mark.parametrize(
    ("path", "weights"),
    [
        ("decoder/layers/self_attention/(query|value)", ("wq", "wv")),
        (".*mlp/.*", ("wi_0", "wi_1", "wo_mlp")),
        (".*/out", ("wo",)),
    ],
)
def test_an_expression_matches_the_whole_path_of_a_module(
    path: str, weights: tuple[str, ...]
) -> None:
    assert run(**{"lora.lora_module_path": path}).plan.adapters.weights == weights


def test_a_part_of_the_layers_is_named_whole() -> None:
    keys = {"model_name": "deepseek2-16b", "lora.lora_module_path": "decoder/dense_layers/.*/out"}
    assert run(**keys).plan.adapters.weights == ("dense_layer/wo",)


@pytest.mark.parametrize("policy", ["full", "minimal", "save_qkv_proj", "minimal_offloaded"])
def test_adapted_matrices_are_saved_as_others_are(policy: str) -> None:
    given = run(remat_policy=policy)
    assert given.plan.remat == run(remat_policy=policy, **{"lora.enable_lora": False}).plan.remat
    assert ts.simulate(given.model, given.plan, given.pod).step_time_s > 0


def test_trained_weights_are_named_as_the_model_names_them() -> None:
    with pytest.raises(ts.TpusimError, match=r"--set .plan\.trainable=") as found:
        from_maxtext(None, {"trainable_parameters_mask": [".*indexer.*"]}, pod="v5p-8")
    assert "write" not in str(found.value)
    head = from_maxtext(None, pod="v5p-8", settings=['plan.trainable=["head", "wq"]'])
    assert head.plan.training.trainable == ("head", "wq")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"lora.lora_rank": 0}, "write the rank of the adapters, such as lora.lora_rank=16"),
        ({"lora.lora_module_path": "query"}, "matches no whole path of a module"),
        ({"lora.lora_module_path": "(query"}, "no regular expression"),
        ({"lora.lora_weight_qtype": "nf4"}, "quantised base weights of adapters (QLoRA) cannot"),
        ({"lora.lora_rnk": 4}, "did you mean 'lora.lora_rank'?"),
        ({"lora_rank": 4}, "did you mean 'lora.lora_rank'?"),
    ],
)
def test_a_mistake_is_one_sentence(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ts.TpusimError) as found:
        run(**keys)
    assert sentence in str(found.value)
    assert len(str(found.value)) < 400
