"""The dimensions of a config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpusim.models.architecture import Architecture
from tpusim.models.hf.config import HfConfig, config_of
from tpusim.models.hf.hf_attention import heads, latent, windows
from tpusim.models.hf.hf_experts import experts
from tpusim.models.hf.json_file import shown
from tpusim.models.zoo import ARCHITECTURES

_ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu",
}
"""The activation functions of transformers, and ours for each: GELU by its error function and by
tanh cost about the same, and by the logistic function as much as SiLU."""

_LONGEST_NAME = 80
_HUB_FOLDER = "models--"
_UNNAMED_FOLDERS = ("", "model", "models", "checkpoint", "config", "configs", "hf", "tmp")
"""Letters of a name at most, the beginning of the folder of a model that the hub's cache holds, and
folders that do not say which model they hold."""

_GATED = "gated-"
"""What T5 writes before the activation function of an MLP with a gate."""


def from_hf(config: str | Path | Mapping[str, Any]) -> Any:
    """Return the model of a Hugging Face config, an `Architecture`: a `Transformer` for most.

    config: the path of a `config.json`, its folder, or a mapping.

    Of a model that reads images or sound besides, the language model is returned, which is a part
    of the config: `text_config`, `llm_config` or `language_config`. A list has a number for each
    layer, which must be the same; the MLP's width may be another one in the last layers.

    Keys that are not written have the defaults of the family's configuration class. Numerics and
    quantisation are the plan's; scaled or partial rotary positions cost as much as plain ones, and
    factors of embeddings, residuals and logits nothing. `hf_notes` lists features that are not
    modelled, such as attention sinks. Raise ModelError for an architecture that is unknown or
    cannot be simulated yet and for keys that are missing, wrong or contradict each other, FileError
    where there is no config to read.
    """
    return hf_architecture(config)(**hf_dimensions(config))


def hf_architecture(config: str | Path | Mapping[str, Any]) -> type[Architecture]:
    """Return the architecture that a config is read as."""
    return ARCHITECTURES[config_of(config).family.kind]


def hf_dimensions(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the architecture that the config gives; the rest follows from them.

    Of a `Transformer`, they are flat.
    """
    read = config_of(config)
    _check_only(read)
    name = {"name": _name(read, config)}
    if read.family.kind != "transformer":
        return name | _other(read)
    sizes = _sizes(read)
    found = {
        **name,
        **_layer(read),
        **sizes,
        **(latent(read, sizes["heads"]) if read.family.latent else heads(read, sizes)),
        **experts(read, sizes["layers"]),
        **_activation(read),
        **_wide_layers(read, sizes["mlp"]),
        "layer_embed": read.count("hidden_size_per_layer_input", least=0) or 0,
        "tied_embeddings": _tied(read),
        "logit_cap": _logit_cap(read),
        **windows(read, sizes["layers"]),
    }
    return found if "experts" in found else {k: v for k, v in found.items() if k != "shared_gate"}


def _other(config: HfConfig) -> dict[str, Any]:
    """Return the dimensions of an encoder-decoder or an encoder of images."""
    found = {**_layer(config), **_sizes(config), **_activation(config)}
    if config.family.kind == "vision-transformer":
        labels = config.table.get("id2label")
        given = len(labels) if isinstance(labels, Mapping) else config.count("num_labels")
        return found | ({"classes": given} if given else {})
    return found | {"tied_embeddings": _tied(config)}


def _check_only(config: HfConfig) -> None:
    """Raise ModelError for a key whose value asks for an operation that is missing."""
    for key, (allowed, operation) in config.family.only.items():
        value = config.value(key)
        wanted = config.value(allowed) if isinstance(allowed, str) and key != allowed else allowed
        if isinstance(allowed, str) and wanted is None:
            wanted = allowed
        if value is not None and value != wanted:
            raise config.fault(
                f"{key} is {shown(value)}, which asks for {operation}; {config.family.name} can be "
                f"simulated with {key} = {shown(wanted)} only"
            )


def _layer(config: HfConfig) -> dict[str, Any]:
    """Return the keys that all models of the family have, and those of flags and counts."""
    layer = dict(config.family.layer)
    for key, given in config.family.flags.items():
        if config.holds(key):
            layer |= given
    for name, key in config.family.counts.items():
        if size := config.count(key, least=0):
            layer[name] = size + (config.family.more_positions if name == "positions" else 0)
    return layer


def _sizes(config: HfConfig) -> dict[str, int]:
    keys = config.family.sizes
    by_layer = _mlp_by_layer(config)
    if by_layer:
        return {name: config.size(key) for name, key in keys.items() if name != "mlp"} | by_layer
    wide = config.family.four_embed
    sizes = {name: config.size(key) for name, key in keys.items() if not (wide and name == "mlp")}
    if wide:
        sizes["mlp"] = (config.count(keys["mlp"]) if "mlp" in keys else None) or 4 * sizes["embed"]
    return sizes


def _mlp_by_layer(config: HfConfig) -> dict[str, int]:
    """Return the widths of the MLP where the last layers have another one; empty otherwise."""
    key = config.family.sizes.get("mlp", "")
    widths = config.value(key) if key else None
    if config.family.experts or not isinstance(widths, list) or not widths:
        return {}
    first = next((i for i, width in enumerate(widths) if width != widths[0]), 0)
    if not first or len(widths) != config.size(config.family.sizes["layers"]):
        return {}
    if widths[first:] != [widths[-1]] * (len(widths) - first):
        return {}
    mlp, last = (config.whole(key, width) for width in (widths[0], widths[-1]))
    return {"mlp": mlp, "wide_mlp": last, "wide_layers": len(widths) - first}


def _activation(config: HfConfig) -> dict[str, Any]:
    """Return the activation function, and where its name says so, that it has a gate."""
    key = config.family.activation
    if not key:
        return {}
    value = config.value(key)
    gated = isinstance(value, str) and value.startswith(_GATED)
    name = value.removeprefix(_GATED) if gated else value
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise config.fault(
            f"{key} is {shown(value)}, which cannot be simulated; "
            f"write one of {', '.join(_ACTIVATIONS)}"
        )
    return {"activation": _ACTIVATIONS[name], **({"gated": True} if gated else {})}


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
    """Return the name of the model in the config, otherwise of its file, its folder, its family."""
    written = config.table.get("_name_or_path")
    names = [_of_path(written) if isinstance(written, str) else ""]
    if not isinstance(given, Mapping):
        names.append(_of_file(Path(config.where).absolute()))
    return next(
        (name for name in names if 0 < len(name) <= _LONGEST_NAME and name.isprintable()),
        config.family.types[0],
    )


def _of_path(written: str) -> str:
    """Return the last part of a path; a name of the hub, `owner/model`, is none."""
    is_path = written[:1] in ("/", ".", "~") or written.count("/") > 1
    return Path(written).name if is_path else written


def _of_file(path: Path) -> str:
    """Return the name that a file of a config has, or its folder; empty where neither says it.

    >>> _of_file(Path("/hub/models--meta-llama--Llama-2-7b/snapshots/8a0442e81540/config.json"))
    'meta-llama/Llama-2-7b'
    >>> _of_file(Path("/some/llama-8b/config.json")), _of_file(Path("/some/model/config.json"))
    ('llama-8b', '')
    """
    if path.stem != "config":
        return path.stem
    for folder in path.parents:
        if folder.name.startswith(_HUB_FOLDER):
            return folder.name.removeprefix(_HUB_FOLDER).replace("--", "/")
    return "" if path.parent.name.lower() in _UNNAMED_FOLDERS else path.parent.name
