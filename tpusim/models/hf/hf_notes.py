"""Notes on the features of a config that are not modelled."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpusim.base.value_checks import as_boolean
from tpusim.models.hf.config import HfConfig, config_of
from tpusim.models.hf.families import features
from tpusim.models.hf.json_file import shown

_DROPOUT = dict.fromkeys(
    ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "emb_pdrop", "hidden_dropout",
     "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "resid_dropout",
     "embed_dropout", "residual_dropout", "embedding_dropout", "mlp_dropout", "activation_dropout",
     "dropout_rate"),
    "dropout",
)  # fmt: skip

_NO_PARTS = ("quantization_config", "generation_config")
"""Tables that describe no layers."""

_ONE_IS_NONE = ("n_group",)
"""Keys whose value 1 has no effect: all experts are one group."""


def hf_notes(config: str | Path | Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note for each feature that changes cost or parameters and that `from_hf` leaves out.

    Others say what a plan decides though the config has it: dtypes, and quantised weights.

    config: as `from_hf` takes it. The notes are apart from the model, so that models of a config
    and of the zoo compare as equal.
    """
    found = config_of(config)
    left_out = (f"not modelled: {what}" for what in _left_out(found))
    return (*left_out, *(f"not read: {what}" for what in _of_the_plan(found)))


def _of_the_plan(config: HfConfig) -> Iterator[str]:
    """Yield what says how the checkpoint is stored, and the keys of a plan that decide it."""
    for key in ("dtype", "torch_dtype"):
        value = config.dims.get(key, config.table.get(key))
        if isinstance(value, str) and value != "auto":
            yield (
                f"{key} = {shown(value)}, in which the checkpoint is stored; a plan says in what a "
                "step computes (dtype, bf16 unless given) and keeps its weights (param_dtype, f32)"
            )
            break
    stored = config.dims.get("quantization_config") or config.table.get("quantization_config")
    if stored:
        method = stored.get("quant_method") if isinstance(stored, Mapping) else stored
        yield (
            f"quantization_config ({shown(method)}), by which the weights of the checkpoint are "
            'stored; a plan says in what a step multiplies (matmul_dtype, such as "fp8" or "int8")'
        )


def _left_out(config: HfConfig) -> Iterator[str]:
    asked: dict[str, list[str]] = {}
    for key, what in (_DROPOUT | dict(config.family.left_out)).items():
        value = as_boolean(config.value(key))
        if value and (key not in _ONE_IS_NONE or value != 1):
            asked.setdefault(what, []).append(f"{key} = {shown(config.value(key))}")
    for what, keys in asked.items():
        yield f"{what} ({', '.join(keys)})"
    yield from config.family.always
    yield from _other_parts(config)


def _other_parts(config: HfConfig) -> Iterator[str]:
    """Yield the parts beside the language model, such as an encoder of images."""
    known = {key: f"the encoder of {what}" for what, keys in features("reads").items()
             for key in keys}  # fmt: skip
    for key, value in config.table.items():
        several = config.part and key.endswith("_config") and key not in _NO_PARTS
        if isinstance(value, Mapping) and key != config.part and (key in known or several):
            yield f"{known.get(key, 'another part')} ({key})"
