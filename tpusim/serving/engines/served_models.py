"""Models by the names that they have on Hugging Face, as the commands of servers name them."""

import re
from typing import Any

from tpusim.base.errors import ModelError
from tpusim.models import load, names
from tpusim.models.zoo import unknown

_KINDS = re.compile(
    r"-(instruct|it|chat|hf|base|rl|fp8|dynamic|thinking|int8|w8a8|bf16|awq|gptq|v0\.\d)(?=-|$)"
)
"""Parts of a name that say how a model was trained further, or is stored."""

_DATES = re.compile(r"-\d{4}(?=-|$)")

_VERSIONS = re.compile(r"^([a-z]+)-(\d+(?:\.\d+)?)(?=-)")
"""A family and its version: `llama-3.1-`."""

_ALIASES = {
    "qwen3-coder-480b-a35b": "qwen3-480b-a35b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "gpt-j": "gpt-j-6b",
    "sdxl": "stable-diffusion-xl-base-1.0",
    "meta-llama-3-8b": "llama3-8b",
}


def served_name(model: str) -> str:
    """Return the name in the zoo of a model on Hugging Face.

    >>> served_name("meta-llama/Llama-3.1-8B-Instruct"), served_name("PaLM 540B")
    ('llama3.1-8b', 'palm-540b')

    Raise ModelError with the nearest names if there is none.
    """
    known = names()
    name = model.rsplit("/", 1)[-1].lower().replace(" ", "-").replace("_", "-")
    bare = _DATES.sub("", _KINDS.sub("", name))
    for each in (name, bare, _VERSIONS.sub(r"\1\2", bare), _without_family_dash(bare)):
        if (found := _ALIASES.get(each, each)) in known:
            return found
    raise ModelError(unknown(bare))


def served_model(model: str, **changes: Any) -> Any:
    """Return the model of a name on Hugging Face, an `Architecture`, with some keys changed.

    Raise ModelError with the nearest names if there is none.
    """
    return load(served_name(model), **changes)


def _without_family_dash(name: str) -> str:
    """Return a name without the dash between family and version: `gpt-oss2-` stays as it is."""
    return re.sub(r"^([a-z]+)-?(\d)", r"\1\2", name)
