"""The zoo: each model has the parameters that its source gives, to the last digit where it does."""

import pytest

from tpusim import models
from tpusim.errors import ModelError

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
    "qwen3-8b": 8.191,
    "qwen3-14b": 14.768,
    "qwen3-32b": 32.762,
}
"""Published with the runs or the weights (Llama, Qwen3: the number of elements of the checkpoints;
Gemma 2: arXiv:2408.00118, Table 2)."""


def test_every_model_of_the_zoo_is_counted() -> None:
    assert set(models.names()) == set(BILLIONS)


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_parameters_are_those_published(name: str, billions: float) -> None:
    assert models.load(name).parameter_count == pytest.approx(billions * 1e9, rel=1e-3)


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


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bert", "no model 'bert' in the zoo; did you mean 'bert-480b'"),
        ("llama3-70b", "did you mean 'llama3.1-70b'"),
        ("zzz", "valid are bert-480b, "),
        (3, "no model 3 in the zoo"),
    ],
)
def test_an_unknown_name_offers_the_nearest(name: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        models.load(name)
