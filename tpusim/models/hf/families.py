"""The families of configs that can be simulated, and those that cannot, by `tables/*.toml`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tpusim.base.shipped_table import shipped_table

SIZE_KEYS = {
    "layers": "num_hidden_layers",
    "embed": "hidden_size",
    "mlp": "intermediate_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}
"""Dimensions of a `Transformer`, and the keys that give them. A file has to write them, except in a
part of their own, such as `text_config`, where transformers also leaves out those of the class."""

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of the number of experts; transformers reads some of them for one another."""

OPTIONAL_FEATURES = {"experts": EXPERT_KEYS, "latent attention": ("kv_lora_rank",)}
"""Features that some families have, and the keys that ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFamily:
    """The common part of the configs of one family: a table in `tables/*.toml`.

    Such a table has the keys below but for the name, and `like`: the parts of `tables/parts.toml`
    that it begins with. Its own tables change those of the parts key by key, its own `always` adds
    to theirs, and anything else replaces theirs.

    name: what documents and messages call it.
    architectures: the classes with a head for language modelling, or another loss.
    types: its `model_type`s.
    kind: the architecture that it is read as, of `ARCHITECTURES`.
    layer: flat keys of the architecture that no key of the config gives.
    flags: the flat keys that a key of the config gives where it is true; with `!`, where false;
        with `?`, where it has a value.
    counts: flat keys that are whole numbers, and the keys that give them; null is 0.
    more_positions: rows of the table of positions beside those that the config counts.
    defaults: of the keys that a config may leave out. A key of a part has a dot (`ffn.width`).
    sizes: the keys of the dimensions; a table names those that differ from `SIZE_KEYS`, with ""
        for a dimension that has none.
    older: keys of files written before transformers had the family, and today's key for each.
    four_embed: the MLP is four times as wide as the embedding where the config does not say.
    kv_heads: the key of the heads of keys and values.
    one_kv_head: keys with which there is one of those, if all hold; with `!`, if they are false.
    activation: the key of the activation function; empty where `layer` has it.
    windows: the layers that see a window of the keys, where `layer_types` does not give them:
        `none`, `all`, `pattern` (all but each so many-th), `first` (the same, but the first of each
        so many), `last` (from `max_window_layers` on), `alternate` (each other one up to there),
        `listed` (all but those of a list).
    window: the key of the window.
    every: the key of so many, or of the list.
    experts: dimensions of the experts, and the keys that give them, with `dense_mlp` for the width
        of layers without experts; empty where there are none.
    latent: attention is latent.
    linear: flat keys of linear attention, and for each the keys that may give it, the first that
        is written first; empty where there is none. `windows` then gives its layers.
    only: for keys that must have one value: that value, or the key that has it, and in words the
        operation that others ask for.
    left_out: keys of features that are not modelled.
    always: features that are not modelled and have no key.
    """

    name: str
    architectures: Sequence[str]
    types: Sequence[str]
    kind: str = "transformer"
    layer: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    more_positions: int = 0
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, str]
    older: Mapping[str, str] = field(default_factory=dict)
    four_embed: bool = False
    kv_heads: str = "num_key_value_heads"
    one_kv_head: Sequence[str] = ()
    activation: str = "hidden_act"
    windows: str = "none"
    window: str = "sliding_window"
    every: str = "sliding_window_pattern"
    experts: Mapping[str, str] = field(default_factory=dict)
    latent: bool = False
    linear: Mapping[str, Sequence[str]] = field(default_factory=dict)
    only: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    always: Sequence[str] = ()


_KINDS = ("decoders", "gpt", "experts", "latent", "encoders", "others")
"""The files of families, in the order in which documents list them."""

_DIMENSIONS = ("layers", "embed", "mlp", "heads", "head_dim", "vocab")


@cache
def families() -> tuple[HfFamily, ...]:
    """Return all families."""
    return tuple(family for kind in _KINDS for family in read_families(_table(kind)))


def read_families(rows: Mapping[str, Any]) -> Iterator[HfFamily]:
    """Yield the families of a file's tables, by their names."""
    parts = _table("parts")
    for name, row in rows.items():
        found = _joined(row, parts)
        keys = SIZE_KEYS | found.get("sizes", {})
        found["sizes"] = {size: keys[size] for size in _DIMENSIONS if keys.get(size)}
        yield HfFamily(name=name, **found)


@cache
def by_class() -> Mapping[str, HfFamily]:
    """Return the family of each class: the first that lists it; later ones may reuse its code."""
    return {name: family for family in reversed(families()) for name in family.architectures}


@cache
def by_type() -> Mapping[str, HfFamily]:
    """Return the family of each `model_type`."""
    return {name: family for family in families() for name in family.types}


@cache
def by_name() -> Mapping[str, HfFamily]:
    """Return each family by its name."""
    return {family.name: family for family in families()}


def refused_types() -> Mapping[str, Sequence[str]]:
    """Return the known types that cannot be simulated yet.

    Each has the operation that is missing, and the nearest family, whose row it would otherwise be
    like.
    """
    types: Mapping[str, Sequence[str]] = _table("refused")["types"]
    return types


def refused_as(architecture: str | None, model_type: str | None) -> Sequence[str]:
    """Return what a model of this class or type is missing, and the nearest family; or two "".

    The class counts for configs without a `model_type`.
    """
    table = _table("refused")
    kind = table["classes"].get(architecture or "", model_type or "")
    found: Sequence[str] = table["types"].get(kind, ("", ""))
    return found


def features(name: str) -> Mapping[str, Sequence[str]]:
    """Return the features of a table of `features.toml`, each with the words that ask for it."""
    found: Mapping[str, Sequence[str]] = _table("features")[name]
    return found


def _joined(row: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the parts that it is like."""
    found: dict[str, Any] = {}
    for part in [*(_joined(parts[name], parts) for name in row.get("like", ())), row]:
        for key, value in part.items():
            if isinstance(value, dict):
                found[key] = found.get(key, {}) | value
            else:
                found[key] = [*found.get(key, ()), *value] if key == "always" else value
    found.pop("like", None)
    return found


@cache
def _table(name: str) -> Mapping[str, Any]:
    return shipped_table("models", f"hf/tables/{name}.toml")
