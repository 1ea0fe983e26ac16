"""The dimensions that a config gives."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpusim.models.hf.config import Config, config_of
from tpusim.models.hf.experts import experts
from tpusim.models.hf.families import ACTIVATIONS
from tpusim.models.hf.file import shown
from tpusim.models.hf.latent import latent
from tpusim.models.hf.windows import windows
from tpusim.models.transformer import Transformer

_LONGEST_NAME = 80


def from_hf(config: str | Path | Mapping[str, Any]) -> Transformer:
    """The model of a Hugging Face config: the path of a `config.json`, its folder, or a mapping.

    Keys that are not written have the defaults of the family's configuration class. Dtypes and
    quantisation are the plan's; scaled rotary positions cost what plain ones do. What a config asks
    for beside its dimensions and is not modelled, such as biases, `hf_notes` lists. Raises
    `ModelError` for an architecture that is unknown or cannot be simulated yet and for keys that
    are missing, wrong or contradict each other, `FileError` where there is no config to read.
    """
    return Transformer(**hf_dimensions(config))


def hf_dimensions(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the `Transformer`: those that the config gives; the rest follows from them."""
    read = config_of(config)
    sizes = _sizes(read)
    return {
        "name": _name(read, config),
        **_layer(read),
        **sizes,
        **(latent(read, sizes["heads"]) if read.family.latent else _heads(read, sizes)),
        **experts(read, sizes["layers"]),
        "activation": _activation(read),
        "tied_embeddings": _tied(read),
        **windows(read, sizes["layers"]),
    }


def _layer(config: Config) -> dict[str, Any]:
    """What all models of the family have in common; a BERT may be told to be a decoder."""
    layer = dict(config.family.layer)
    if layer.get("kind") == "encoder" and config.value("is_decoder") and config.flag("is_decoder"):
        layer["kind"] = "decoder"
    return layer


def _sizes(config: Config) -> dict[str, int]:
    keys = config.family.sizes
    sizes = {name: config.size(key) for name, key in keys.items() if key != "n_inner"}
    if "n_inner" in keys.values():
        sizes["mlp"] = config.count("n_inner") or 4 * sizes["embed"]
    return sizes


def _heads(config: Config, sizes: Mapping[str, int]) -> dict[str, int]:
    """`kv_heads` and `head_dim`, where the config gives them."""
    key, embed, heads = config.family.sizes["heads"], sizes["embed"], sizes["heads"]
    kv_heads, head_dim = config.count("num_key_value_heads"), config.count("head_dim")
    if kv_heads and heads % kv_heads:
        raise config.fault(
            f"{heads} heads ({key}) cannot share {kv_heads} K/V heads (num_key_value_heads) "
            f"evenly; write a num_key_value_heads that divides {heads}"
        )
    if not head_dim and embed % heads:
        raise config.fault(
            f"{config.family.sizes['embed']} {embed} does not divide into {heads} heads ({key}); "
            "write a number of heads that divides it, or head_dim where the family has one"
        )
    given = {"kv_heads": kv_heads, "head_dim": head_dim}
    return {name: value for name, value in given.items() if value}


def _activation(config: Config) -> str:
    value = config.value(config.family.activation)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise config.fault(
            f"{config.family.activation} is {shown(value)}, which cannot be simulated; "
            f"write one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[value]


def _tied(config: Config) -> bool:
    """Of a config in parts, either part may say it."""
    key = "tie_word_embeddings"
    if key in config.dims or key not in config.table:
        return config.flag(key)
    return Config(config.where, config.family, config.table, config.table).flag(key)


def _name(config: Config, given: str | Path | Mapping[str, Any]) -> str:
    """What the config calls the model, else its file or folder."""
    names = [config.table.get("_name_or_path")]
    if not isinstance(given, Mapping):
        path = Path(config.where)
        names.append(path.stem if path.stem != "config" else path.resolve().parent.name)
    names.append(config.family.types[0])
    return next(
        name for name in names
        if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
    )  # fmt: skip
