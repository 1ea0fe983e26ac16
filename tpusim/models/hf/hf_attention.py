"""The attention of a config: heads, latents and windows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tpusim.models.hf.config import HfConfig
from tpusim.models.hf.json_file import shown

LOCAL, WHOLE, LINEAR = "sliding_attention", "full_attention", "linear_attention"
_GPT_NEO = {"local": LOCAL, "global": WHOLE}
"""The kinds of layers as GPT-Neo calls them."""
_GLOBAL_KEYS = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
"""Keys of a layer, and those that give them for all layers that see all keys."""


def heads(config: HfConfig, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return `kv_heads` and `head_dim`, where the config gives them."""
    key, embed, heads = config.family.sizes["heads"], sizes["embed"], sizes["heads"]
    kv_key = config.family.kv_heads
    kv_heads, head_dim = config.count(kv_key), config.count("head_dim")
    one = config.family.one_kv_head
    if one and all(map(config.holds, one)):
        kv_heads = 1
    if kv_heads and heads % kv_heads:
        raise config.fault(
            f"{heads} heads ({key}) cannot share {kv_heads} K/V heads ({kv_key}) "
            f"evenly; write a {kv_key} that divides {heads}"
        )
    if not head_dim and embed % heads:
        raise config.fault(
            f"{config.family.sizes['embed']} {embed} does not divide into {heads} heads ({key}); "
            "write a number of heads that divides it, or head_dim where the family has one"
        )
    given = {"kv_heads": kv_heads, "head_dim": head_dim}
    return {name: value for name, value in given.items() if value}


def latent(config: HfConfig, heads: int) -> dict[str, int]:
    """Return `head_dim`, the whole width of queries and keys, and the ranks and other widths.

    A `head_dim` in the config is the rotated part alone, and of no use here.
    """
    kv_heads = config.dims.get("num_key_value_heads")
    if kv_heads not in (None, heads):
        raise config.fault(
            f"num_key_value_heads is {kv_heads!r}, but with latent attention (kv_lora_rank) each "
            f"of the {heads} heads has keys and values of its own; write {heads}, or leave it out"
        )
    q_rank = config.count("q_lora_rank")
    rope_dim = config.needed("qk_rope_head_dim")
    return {
        "head_dim": config.needed("qk_nope_head_dim") + rope_dim,
        **({"q_rank": q_rank} if q_rank else {}),
        "kv_rank": config.needed("kv_lora_rank"),
        "rope_dim": rope_dim,
        "v_head_dim": config.needed("v_head_dim"),
    }


def windows(config: HfConfig, layers: int) -> dict[str, Any]:
    """Return `window`, `global_every` and what differs in layers that see all keys.

    Nothing where all layers see all keys; of linear attention, its keys besides.
    """
    if config.family.windows == "none":
        return {}
    if config.family.linear:
        every, first, ends = _global_period(config, _types(config, layers))
        given = {"global_first": first, "global_ends": ends}
        place = {key: value for key, value in given.items() if value}
        return {"global_every": every, **place, **_linear(config)}
    if "use_sliding_window" in config.family.defaults and not config.flag("use_sliding_window"):
        return {}
    window = config.count(config.family.window, least=0)
    if not window:
        return {}
    types = _types(config, layers)
    every, first, _ = _global_period(config, types)
    if every == 1:
        return {}
    place = {"global_first": True} if first else {}
    own = _global(config, types) if every else {}
    return {"window": window, "global_every": every, **place, **own}


def _linear(config: HfConfig) -> dict[str, int]:
    """Return the heads, widths and taps of linear attention."""
    found = {}
    for name, keys in config.family.linear.items():
        key = next((key for key in keys if config.value(key) is not None), keys[0])
        found[name] = config.needed(key)
    return found


def _global(config: HfConfig, types: Sequence[Any]) -> dict[str, int]:
    """Return the heads of layers that see all keys, where the family gives them their own."""
    if "global_head_dim" not in config.family.defaults:
        return {}
    config = _with_global_keys(config, types)
    return {
        "global_head_dim": config.count("global_head_dim", least=0) or 0,
        "global_kv_heads": config.count("num_global_key_value_heads") or 0,
        "global_keys_as_values": config.flag("attention_k_eq_v"),
    }


def _with_global_keys(config: HfConfig, types: Sequence[Any]) -> HfConfig:
    """Return the config with the keys of layers that see all keys, which it may write by layer."""
    layers = config.dims.get("per_layer_config")
    if not layers:
        return config
    whole = {str(i) for i, kind in enumerate(types) if kind == WHOLE}
    own = list(layers.values()) if isinstance(layers, Mapping) else []
    if (
        not own
        or {str(key).lstrip("0") or "0" for key in layers} != whole
        or len(own) != len(whole)
        or any(keys != own[0] or not isinstance(keys, Mapping) for keys in own)
    ):
        raise config.fault(
            f"per_layer_config is {shown(layers)}; only the layers that see all keys can differ "
            "from the others, and all in the same way, so write the same keys for each of those"
        )
    given = {name: own[0][key] for key, name in _GLOBAL_KEYS.items() if key in own[0]}
    dims = {**config.dims, **given}
    return replace(config, dims=dims, table=config.table if config.nested else dims)


def _types(config: HfConfig, layers: int) -> Sequence[Any]:
    """Return the kind of attention of each layer, as written or by the family's default."""
    written = config.value("layer_types")
    if written is None and isinstance(config.value("attention_layers"), list):
        written = [_GPT_NEO.get(kind, kind) for kind in config.value("attention_layers")]
    if written is not None:
        if not isinstance(written, list) or len(written) != layers:
            raise config.fault(
                f"layer_types is {shown(written)}; write a list of {layers} kinds, one per layer"
            )
        return written
    return _PATTERNS[config.family.windows](config, layers)


def _last(config: HfConfig, layers: int) -> Sequence[str]:
    """Return the kinds of layers of which those from `max_window_layers` on see a window."""
    first = config.count("max_window_layers", least=0) or 0
    return [LOCAL if i >= first else WHOLE for i in range(layers)]


def _alternate(config: HfConfig, layers: int) -> Sequence[str]:
    """Return the kinds of layers of which each other one up to `max_window_layers` does."""
    end = config.count("max_window_layers", least=0) or 0
    return [LOCAL if i % 2 == 0 and i < end else WHOLE for i in range(layers)]


def _periodic(config: HfConfig, layers: int, whole: int) -> Sequence[str]:
    """Return the kinds of layers of which each so many-th sees all keys.

    whole: its place in each pattern, -1 for the last.
    """
    key = config.family.every
    every = config.count(key) or config.family.defaults[key]
    return [WHOLE if (i - whole) % every == 0 else _other(config) for i in range(layers)]


def _listed(config: HfConfig, layers: int) -> Sequence[str]:
    """Return the kinds of layers of which those of a list see all keys, counted from 1."""
    key = config.family.every
    whole: Any = config.value(key)
    if not isinstance(whole, list) or not set(whole) <= set(range(1, layers + 1)):
        raise config.fault(
            f"{key} is {shown(whole)}; write the numbers of the layers that see all keys, from 1 "
            f"to {layers}"
        )
    return [WHOLE if i + 1 in whole else _other(config) for i in range(layers)]


def _other(config: HfConfig) -> str:
    """Return the kind of layers that do not see all keys."""
    return LINEAR if config.family.linear else LOCAL


_PATTERNS: Mapping[str, Callable[[HfConfig, int], Sequence[str]]] = {
    "all": lambda _, layers: [LOCAL] * layers,
    "pattern": partial(_periodic, whole=-1),
    "first": partial(_periodic, whole=0),
    "last": _last,
    "alternate": _alternate,
    "listed": _listed,
}
"""The kinds of a config's layers, by the `windows` of its family."""


def _global_period(config: HfConfig, types: Sequence[Any]) -> tuple[int, bool, str]:
    """Return the period of layers that see all keys, if they are the first of each, and the ends.

    The period is 0 for no such layers, and 1 for all. The ends are layers outside of the pattern
    that see all keys, `last` or none.
    """
    other = _other(config)
    for i, kind in enumerate(types):
        if kind not in (other, WHOLE):
            raise config.fault(
                f"layer_types[{i}] is {shown(kind)}, which cannot be simulated; "
                f"write {other} or {WHOLE}"
            )
    first = types[0] == WHOLE and other in types
    start = 1 if first else 0
    every = types.index(WHOLE, start) + 1 - start if WHOLE in types[start:] else 0
    if first and not every:
        every = len(types)
    ends = ""
    if other == LINEAR and every and len(types) % every and types[-1] == WHOLE and not first:
        types, ends = types[:-1], "last"
    for i, kind in enumerate(types):
        if (kind == WHOLE) != (every > 0 and (i if first else i + 1) % every == 0):
            raise config.fault(
                f"layer {i} has {kind}, which breaks the pattern of those before; only patterns "
                f"that repeat and begin or end with {WHOLE} can be simulated"
            )
    return every, first, ends
