"""The tables that ship: defaults and models of MaxText, and the treatment of each of its keys.

A key is read (`defaults.toml`), noted or refused (`noted.toml`, `refused.toml`; see `features.py`),
or ignored for a reason (`ignored.toml`).
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from tpusim.base.errors import nearest
from tpusim.base.shipped_table import shipped_table
from tpusim.maxtext.features import noted, refused

RULES = "logical_axis_rules"
LIKE = "like"
"""Key of a model in `models.toml`: the model before it that it has the keys of."""


@cache
def shipped(name: str) -> Mapping[str, Any]:
    """Return one of the tables."""
    return shipped_table("maxtext", f"{name}.toml")


@cache
def defaults() -> Mapping[str, Any]:
    """Return each key that is read, and its default."""
    return {key: value for part in shipped("defaults").values() for key, value in part.items()}


@cache
def typed_defaults() -> Mapping[str, Any]:
    """Return the keys that are read, noted or refused, and their defaults."""
    features = {**noted(), **refused()}
    return {key: feature.keys[key] for key, feature in features.items()} | dict(defaults())


@cache
def models() -> Mapping[str, Mapping[str, Any]]:
    """Return the keys that each `model_name` sets."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, own in shipped("models").items():
        of_another = found[own[LIKE]] if LIKE in own else {}
        found[name] = {**of_another, **{key: own[key] for key in own if key != LIKE}}
    return found


def decoder_blocks() -> Mapping[str, dict[str, Any]]:
    """Return what distinguishes the layers of each `decoder_block` that can be simulated."""
    return shipped("decoder_blocks")


def unsimulated(part: str) -> Mapping[str, str]:
    """Return what is `renamed`, by `other_names`, or one of the refused `decoder_blocks`."""
    found: Mapping[str, str] = shipped("unsimulated")[part]
    return found


def words(section: str) -> Mapping[str, str]:
    """Return the words that a key may have, and ours for each."""
    found: Mapping[str, str] = shipped("words")[section]
    return found


@cache
def ignored() -> Mapping[str, str]:
    """Return each key that changes no step, and why."""
    return {key: part["why"] for part in shipped("ignored").values() for key in part["keys"]}


def is_known(key: str) -> bool:
    """Return True if a key is read, noted, refused or ignored."""
    return key == RULES or key in typed_defaults() or key in ignored()


def similar_key(key: str) -> str:
    """Return `did you mean ...?` for a key that is none; empty if no key is similar."""
    ours = unsimulated("other_names").get(key)
    if ours is not None:
        return f"did you mean {ours!r}?"
    near = nearest(key, (RULES, *typed_defaults(), *ignored()))
    return near if near.startswith("did you mean") else ""
