"""Every key of MaxText's base configuration is read, noted, refused, or ignored for a reason."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from extent import sample, thorough
from inputs import RULES, defaults, ignored, models, noted, refused, unsimulated

import tpusim as ts
from tpusim.maxtext import from_maxtext
from tpusim.runfile import SimulationRun

BASE: list[str] = tomllib.loads((Path(__file__).parent / "base_keys.toml").read_text("utf-8"))[
    "keys"
]
SMALL = {
    "base_num_decoder_layers": 8, "base_emb_dim": 512, "base_mlp_dim": 2048, "head_dim": 128,
    "base_num_query_heads": 4, "base_num_kv_heads": 4, "vocab_size": 1024,
    "per_device_batch_size": 2, "max_target_length": 256,
}  # fmt: skip
EXPERTS = {"decoder_block": "mixtral", "num_experts": 8, "num_experts_per_tok": 2}
LATENT = {**EXPERTS, "decoder_block": "deepseek", "attention_type": "mla", "q_lora_rank": 64}
WINDOWS = {"decoder_block": "gemma4", "sliding_window_size": 64, "use_post_attn_norm": True,
           "use_post_ffw_norm": True}  # fmt: skip
SMALL_GEMMA = {
    "decoder_block": "gemma4_small", "sliding_window_size": 64, "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 1024, "logits_via_embedding": True,
}  # fmt: skip
GPT_OSS = {**EXPERTS, "decoder_block": "gpt_oss", "sliding_window_size": 64,
           "inhomogeneous_layer_cycle_interval": 2, "attention_bias": True}  # fmt: skip
CONTEXTS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "qwen2": {"decoder_block": "qwen2"},
    "dropout": {"dropout_rate": 0.1},
    "experts": EXPERTS,
    "slots": {**EXPERTS, "sparse_matmul": False, "capacity_factor": 1.0},
    "many experts": {**EXPERTS, "ici_expert_parallelism": 4, "remat_policy": "custom"},
    "shared": {**LATENT, "shared_experts": 1},
    "latent": {**LATENT, "remat_policy": "custom"},
    "windows": WINDOWS,
    "small": SMALL_GEMMA,
    "gpt-oss": GPT_OSS,
    "quantization": {"quantization": "int8"},
    "dot": {"attention": "dot_product"},
    "custom": {"remat_policy": "custom"},
    "custom, one matrix": {"remat_policy": "custom", "mlp_activations": ["gelu"]},
    "custom, fused": {"remat_policy": "custom", "fused_qkv": True, "mlpwi": "device"},
    "pipeline": {"ici_pipeline_parallelism": 2, "ici_fsdp_parallelism": -1},
    "context": {"ici_context_parallelism": 2},
    "slices": {"num_slices": 2, "dcn_data_parallelism": -1},
    "data alone": {"ici_data_parallelism": 16, "ici_fsdp_parallelism": 1},
    "topology": {"compile_topology": "v5e-16"},
    "two slices": {"compile_topology_num_slices": 2, "ici_data_parallelism": 16,
                   "ici_fsdp_parallelism": 1},
    "lora": {"lora.enable_lora": True, "lora.lora_rank": 8},
    "rules": {RULES: [["mlp", ["fsdp"]]]},
    "model": {"model_name": "gemma-2b"},
    "model, override": {"model_name": "gemma-2b", "base_num_decoder_layers": 4,
                       "override_model_config": True},
}  # fmt: skip
OTHERS = {
    bool: (True, False), int: (2, 4, 0, 64, 256, 1024, 4096), float: (0.5, 0.1, 2.0, 8.0),
    str: (".*out", "device", "offload", "float32", "bfloat16", "int8", "minimal", "sgd",
          "dot_product", "qwen3", "local_sliding", "ring", "llama2-7b", "gpu", "v5e-64"),
    list: (["relu"], ["gelu", "linear"]),
}  # fmt: skip
KINDS = ("data", "fsdp", "tensor", "pipeline", "expert", "context", "sequence")


FOLDER = TemporaryDirectory()
FILE = Path(FOLDER.name) / "small.yml"
"""The small model as a file, whose keys are not each tried for whether they matter."""


def run(**keys: Any) -> SimulationRun:
    FILE.write_text("".join(f"{key}: {value}\n" for key, value in SMALL.items()), "utf-8")
    pod = None if "compile_topology" in keys else "v5e-16"
    return from_maxtext(None if "model_name" in keys else FILE, keys, pod=pod)


def test_each_key_has_one_treatment() -> None:
    """A key that is read may have a note besides, on what of it is not modelled."""
    assert len(BASE) == len(set(BASE)) == 786
    treated = {*defaults(), RULES}, {*noted()} - {*defaults()}, {*refused()}, {*ignored()}
    for key in BASE:
        assert sum(key in kind for kind in treated) == 1, key
    for kind in treated:
        for other in treated:
            assert kind is other or not kind & other
    assert not {key for kind in treated for key in kind if "*" in key}
    assert all(len(why) > 15 for why in ignored().values())


@pytest.mark.parametrize("key", sample(defaults(), 48))
def test_a_key_that_is_read_changes_a_run(key: str) -> None:
    """In some context another value gives another run, or is refused by what reads it."""
    near = sorted(CONTEXTS, key=lambda name: not any(word in key for word in name.split(", ")))
    assert any(_matters(key, name) for name in near)


@cache
def _in_context(name: str) -> SimulationRun:
    return run(**CONTEXTS[name])


def _matters(key: str, name: str) -> bool:
    known, context = _in_context(name), CONTEXTS[name]
    for other in OTHERS[type(defaults()[key])]:
        try:
            found = run(**{**context, key: other})
        except ts.TpusimError as error:
            if key in str(error):
                return True
            continue
        if (found.model, found.plan, found.pod) != (known.model, known.plan, known.pod):
            return True
        if any(key in note and not note.startswith("changes nothing") for note in found.notes):
            return True
    return False


NEEDED = {
    "num_experts": EXPERTS,
    "quantization": {"quantization": "int8"},
    "lora.enable_lora": CONTEXTS["lora"],
}


def _asking(key: str) -> dict[str, Any]:
    """Another value of a key of a feature, and what the feature needs."""
    feature = {**noted(), **refused()}[key]
    default = feature.keys[key]
    other: Any = feature.only_at
    if other is None:
        other = not default if isinstance(default, bool) else {
            int: 3, float: 0.25, str: "other", list: ["decoder"], dict: {"model_name": "gemma-2b"},
        }[type(default)]  # fmt: skip
    needed: dict[str, Any] = {}
    for need in feature.needs[0].split(" & ") if feature.needs else ():
        name, equals, value = need.partition("=")
        if equals:
            needed[name] = {"True": True, "False": False}.get(value, value)
        else:
            needed |= NEEDED.get(
                name, _asking(name) if name in {**noted(), **refused()} else {name: 2}
            )
    blocks = {"attention_type=mla": LATENT, "decoder_block=gemma4_small": SMALL_GEMMA}
    return {**blocks.get("".join(feature.needs), {}), **needed, key: other}


@pytest.mark.parametrize("key", refused())
def test_a_key_that_is_refused_says_what_to_write(key: str) -> None:
    with pytest.raises(ts.TpusimError) as found:
        run(**_asking(key))
    text = str(found.value)
    assert "cannot be simulated; " in text
    assert len(text) < 400
    default = refused()[key].keys[key]
    assert run(**{key: default}).plan == _in_context("plain").plan


@pytest.mark.parametrize("key", noted())
def test_a_key_that_is_noted_says_so(key: str) -> None:
    notes = run(**_asking(key)).notes
    assert any(note.startswith("not modelled: ") and f"{key} = " in note for note in notes)


@pytest.mark.parametrize("name", [*models(), *unsimulated("models")])
def test_a_model_is_simulated_or_its_missing_feature_is_named(name: str) -> None:
    refuses = name in unsimulated("models") or any(key in refused() for key in models()[name])
    if not refuses:
        assert from_maxtext(None, {"model_name": name}, pod="v5p-128").model.name == name
        return
    with pytest.raises(ts.TpusimError, match="cannot be simulated") as found:
        from_maxtext(None, {"model_name": name}, pod="v5p-128")
    assert "did you mean" not in str(found.value)


def _own_keys(name: str) -> dict[str, Any]:
    """The keys of a model; without towers and schedules that are refused."""
    return {key: value for key, value in models()[name].items() if key not in refused()}


@pytest.mark.parametrize("name", sample(models(), 4))
def test_a_name_means_nothing_but_its_keys(name: str, tmp_path: Path) -> None:
    """Neither `model_name`, `run_name` nor a file's name change a number."""
    keys = _own_keys(name)
    rest = {key: models()[name][key] for key in models()[name] if key in refused()}
    off = {key: refused()[key].keys[key] for key in rest}
    named = {"model_name": name, "override_model_config": True, **off}
    known = from_maxtext(None, named, pod="v5p-128")
    file = tmp_path / "gemma4-e2b.yml"
    file.write_text("".join(f"{key}: {_yaml(value)}\n" for key, value in keys.items()), "utf-8")
    for run_name in ("", "gemma4-e2b"):
        by_file = from_maxtext(file, {"run_name": run_name}, pod="v5p-128")
        assert by_file.plan == known.plan
        assert by_file.model.flat() | {"name": name} == known.model.flat()


def test_gemma_4_e2b_is_the_same_model_by_its_keys() -> None:
    """Its pattern of five layers hung on the name: 0.3688 s by its file, 0.3829 s by its name."""
    by_keys = from_maxtext(None, _own_keys("gemma4-e2b"), pod="v5e-256").model
    assert by_keys.flat() | {"name": ""} == ts.models.load("gemma4-e2b").flat() | {"name": ""}


def _yaml(value: Any) -> str:
    return str(value).replace("True", "true").replace("False", "false")


JOBS: list[tuple[dict[str, Any], str]] = [
    ({"student_overrides": {"model_name": "llama3.1-8b"}}, "distillation, which trains a student"),
    ({"teacher_overrides": {"model_name": "llama3.1-8b"}}, "distillation, which trains a student"),
    ({"rl": {"num_generations": 2}, "learning_rate": 3e-6}, "reinforcement learning, which samp"),
    ({"use_dpo": True, "dpo": {"algo": "dpo"}}, "preference optimisation, which runs two models"),
    ({"use_sft": True, "use_multimodal": True}, "for the decoder alone write use_multimodal=false"),
    ({"return_log_prob": True}, "decoding cannot be simulated"),
    ({"lora": {"enable_lora": True, "lora_rank": 16, "lora_weight_qtype": "nf4"}}, "QLoRA"),
    ({"my_teacher": {"model_name": "llama2-7b"}, "steps": 3}, "my_teacher holds keys of its own"),
    ({"hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 9}, "are none of MaxText's, such"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "sentence"), JOBS)
def test_what_trains_otherwise_is_refused(
    keys: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.yml"
    file.write_text("".join(f"{key}: {_yaml(value)}\n" for key, value in keys.items()), "utf-8")
    with pytest.raises(ts.TpusimError, match=sentence):
        from_maxtext(file, pod="v5e-16")


def test_supervised_fine_tuning_is_the_step_of_pre_training() -> None:
    sft = {"use_sft": True, "sft_train_on_completion_only": True, "packing": True,
           "use_tunix_gradient_accumulation": True}  # fmt: skip
    assert run(**sft).plan == run().plan


def test_text_in_a_file_is_the_value_that_it_says(tmp_path: Path) -> None:
    file = tmp_path / "quoted.yml"
    file.write_text(
        'use_multimodal: "false"\nscan_layers: "False"\nmtp_num_layers: "0"\n'
        'trainable_position_size: "-1"\nz_loss_multiplier: "0.0"\n',
        "utf-8",
    )
    known, found = from_maxtext(None, pod="v5e-16"), from_maxtext(file, pod="v5e-16")
    assert found.model == known.model
    assert found.plan == known.plan.replace(scan_layers=False)
    assert found.notes == ()


WRONG: tuple[Any, ...] = (
    "some text", "", "false", "1e400", "nan", None, True, False, -1, 0, 1, 3, 10**30, -(10**30),
    0.5, 1e308, float("nan"), float("inf"), [], ["a"], [1], [[1]], [None], {}, {"a": 1},
    {"a": {"b": [1]}}, "x" * 5000, "\x00", "a\nb", ("a",),
)  # fmt: skip


def _cases(every: int) -> Iterator[tuple[str, Any]]:
    keys = dict.fromkeys((*BASE, *defaults(), *noted(), *refused(), *ignored(), RULES))
    cases = ((key, wrong) for key in keys for wrong in WRONG)
    yield from (case for at, case in enumerate(cases) if at % every == 0)


@pytest.mark.parametrize("every", [101, thorough(1)])
def test_a_wrong_value_is_one_sentence(every: int) -> None:
    """Of every key, those of the base configuration among them: a run, or one clear sentence."""
    for key, wrong in _cases(every):
        try:
            run(**{key: wrong})
        except ts.TpusimError as error:
            text = str(error)
            assert "\n" not in text, key
            assert len(text) < 400, text
