"""The dimensions of a config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpusim.models.hf.config import HfConfig, config_of
from tpusim.models.hf.families import ACTIVATIONS
from tpusim.models.hf.hf_attention import heads, latent, windows
from tpusim.models.hf.hf_experts import experts
from tpusim.models.hf.json_file import shown
from tpusim.models.transformer import Transformer

_LONGEST_NAME = 80


def from_hf(config: str | Path | Mapping[str, Any]) -> Transformer:
    """Return the model of a Hugging Face config.

    config: the path of a `config.json`, its folder, or a mapping.

    Keys that are not written have the defaults of the family's configuration class. Dtypes and
    quantisation are the plan's; scaled rotary positions cost as much as plain ones. `hf_notes`
    lists features that are not modelled, such as biases. Raise ModelError for an architecture that
    is unknown or cannot be simulated yet and for keys that are missing, wrong or contradict each
    other, FileError where there is no config to read.
    """
    return Transformer(**hf_dimensions(config))


def hf_dimensions(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat keys of `Transformer` that the config gives; the rest follows from them."""
    read = config_of(config)
    sizes = _sizes(read)
    return {
        "name": _name(read, config),
        **_layer(read),
        **sizes,
        **(latent(read, sizes["heads"]) if read.family.latent else heads(read, sizes)),
        **experts(read, sizes["layers"]),
        "activation": _activation(read),
        **_wide_layers(read, sizes["mlp"]),
        "layer_embed": read.count("hidden_size_per_layer_input", least=0) or 0,
        "tied_embeddings": _tied(read),
        "logit_cap": _logit_cap(read),
        **windows(read, sizes["layers"]),
    }


def _layer(config: HfConfig) -> dict[str, Any]:
    """Return the keys that all models of the family have; a BERT may be a decoder."""
    layer = dict(config.family.layer)
    if layer.get("kind") == "encoder" and config.value("is_decoder") and config.flag("is_decoder"):
        layer["kind"] = "decoder"
    return layer


def _sizes(config: HfConfig) -> dict[str, int]:
    keys = config.family.sizes
    sizes = {name: config.size(key) for name, key in keys.items() if key != "n_inner"}
    if "n_inner" in keys.values():
        sizes["mlp"] = config.count("n_inner") or 4 * sizes["embed"]
    return sizes


def _activation(config: HfConfig) -> str:
    value = config.value(config.family.activation)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise config.fault(
            f"{config.family.activation} is {shown(value)}, which cannot be simulated; "
            f"write one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[value]


def _wide_layers(config: HfConfig, mlp: int) -> dict[str, int]:
    """Return the layers whose MLP is twice as wide: those that take the K/V of others."""
    sharing = config.count("num_kv_shared_layers", least=0)
    if not sharing or not config.flag("use_double_wide_mlp"):
        return {}
    return {"wide_layers": sharing, "wide_mlp": 2 * mlp}


def _logit_cap(config: HfConfig) -> float:
    value = config.value("final_logit_softcapping")
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise config.fault(
            f"final_logit_softcapping is {shown(value)}; write a positive number, or null"
        )
    return float(value)


def _tied(config: HfConfig) -> bool:
    """Return True if embeddings are tied, which either part of a config in parts may set."""
    key = "tie_word_embeddings"
    if key in config.dims or key not in config.table:
        return config.flag(key)
    return HfConfig(config.where, config.family, config.table, config.table).flag(key)


def _name(config: HfConfig, given: str | Path | Mapping[str, Any]) -> str:
    """Return the name of the model in the config, otherwise of its file or folder."""
    names = [config.table.get("_name_or_path")]
    if not isinstance(given, Mapping):
        path = Path(config.where)
        names.append(path.stem if path.stem != "config" else path.resolve().parent.name)
    names.append(config.family.types[0])
    return next(
        name
        for name in names
        if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
    )
