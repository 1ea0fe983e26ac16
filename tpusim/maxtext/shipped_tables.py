"""The tables that ship: defaults and models of MaxText, and the treatment of each of its keys.

A key is read (`defaults.toml`), left out with a note or refused (`unsimulated.toml`), or ignored
(`ignored.toml`).
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from tpusim.base.errors import nearest
from tpusim.base.shipped_table import shipped_table

RULES = "logical_axis_rules"

OFF = (None, False, 0, 0.0, -1, 1, "", "none", "None", "default", "disabled", "causal_lm", "fsdp")
"""Values with which a key has no effect."""

EFFECTIVE_AT_ONE = (
    "mtp_num_layers",
    "z_loss_multiplier",
    "load_balance_loss_weight",
    "dropout_rate",
)
"""Keys that have an effect even with a one."""


@cache
def shipped(name: str) -> Mapping[str, Any]:
    """Return one of the tables."""
    return shipped_table("maxtext", f"{name}.toml")


@cache
def defaults() -> Mapping[str, Any]:
    """Return each key that is read, and its default."""
    return {key: value for part in shipped("defaults").values() for key, value in part.items()}


def models() -> Mapping[str, Mapping[str, Any]]:
    """Return the keys that each `model_name` sets."""
    return shipped("models")


def decoder_blocks() -> Mapping[str, dict[str, Any]]:
    """Return what distinguishes the layers of each `decoder_block` that can be simulated."""
    return shipped("decoder_blocks")


def unsimulated(part: str) -> Mapping[str, str]:
    """Return what is `renamed`, `left_out`, `refused`, or one of the `decoder_blocks` refused."""
    found: Mapping[str, str] = shipped("unsimulated")[part]
    return found


def words(section: str) -> Mapping[str, str]:
    """Return the words that a key may have, and ours for each."""
    found: Mapping[str, str] = shipped("words")[section]
    return found


@cache
def _patterns() -> tuple[str, ...]:
    """Return the keys that change no step; `*` stands for any letters."""
    return tuple(key for part in shipped("ignored").values() for key in part)


@cache
def _handled() -> tuple[str, ...]:
    return (*defaults(), *unsimulated("left_out"), *unsimulated("refused"), RULES)


def is_handled(key: str) -> bool:
    """Return True if a key is read, noted or refused."""
    return key in _handled()


def is_ignored(key: str) -> bool:
    """Return True if a key is known not to change a step."""
    return any(fnmatchcase(key, pattern) for pattern in _patterns())


def similar_key(key: str) -> str:
    """Return `did you mean ...?` for a key that the tables write out; empty if none is similar."""
    plain = (pattern for pattern in _patterns() if "*" not in pattern)
    near = nearest(key, (*_handled(), *plain))
    return near if near.startswith("did you mean") else ""


def has_effect(value: Any, key: str = "") -> bool:
    """Return True if a value of a key has an effect."""
    if key in EFFECTIVE_AT_ONE and value == 1:
        return True
    return bool(value) if isinstance(value, list | dict) else value is True or value not in OFF
