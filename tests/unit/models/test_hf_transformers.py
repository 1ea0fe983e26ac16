"""Hugging Face configs as the package `transformers` builds them: each family and its parameters.

`hf/parameters.csv` has the weights that are trained, as PyTorch counts them on its device `meta`,
without those that `left_out` counts: what the notes of the config say is not modelled.
"""

import csv
import json
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from inputs import SIZE_KEYS, families, refused_types

from tpusim.base import ModelError
from tpusim.models import from_hf, hf_notes

transformers = pytest.importorskip(
    "transformers", reason="the package transformers, of the extra `test`, is not installed"
)

FAMILIES, REFUSED = families(), refused_types()
TYPES = {name: family for family in FAMILIES for name in family.types}
WITHOUT_A_CLASS = {"kimi_k2", "exaone4_5_text"}
"""Types that `transformers` has only as code beside the weights."""


class Row(NamedTuple):
    """A model whose parameters are known.

    changes: of the defaults of its class.
    """

    model: str
    model_type: str
    changes: dict[str, Any]
    parameters: int
    left_out: int


def rows() -> list[Row]:
    with (Path(__file__).parent / "hf/parameters.csv").open(encoding="utf-8") as file:
        return [
            Row(r["model"], r["model_type"], json.loads(r["changes"] or "{}"),
                int(r["parameters"]), int(r["left_out"]))
            for r in csv.DictReader(file)
        ]  # fmt: skip


def built(model_type: str, **changes: Any) -> dict[str, Any]:
    """The config of a class, as a file has it."""
    found: dict[str, Any] = transformers.AutoConfig.for_model(model_type, **changes).to_dict()
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.model}-{row.model_type}")
def test_parameters_are_those_of_transformers(row: Row) -> None:
    given = built(row.model_type, **row.changes)
    assert from_hf(given).parameter_count == row.parameters - row.left_out
    assert hf_notes(given) or not row.left_out


def test_each_family_has_a_row() -> None:
    """DBRX, whose class cannot be counted, is below; Gemma 4 and DeepSeek-V3 are in test_hf."""
    counted = {TYPES[row.model_type].name for row in rows()}
    assert counted == {family.name for family in FAMILIES} - {"DBRX"}


def test_dbrx_has_its_published_parameters() -> None:
    """databricks/dbrx-base: 131.6 billion, 36 billion active (its model card)."""
    attention, ffn = {"kv_n_heads": 8}, {"ffn_hidden_size": 10752, "moe_num_experts": 16,
                                         "moe_top_k": 4}  # fmt: skip
    dbrx = built("dbrx", d_model=6144, n_heads=48, n_layers=40, vocab_size=100352,
                 attn_config=attention, ffn_config=ffn)  # fmt: skip
    model = from_hf(dbrx)
    assert model.parameter_count == 131_596_523_520
    assert model.active_parameter_count == pytest.approx(36e9, rel=0.02)


@pytest.mark.parametrize(
    "given",
    [
        {"05": {"head_dim": 512}},
        {"05": {"head_dim": 512}, "11": {"head_dim": 256}},
        {"00": {"head_dim": 512}, "11": {"head_dim": 512}},
        [512, 512],
    ],
)
def test_heads_by_layer_are_those_of_all_layers_that_see_all_keys(given: object) -> None:
    unified = built("gemma4_unified_text", num_hidden_layers=12)
    assert from_hf(unified).attention.global_head_dim == 512
    with pytest.raises(ModelError, match=r"per_layer_config is .*; only the layers that see all"):
        from_hf(unified | {"per_layer_config": given})


def test_a_file_from_before_its_family_was_in_transformers() -> None:
    """The keys of LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct, whose class came with its weights."""
    older = {
        "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "num_layers": 32,
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 102400, "activation_function": "silu",
    }  # fmt: skip
    today = built("exaone") | {"architectures": ["LlamaForCausalLM"]}
    assert from_hf(older) == from_hf(today)
    assert from_hf(today).parameter_count == 7_818_448_896
    assert from_hf(older | {"num_hidden_layers": 30}).layers == 30


@pytest.mark.parametrize("model_type", ["sarvam_moe", "sarvam_mla"])
def test_older_keys_of_sarvam(model_type: str) -> None:
    today = built(model_type, attention_bias=True)
    spelled = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    if model_type == "sarvam_mla":
        assert today["q_lora_rank"] is None
        assert from_hf({k: v for k, v in today.items() if k != "q_lora_rank"}).q_rank == 0
    if model_type == "sarvam_moe":
        spelled["attention_bias"] = "use_qkv_bias"
    older = {spelled.get(key, key): value for key, value in today.items()}
    assert not spelled.keys() & older.keys()
    changed = older | {"num_experts": 64, "num_shared_experts": 2}
    assert from_hf(older) == from_hf(today)
    assert from_hf(changed) == from_hf(today | {"n_routed_experts": 64, "n_shared_experts": 2})


def test_kinds_of_layers_say_more_than_a_number_of_dense_ones() -> None:
    kinds = ["dense"] * 2 + ["sparse"] * 30
    assert from_hf(built("exaone_moe")).dense_layers == 1
    assert from_hf(built("exaone_moe", mlp_layer_types=kinds)).dense_layers == 2
    assert from_hf(built("exaone_moe", mlp_layer_types=["sparse"] * 32)).dense_layers == 0


def test_windows_that_begin_after_dense_layers() -> None:
    """As transformers writes them out, and as files do that name the dense layers alone."""
    after_one = from_hf(built("cohere2_moe", first_k_dense_replace=1))
    assert (after_one.attention.global_every, after_one.attention.global_first) == (4, True)
    sizes = {key: built("cohere2_moe")[key] for key in SIZE_KEYS.values()}
    with pytest.raises(ModelError, match="first_k_dense_replace is 1, which asks for windows tha"):
        from_hf({"model_type": "cohere2_moe", "first_k_dense_replace": 1, **sizes})


@pytest.mark.parametrize("model_type", sorted(TYPES.keys() - WITHOUT_A_CLASS))
def test_defaults_are_those_of_the_class(model_type: str) -> None:
    """What differs is a key that files of the model always write, or that the class derives."""
    family, config = TYPES[model_type], built(model_type)
    config |= config.get("text_config", {})
    if model_type != family.types[0]:
        return
    for key, default in family.defaults.items():
        part, _, inner = key.partition(".")
        said = config[part].get(inner, default) if inner else config.get(key, default)
        assert said == default or (not said and key in WRITTEN), f"{key}: {said!r}"


WRITTEN = {"sliding_window", "num_key_value_heads", "head_dim"}
"""Keys whose default the class has changed to none, among versions that this reads."""


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_what_cannot_be_simulated_is_named_with_its_nearest_family(model_type: str) -> None:
    missing, near = REFUSED[model_type]
    assert near in {family.name for family in FAMILIES}
    with pytest.raises(
        ModelError, match=rf"cannot be simulated yet, as it has .*{missing}"
    ) as said:
        from_hf(default(model_type))
    assert f"the nearest family is {near} (" in str(said.value)


def default(model_type: str) -> dict[str, Any]:
    """The default config of a type, or its type alone where the class refuses its own defaults."""
    try:
        return built(model_type)
    except Exception:
        return {"model_type": model_type}


def refused(model_type: str) -> str:
    """The sentence of a type's default config; empty for one that is simulated."""
    try:
        from_hf({**default(model_type), "model_type": model_type, "architectures": None})
    except ModelError as error:
        return str(error)
    return ""


def test_no_language_model_is_only_unknown() -> None:
    """Each is simulated, or lacks something that has a name, or reads more than text."""
    auto = import_module("transformers.models.auto.modeling_auto")
    types = {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }  # fmt: skip
    unknown = [name for name in sorted(types) if "is unknown" in refused(name)]
    assert unknown == []


@pytest.mark.parametrize(
    ("model_type", "sentence"),
    [
        ("idefics", "is no language model of a known family, as it reads images (vision_con"),
        ("molmo2", "text_config: the model_type 'molmo2_text' is unknown; docs/models.md lists"),
        ("lfm2_vl", "text_config: 'lfm2' cannot be simulated yet, as it has convolutions in its l"),
        ("convnext", "as it reads images (image_size = 224)"),
        ("timesfm", "as it reads time series ("),
        ("gemma4_assistant", "as it has attention to the keys and values of another model; the"),
        ("zaya", "as it has attention in a compressed space, with convolutions; the nearest"),
    ],
)  # fmt: skip
def test_what_is_no_language_model_says_what_it_reads(model_type: str, sentence: str) -> None:
    assert sentence in refused(model_type)


@pytest.mark.thorough
def test_a_language_model_beside_encoders_is_read_or_named() -> None:
    """Of the types that read images or sound; a part that is left out is noted by its key."""
    auto = import_module("transformers.models.auto.modeling_auto")
    read, vague = [], []
    for model_type in auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES:
        config = default(model_type) | {"model_type": model_type, "architectures": None}
        if not isinstance(config.get("text_config"), dict):
            continue
        said = refused(model_type)
        if said:
            vague += [said] * ("is unknown" in said and "text_config" not in said)
            continue
        read.append(model_type)
        parts = [k for k, v in config.items() if k.endswith("_config") and isinstance(v, dict)]
        notes = " ".join(hf_notes(config))
        vague += [f"{model_type}: {key}" for key in parts[1:] if f"({key})" not in notes
                  and key != "text_config"]  # fmt: skip
    assert not vague
    assert len(read) > 50
