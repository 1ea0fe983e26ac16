"""The tables that ship: MaxText's defaults, its models, and the keys that change no step."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any


@cache
def defaults() -> Mapping[str, Any]:
    """Return each key that is read, and its default."""
    return {key: value for part in _toml("defaults").values() for key, value in part.items()}


@cache
def models() -> Mapping[str, Mapping[str, Any]]:
    """Return the keys that each `model_name` sets."""
    return _toml("models")


@cache
def patterns() -> tuple[str, ...]:
    """Return the keys that change no step; `*` stands for any letters."""
    return tuple(key for part in _toml("ignored").values() for key in part)


def _toml(name: str) -> Mapping[str, Any]:
    return tomllib.loads((resources.files("tpusim.maxtext") / f"{name}.toml").read_text("utf-8"))
