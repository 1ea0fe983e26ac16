"""Experts, as configs tell of them."""

from typing import Any

from tpusim.models.hf.config import Config
from tpusim.models.hf.families import EXPERT_KEYS
from tpusim.models.hf.file import shown


def experts(config: Config, layers: int) -> dict[str, int]:
    """The fields of the `Transformer` that say what its experts are; none where it has none."""
    keys = config.family.experts
    if not keys:
        return {}
    own = keys["experts"]
    key = next((key for key in (own, *EXPERT_KEYS) if key in config.dims), own)
    if config.value(key) is None:
        return {}
    found = {name: config.needed(given) for name, given in keys.items() if name in _AT_LEAST_ONE}
    found = {"experts": config.needed(key), **found, **_shared(config), **_dense(config, layers)}
    if found["experts_per_token"] > found["experts"]:
        raise config.fault(
            f"{keys['experts_per_token']} is {found['experts_per_token']}, but there are "
            f"{found['experts']} experts ({key}); write a number from 1 to {found['experts']}"
        )
    return found


_AT_LEAST_ONE = ("experts_per_token", "expert_mlp", "expert_every")


def _shared(config: Config) -> dict[str, int]:
    """The width of the shared experts together."""
    key = config.family.experts.get("shared_mlp")
    if key:
        return {"shared_mlp": config.needed(key, least=0)}
    if not config.count("n_shared_experts", least=0):
        return {}
    width = config.needed(config.family.experts["expert_mlp"])
    return {"shared_mlp": config.needed("n_shared_experts") * width}


def _dense(config: Config, layers: int) -> dict[str, int]:
    """The first layers that have no experts."""
    every = config.count("moe_layer_freq")
    if every not in (None, 1):
        raise config.fault(
            f"moe_layer_freq is {every}; only experts in each layer after the first dense ones "
            "can be simulated, so write 1"
        )
    first = config.count("first_k_dense_replace", least=0) or _first(config, layers)
    if first >= layers:
        raise config.fault(f"none of the {layers} layers has experts; write fewer dense ones")
    return {"dense_layers": first} if first else {}


def _first(config: Config, layers: int) -> int:
    """How many first layers `mlp_only_layers` names."""
    written: Any = config.value("mlp_only_layers")
    if not written:
        return 0
    if not isinstance(written, list) or written != list(range(len(written))):
        raise config.fault(
            f"mlp_only_layers is {shown(written)}; only the first layers can be without experts, "
            "so write the numbers from 0 on, such as [0, 1]"
        )
    return len(written)
