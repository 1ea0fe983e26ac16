"""Defaults that a run's framework gives where its row does not."""

import pytest

from tpusim.validation import MeasuredRun
from tpusim.validation.frameworks import FRAMEWORKS, framework_of, optimizer_of
from tpusim.validation.run_dtypes import dtype_notes, dtypes_of
from tpusim.validation.run_setup import set_up


def run(**columns: str) -> MeasuredRun:
    return MeasuredRun(
        id="a", chip="v6e", topology="4x4", n_layers=2, d_model=64, n_heads=8, d_ff=256, vocab=512,
        seq_len=16, global_batch=32, mesh="fsdp=16", step_s=1.0, **columns,
    )  # fmt: skip


def test_torchprime_trains_in_bf16_with_adafactor_unless_the_row_says_otherwise() -> None:
    bare = run(framework="torchprime")
    assert dtypes_of(bare)["param_dtype"] == "bf16"
    assert optimizer_of(bare)[0] == "adafactor"
    assert any("as torchprime has them" in note for note in dtype_notes(bare))
    told = run(framework="torchprime", optimizer="adamw", notes="fp32 weights")
    assert dtypes_of(told)["param_dtype"] == "f32"
    assert optimizer_of(told) == ("adam", "")


@pytest.mark.parametrize("name", ["maxtext", "axlearn", "lingvo", "levanter"])
def test_the_others_keep_f32_weights_and_moments(name: str) -> None:
    found = dtypes_of(run(framework=name))
    assert set(found.values()) == {"f32"}


def test_optimizers_that_keep_norms_are_those_they_are_made_of() -> None:
    for written, name in (("muonh", "muon"), ("adamh", "adam"), ("cautious adam", "adam")):
        assert optimizer_of(run(framework="levanter", optimizer=written)) == (name, "")


def test_an_unknown_framework_is_plain_jax_and_its_optimizer_adam() -> None:
    bare = run(framework="mine")
    assert framework_of(bare).style == "plain"
    assert optimizer_of(bare) == ("adam", "the optimizer (not given) is taken as adam")
    assert "mine" not in FRAMEWORKS


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_only_code_with_its_own_psum_adds_up_gradients_before_they_are_reduced(name: str) -> None:
    notes = "32 hosts, 2 accumulation steps (microbatch 1 a data group)"
    expected = "per-step" if name == "jax-shard_map" else "per-microbatch"
    plan = set_up(run(framework=name, notes=notes)).plan
    assert (plan.microbatches, plan.gradient_reduction) == (2, expected)


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_only_torch_xlas_wrapped_modules_are_no_scan(name: str) -> None:
    assert set_up(run(framework=name)).plan.scan_layers == (name != "torch_xla-fsdp")
    assert not set_up(run(framework=name, notes="layers not scanned")).plan.scan_layers


def test_maxtext_left_layers_with_embeddings_of_their_own_to_the_compiler() -> None:
    """Until the middle of 2026; without a checkpoint and without a scan."""
    for date, expected in (("2026-08-07", ("none", False)), ("2026-09-01", ("full", True))):
        given = run(
            framework="maxtext", date=date, remat="full", notes="per-layer embeddings (16 x 512)"
        )
        plan = set_up(given).plan
        assert (plan.remat.policy, plan.scan_layers) == expected


@pytest.mark.parametrize(
    ("framework", "dtype", "gathers"),
    [
        ("maxtext", "int8", "int8"), ("paxml", "int8", "int8"),
        ("maxtext", "fp8", ""), ("maxtext", "bf16", ""), ("levanter", "int8", ""),
    ],
)  # fmt: skip
def test_int8_of_whole_arrays_is_quantised_before_it_is_gathered(
    framework: str, dtype: str, gathers: str
) -> None:
    """AQT's, that is; kernels that Qwix quantises gather bf16."""
    one = run(framework=framework, dtype=dtype)
    assert dtypes_of(one).get("gather_dtype", "") == gathers
    assert any("before they are gathered" in note for note in dtype_notes(one)) == bool(gathers)


@pytest.mark.parametrize(
    ("columns", "fused"),
    [
        ({"framework": "maxtext", "model": "GPT3-175B"}, True),
        ({"framework": "paxml", "model": "GPT-3 175B"}, True),
        ({"framework": "maxtext", "model": "GPT3-175B", "notes": "remat full, tff_quant"}, False),
        ({"framework": "maxtext", "model": "Llama3-8B"}, False),
        ({"framework": "maxtext", "model": "Llama3-8B", "notes": "fused_qkv"}, True),
        ({"framework": "levanter", "model": "GPT3-175B"}, False),
    ],
)
def test_gpt3_has_one_matrix_for_queries_keys_and_values_where_its_code_does(
    columns: dict[str, str], fused: bool
) -> None:
    setup = set_up(run(**columns))
    assert setup.model.attention.fused_qkv is fused
    told = any("one matrix" in note for note in setup.notes)
    assert told == (fused and "notes" not in columns)


@pytest.mark.parametrize(
    ("framework", "model", "share"),
    [
        ("torch_xla-fsdp", "HF-GPT2-2B", 0.1),
        ("torch_xla-fsdp", "Llama2-7B", 0.0),
        ("maxtext", "HF-GPT2-2B", 0.0),
    ],
)
def test_hugging_faces_gpt2_drops_a_tenth(framework: str, model: str, share: float) -> None:
    assert set_up(run(framework=framework, model=model)).model.dropout == share
