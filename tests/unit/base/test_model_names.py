"""Names of models: what is misspelt, and what is another model of a family."""

from random import Random

import pytest

from tpusim import models
from tpusim.base import ModelError
from tpusim.base.model_names import misspelt, nearest_model

KNOWN = models.names()
DOORS = ("`tpusim models` lists the", "hf = ...", "from_maxtext", "Transformer")


def said(name: str) -> str:
    with pytest.raises(ModelError) as error:
        models.load(name)
    assert len(str(error.value)) < 400
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("qwen3-8B", ["qwen3-8b"]),
        ("lama2-7b", ["llama2-7b"]),
        ("Llama-2-7B", ["llama2-7b"]),
        ("llama-3.1-405b", ["llama3.1-405b"]),
        ("mixtrall-8x7b", ["mixtral-8x7b"]),
        ("deepseekv3", ["deepseek-v3"]),
        ("qwen2.5-1b", []),
        ("qwen2.5-vl-7b", []),
        ("qwen3_5", []),
        ("gemma4-12b", []),
        ("llama5-8b", []),
        ("7b", []),
        ("", []),
    ],
)
def test_a_misspelling_has_the_same_numbers(name: str, meant: list[str]) -> None:
    assert misspelt(name, KNOWN) == meant


@pytest.mark.parametrize("name", ["gemma4-12b", "qwen3_5", "llama5-8b", "gpt-4", "kimi-k3", "zzz"])
def test_a_model_that_is_not_there_gets_the_other_doors(name: str) -> None:
    text = said(name)
    assert "did you mean" not in text
    assert all(door in text for door in DOORS)


def test_the_family_of_another_size_is_named() -> None:
    assert "of gemma4 there are gemma4-26b, gemma4-31b, gemma4-e2b, gemma4-e4b; " in said(
        "gemma4-12b"
    )
    assert "of llama" not in said("llama5-8b")


def test_every_published_name_is_found_in_another_spelling() -> None:
    """In capitals, without separators, and with one letter doubled."""
    random = Random(0)
    for name in KNOWN:
        at = random.choice([i for i, letter in enumerate(name) if letter.isalpha()])
        for other in (name.upper(), f"{name[:at]}{name[at]}{name[at:]}"):
            if other not in KNOWN:
                assert name in misspelt(other, KNOWN), other


def test_another_size_of_every_published_name_is_no_misspelling() -> None:
    for name in KNOWN:
        assert name not in misspelt(f"{name}-977b", KNOWN)
        assert nearest_model(f"{name}-977b", KNOWN, "doors").endswith("doors")
