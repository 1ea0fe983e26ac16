"""Published models by name, read from `zoo.toml`."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from tpusim.base.errors import ModelError, nearest
from tpusim.models.transformer import Transformer


def load(name: str) -> Transformer:
    """Return the model of this name; raise ModelError with the nearest names if there is none.

    >>> load("bert-480b").parameter_count
    481806958592
    """
    return Transformer(name=name, **dimensions(name))


def dimensions(name: str) -> dict[str, Any]:
    """Return the dimensions of a model as its source gives them; the rest follows from them."""
    return {key: value for key, value in _entry(name).items() if key != "source"}


def names() -> tuple[str, ...]:
    """Return the names that `load` knows, in the order of the file."""
    return tuple(_entries())


def source(name: str) -> str:
    """Return the source of a model's dimensions: paper and table, or repository and file."""
    return str(_entry(name)["source"])


def _entry(name: str) -> Mapping[str, Any]:
    if name not in names():
        raise ModelError(f"no model {name!r} in the zoo; {nearest(str(name), names())}")
    return _entries()[name]


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    text = (resources.files("tpusim.models") / "zoo.toml").read_text("utf-8")
    return tomllib.loads(text)
