"""Notes on the features of a config that are not modelled."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpusim.models.hf.config import HfConfig, config_of
from tpusim.models.hf.json_file import shown

_DROPOUT = dict.fromkeys(
    ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "emb_pdrop", "hidden_dropout",
     "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "resid_dropout",
     "embed_dropout", "residual_dropout", "embedding_dropout", "mlp_dropout", "activation_dropout",
     "dropout_rate"),
    "dropout",
)  # fmt: skip

_ONE_IS_NONE = ("n_group",)
"""Keys whose value 1 has no effect: all experts are one group."""


def hf_notes(config: str | Path | Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note for each feature that changes cost or parameters and that `from_hf` leaves out.

    config: as `from_hf` takes it. The notes are apart from the model, so that models of a config
    and of the zoo compare as equal.
    """
    return tuple(f"not modelled: {what}" for what in _left_out(config_of(config)))


def _left_out(config: HfConfig) -> Iterator[str]:
    asked: dict[str, list[str]] = {}
    for key, what in (_DROPOUT | dict(config.family.left_out)).items():
        value = config.value(key)
        if value and (key not in _ONE_IS_NONE or value != 1):
            asked.setdefault(what, []).append(f"{key} = {shown(config.value(key))}")
    for what, keys in asked.items():
        yield f"{what} ({', '.join(keys)})"
    yield from config.family.always
    if config.table.get("vision_config"):
        yield "the vision encoder (vision_config)"
