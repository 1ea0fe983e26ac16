"""The sharding rules of a config, where they differ from those of the `maxtext` style."""

from collections.abc import Mapping
from typing import Any

from tpusim.base.errors import nearest
from tpusim.base.shown_value import shown
from tpusim.maxtext.config import RULES, MaxTextConfig
from tpusim.maxtext.logical_axes import LOGICAL_AXES, experts_over_fsdp, sharding_rules

OLDER = {"heads": "q_heads"}
"""Logical axes by an older name."""

INACTIVE_AXES = ("norm", "layers")
"""Logical axes of small weights, which a model's config may change without effect here."""

_LOGICAL = tuple(name for name, _ in LOGICAL_AXES.values())


def rules_of(config: MaxTextConfig, mesh: Mapping[str, int]) -> dict[str, Any]:
    """Return `rules` of the plan: MaxText's on this mesh, where they differ from the style's."""
    latent = config.text("attention_type") == "mla"
    layer_embed = config.size("hidden_size_per_layer_input", least=0) > 0
    rules: dict[str, Any] = sharding_rules(
        mesh, _given(config), latent=latent, layer_embed=layer_embed
    )
    if config.flag("shard_exp_on_fsdp") and config.size("num_experts") > 1:
        rules["expert"] = experts_over_fsdp(mesh)
    return {"rules": rules} if rules else {}


def _given(config: MaxTextConfig) -> Mapping[str, tuple[str, ...]]:
    """Return the first rule of each logical axis; later ones are for where it cannot hold."""
    found: dict[str, tuple[str, ...]] = {}
    alone = config.flag("override_logical_axis_rules") and RULES in config.over
    for where in (config.over,) if alone else (config.over, config.file):
        rules = where.get(RULES, [])
        if not isinstance(rules, list):
            raise config.fault(f"{RULES} is {shown(rules)}; write a list of rules")
        of_this: dict[str, tuple[str, ...]] = {}
        for rule in rules:
            name, axes = _rule(config, rule)
            of_this.setdefault(OLDER.get(name, name), axes)
            if where is config.over and name not in (*_LOGICAL, *OLDER, *INACTIVE_AXES):
                raise config.fault(
                    f"{RULES} changes {name!r}, which cannot be simulated; "
                    f"{nearest(name, _LOGICAL)}"
                )
        found = {**of_this, **found}
    return found


def _rule(config: MaxTextConfig, rule: object) -> tuple[str, tuple[str, ...]]:
    match rule:
        case [str(name), str(axis)]:
            return name, (axis,)
        case [str(name), None]:
            return name, ()
        case [str(name), [*axes]] if all(isinstance(axis, str) for axis in axes):
            return name, tuple(map(str, axes))
    raise config.fault(
        f"{RULES} has {shown(rule)}; write pairs such as [activation_embed, [tensor]]"
    )
