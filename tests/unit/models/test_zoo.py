"""The zoo: each model has the parameters that its source gives, to the last digit where it does."""

import pytest

from tpusim import models
from tpusim.base import ModelError

BILLIONS = {
    "bert-480b": 481.807,
    "maxtext-22b": 21.945,
    "maxtext-32b": 32.548,
    "maxtext-128b": 129.186,
    "maxtext-512b": 516.072,
    "maxtext-1024b": 1031.469,
    "gpt3-175b": 174.567,
    "llama2-7b": 6.738,
    "llama2-70b": 68.977,
    "llama2-13b": 13.016,
    "llama3-8b": 8.030,
    "llama3-70b": 70.554,
    "mistral-7b": 7.242,
    "mixtral-8x7b": 46.703,
    "mixtral-8x22b": 140.630,
    "palm-8b": 8.63,
    "palm-62b": 62.50,
    "palm-540b": 540.35,
    "qwen3-30b-a3b": 30.532,
    "qwen3-235b-a22b": 235.094,
    "deepseek-v2-lite": 15.706,
    "deepseek-v2": 235.741,
    "deepseek-v3": 671.026,
    "gpt-oss-20b": 20.915,
    "gpt-oss-120b": 116.829,
    "llama3.1-8b": 8.030,
    "llama3.1-70b": 70.554,
    "llama3.1-405b": 405.853,
    "fuji-7b-v2": 6.610,
    "fuji-70b-v2": 68.989,
    "honeycrisp-3b": 2.738,
    "marin-llama-1.2b": 1.431,
    "marin-llama-400m": 0.358,
    "marin-llama-130m": 0.154,
    "gemma2-9b": 9.242,
    "gemma2-27b": 27.228,
    "gemma3-12b": 11.766,
    "gemma3-4b": 3.880,
    "gemma3-27b": 27.009,
    "gemma4-e2b": 4.647,  # with 2.349 of the layers' own embeddings
    "gemma4-e4b": 7.518,
    "gemma4-26b": 25.233,
    "gemma4-31b": 30.697,
    "qwen3-8b": 8.191,
    "qwen3-14b": 14.768,
    "qwen3-32b": 32.762,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.721,
    "qwen3-4b": 4.022,
    "qwen3-480b-a35b": 480.155,
    "qwen2.5-0.5b": 0.494,
    "qwen2.5-1.5b": 1.544,
    "qwen2.5-3b": 3.086,
    "qwen2.5-7b": 7.616,
    "qwen2.5-14b": 14.770,
    "qwen2.5-32b": 32.764,
    "qwen2.5-72b": 72.706,
    "gemma-2b": 2.506,
    "gemma-7b": 8.538,
    "gemma2-2b": 2.614,
    "llama3.2-1b": 1.236,
    "llama3.2-3b": 3.213,
    "llama3.3-70b": 70.554,
    "olmo3-7b": 7.298,
    "olmo3-32b": 32.234,
    "kimi-k2": 1026.4,
    "ax-k1": 519.0,
    "mistral-small-4": 119.0,
    "sarvam-105b": 106.0,
    "glm-4.7-flash": 29.94,
    "solar-open-100b": 102.6,
    "hy3": 295.0,
    "mimo-7b": 7.62,
    "mellum2-12b": 12.15,
    "qwen3-next-80b-a3b": 79.674,  # 81.3 with the layer that predicts further tokens
    "qwen3.5-397b-a17b": 396.35,  # 397 with the encoder of images
    "kimi-linear-48b-a3b": 49.12,
    "ling-2.6-1t": 1012.0,
    "mimo-v2-flash": 309.0,
    "mimo-v2.5-pro": 1021.2,
    "qwen-7b": 7.721,
    "gpt-j-6b": 6.051,
    "deepseek-r1-distill-qwen-1.5b": 1.777,
    "lamda-137b": 137.7,
    "lingvo-128b": 137.702,
    "lingvo-41b": 43.88,
}
"""Published with the runs or the weights (Llama, Qwen3: the number of elements of the checkpoints;
Gemma 2: arXiv:2408.00118, Table 2; PaLM: arXiv:2204.02311, Table 1; gpt-oss: with the sinks
that are left out here)."""

ACTIVE_BILLIONS = {
    "mixtral-8x7b": (12.9, 0.01),
    "mixtral-8x22b": (39.1, 0.01),
    "qwen3-30b-a3b": (3.3, 0.02),
    "qwen3-235b-a22b": (22, 0.02),
    "deepseek-v2": (21, 0.03),
    "deepseek-v3": (37, 0.02),
    "qwen3-480b-a35b": (35, 0.02),
    "kimi-k2": (32.6, 0.02),
    "ax-k1": (33, 0.02),
    "solar-open-100b": (12, 0.02),
    "hy3": (21, 0.02),
    "mellum2-12b": (2.5, 0.03),
    "mistral-small-4": (6.5, 0.03),
    "qwen3.5-397b-a17b": (17, 0.03),
    "ling-2.6-1t": (63, 0.02),
    "mimo-v2-flash": (15, 0.03),
    "mimo-v2.5-pro": (42, 0.02),
}
"""Published as what a token passes, to the digits given, with the share by which ours may differ:
Mixtral (mistral.ai, "Mixtral of experts" and "Cheaper, better, faster, stronger"), Qwen3
(arXiv:2505.09388, Table 2), DeepSeek (arXiv:2405.04434 and arXiv:2412.19437, abstracts)."""


def test_every_model_of_the_zoo_is_counted() -> None:
    assert set(models.names(models.Transformer)) == set(BILLIONS)


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_parameters_are_those_published(name: str, billions: float) -> None:
    assert models.load(name).parameter_count == pytest.approx(billions * 1e9, rel=1e-3)


@pytest.mark.parametrize(("name", "given"), ACTIVE_BILLIONS.items())
def test_parameters_that_a_token_passes_are_those_published(
    name: str, given: tuple[float, float]
) -> None:
    billions, near = given
    assert models.load(name).active_parameter_count == pytest.approx(billions * 1e9, rel=near)


def test_gpt_osss_active_parameters_leave_the_lookup_out() -> None:
    """3.61 and 5.13 billion (arXiv:2508.10925, Table 1): with one of the two tables only."""
    for name, billions in (("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)):
        model = models.load(name)
        passed = model.active_parameter_count - model.vocab * model.embed
        assert passed == pytest.approx(billions * 1e9, rel=2e-3)


def test_deepseek_v3s_token_passes_36_6_billion_without_the_lookup() -> None:
    """Of its published weights 36.6 B are active, the output head of 0.9 B included."""
    model = models.load("deepseek-v3")
    passed = model.active_parameter_count - model.vocab * model.embed
    assert passed == pytest.approx(36.6e9, rel=1e-3)


def test_palm_to_the_last_weight() -> None:
    """118 layers of one norm, queries, a key, a value and a result, and three MLP matrices."""
    embed, heads, head_dim, mlp = 18432, 48, 256, 73728
    layer = 2 * embed * heads * head_dim + 2 * embed * head_dim + 3 * embed * mlp + embed
    assert models.load("palm-540b").parameter_count == 118 * layer + embed + 256_000 * embed


def test_deepseek_v3_to_the_last_weight() -> None:
    """3 dense layers and 58 of 256 experts, one shared expert and a router; see `test_latent`."""
    embed, mlp, expert = 7168, 18432, 3 * 7168 * 2048
    dense, routed = 3 * embed * mlp, 257 * expert + 256 * embed
    layers = 61 * (187_107_328 + 2 * embed) + 3 * dense + 58 * routed
    tables = 2 * 129_280 * embed + embed
    assert models.load("deepseek-v3").parameter_count == layers + tables == 671_026_404_352


def test_the_flagship_is_counted_to_the_last_weight() -> None:
    assert models.load("bert-480b").parameter_count == 481_806_958_592


def test_gemma_2_is_counted_to_the_last_weight() -> None:
    """Embedding and the rest, arXiv:2408.00118, Table 2."""
    assert models.load("gemma2-9b").parameter_count == 917_962_752 + 8_324_201_984
    assert models.load("gemma2-27b").parameter_count == 1_180_237_824 + 26_047_480_320


def test_one_by_hand() -> None:
    """Llama 2 7B: two tables, 32 layers of four square and three MLP matrices, 65 norms."""
    embed, mlp, vocab, layers = 4096, 11008, 32000, 32
    layer = 4 * embed * embed + 3 * embed * mlp + 2 * embed
    assert models.load("llama2-7b").parameter_count == (2 * vocab * embed + layers * layer + embed)


@pytest.mark.parametrize("name", models.names())
def test_every_model_names_its_source(name: str) -> None:
    assert len(models.source(name)) > 20
    assert models.load(name).name == name


def test_a_published_transformer_is_changed_by_flat_keys() -> None:
    changed = models.Transformer.published("mixtral-8x7b", experts_per_token=1)
    assert changed == models.load("mixtral-8x7b").replace(experts_per_token=1)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bert", "no model 'bert' in the zoo; did you mean 'bert-base' or 'bert-large'"),
        ("llama-3-70b", "did you mean 'llama3-70b'"),
        ("zzz", "no model 'zzz' in the zoo; `tpusim models` lists the "),
        (3, "no model 3 in the zoo"),
    ],
)
def test_an_unknown_name_offers_the_nearest(name: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        models.load(name)
