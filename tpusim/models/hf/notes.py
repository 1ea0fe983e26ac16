"""What a config asks for that is not modelled."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpusim.models.hf.config import Config, config_of
from tpusim.models.hf.file import shown

_ONE_IS_NONE = ("n_group",)
"""Keys with which 1 asks for nothing: all experts are one group."""


def hf_notes(config: str | Path | Mapping[str, Any]) -> tuple[str, ...]:
    """Each thing that changes the cost or the parameters and that `from_hf` leaves out.

    It takes what `from_hf` takes. Apart from it, so that a model is its dimensions and no more:
    those of a config and of the zoo compare as equal.
    """
    return tuple(f"not modelled: {what}" for what in _left_out(config_of(config)))


def _left_out(config: Config) -> Iterator[str]:
    asked: dict[str, list[str]] = {}
    for key, what in config.family.left_out.items():
        value = config.value(key)
        if value and (key not in _ONE_IS_NONE or value != 1):
            asked.setdefault(what, []).append(f"{key} = {shown(config.value(key))}")
    for what, keys in asked.items():
        yield f"{what} ({', '.join(keys)})"
    yield from config.family.always
    if config.table.get("vision_config"):
        yield "the vision encoder (vision_config)"
