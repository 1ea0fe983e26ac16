"""The experts of a config."""

from typing import Any

from tpusim.models.hf.config import HfConfig
from tpusim.models.hf.families import EXPERT_KEYS
from tpusim.models.hf.json_file import shown


def experts(config: HfConfig, layers: int) -> dict[str, int]:
    """Return the flat keys of the experts of a `Transformer`; empty where it has none."""
    keys = config.family.experts
    if not keys:
        return {}
    own = keys["experts"]
    key = next((key for key in (own, *EXPERT_KEYS) if key in config.dims), own)
    if config.value(key) is None:
        return {}
    if config.value(key) == 1:
        return {}
    found = {name: config.needed(given) for name, given in keys.items() if name in _AT_LEAST_ONE}
    found = {
        "experts": config.needed(key),
        **found,
        **_shared(config),
        **_dense_mlp(config),
        **_dense_layers(config, layers),
    }
    if found["experts_per_token"] > found["experts"]:
        raise config.fault(
            f"{keys['experts_per_token']} is {found['experts_per_token']}, but there are "
            f"{found['experts']} experts ({key}); write a number from 1 to {found['experts']}"
        )
    return found


_DENSE, _SPARSE = "dense", "sparse"
_AT_LEAST_ONE = ("experts_per_token", "expert_mlp", "expert_every")


def _shared(config: HfConfig) -> dict[str, int]:
    """Return the width of the shared experts together."""
    key = config.family.experts.get("shared_mlp")
    if key:
        return {"shared_mlp": config.needed(key, least=0)}
    key = config.family.experts.get("shared_experts")
    shared = config.count(key, least=0) if key else 0
    return (
        {"shared_mlp": shared * config.needed(config.family.experts["expert_mlp"])}
        if shared
        else {}
    )


def _dense_mlp(config: HfConfig) -> dict[str, int]:
    """Return the width of layers without experts, where a key of its own gives it."""
    key = config.family.experts.get("dense_mlp")
    width = config.count(key) if key else None
    return {"mlp": width} if width else {}


def _dense_layers(config: HfConfig, layers: int) -> dict[str, int]:
    """Return the first layers that have no experts."""
    every = config.count("moe_layer_freq")
    if every not in (None, 1):
        raise config.fault(
            f"moe_layer_freq is {every}; only experts in each layer after the first dense ones "
            "can be simulated, so write 1"
        )
    key = config.family.experts.get("dense_layers")
    first = _leading_mlp_layers(config)
    if first is None:
        first = (config.count(key, least=0) if key else 0) or 0
    if first >= layers:
        raise config.fault(f"none of the {layers} layers has experts; write fewer dense ones")
    return {"dense_layers": first} if first else {}


def _leading_mlp_layers(config: HfConfig) -> int | None:
    """Return the number of first layers without experts, as their kinds or numbers say.

    None where neither is written.
    """
    kinds: Any = config.value("mlp_layer_types")
    if isinstance(kinds, list) and kinds:
        first = kinds.index(_SPARSE) if _SPARSE in kinds else len(kinds)
        if kinds != [_DENSE] * first + [_SPARSE] * (len(kinds) - first):
            raise config.fault(
                f"mlp_layer_types is {shown(kinds)}; only the first layers can be without experts, "
                f"so write {_DENSE} for those and {_SPARSE} for the others"
            )
        return first
    written: Any = config.value("mlp_only_layers")
    if not written:
        return None
    if not isinstance(written, list) or written != list(range(len(written))):
        raise config.fault(
            f"mlp_only_layers is {shown(written)}; only the first layers can be without experts, "
            "so write the numbers from 0 on, such as [0, 1]"
        )
    return len(written)
