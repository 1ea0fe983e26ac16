"""The sharding rules of a config, where they are not those of the `maxtext` style."""

from collections.abc import Mapping
from typing import Any

from tpusim.errors import nearest
from tpusim.maxtext.config import RULES, Config
from tpusim.maxtext.file import shown
from tpusim.partition.default_rules import DEFAULT_RULES, STYLE_RULES

BATCH = ("data", "fsdp", "fsdp_transpose", "expert")
WEIGHTS = ("fsdp", "fsdp_transpose", "context", "context_usp_ulysses", "expert")
WIDE = ("tensor", "tensor_sequence")
SEQUENCE = ("context", "context_usp_ulysses")

OWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "act_batch": ("activation_batch", BATCH),
    "act_seq": ("activation_length", SEQUENCE),
    "act_residual_seq": ("activation_norm_length", ("tensor_sequence",)),
    "act_embed": ("activation_embed", ("tensor",)),
    "act_mlp": ("activation_mlp", WIDE),
    "act_heads": ("activation_heads", WIDE),
    "act_kv_heads": ("activation_kv_heads", WIDE),
    "act_vocab": ("activation_vocab", WIDE),
    "embed": ("embed", WEIGHTS),
    "q_rank": ("q_lora", WEIGHTS),
    "kv_rank": ("kv_lora", WEIGHTS),
    "mlp": ("mlp", ("fsdp_transpose", *WIDE)),
    "heads": ("q_heads", WIDE),
    "kv_heads": ("kv_heads", WIDE),
    "vocab": ("vocab", WIDE),
}
"""The keys of a plan's rules, MaxText's logical axis that each is, and the axes of the mesh that
MaxText gives it. Left out are axes that cannot be simulated, such as those of decoding."""

LATENT = ("q_rank", "kv_rank")
"""Dimensions that latent attention alone has."""

OLDER = {"heads": "q_heads"}
"""Logical axes by an older name."""

HARMLESS = ("norm", "layers")
"""Logical axes that a model's config changes, of weights too small to matter here."""

_LOGICAL = tuple(name for name, _ in OWN.values())


def rules_of(config: Config, mesh: Mapping[str, int]) -> dict[str, Any]:
    """`rules` of the plan: MaxText's on the axes of this mesh, where the style's are others."""
    given, style = _given(config), {**DEFAULT_RULES, **STYLE_RULES["maxtext"]}
    rules = {}
    for key, (name, own) in OWN.items():
        axes = _axes(given.get(name, own), mesh)
        if key == "act_residual_seq":
            axes = tuple(axis for axis in axes if axis not in _axes(SEQUENCE, mesh))
        usual = {axis for axis in style.get(key, ()) if axis in mesh}
        of_others = key in LATENT and config.text("attention_type") != "mla"
        if key in style and set(axes) != usual and not of_others:
            rules[key] = axes
    if config.flag("shard_exp_on_fsdp") and config.size("num_experts") > 1:
        rules["expert"] = _axes(("expert", "fsdp"), mesh)
    return {"rules": rules} if rules else {}


def _axes(names: tuple[str, ...], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of the mesh among them; those across slices come first, as MaxText has them."""
    both = (*(f"dcn_{name}" for name in names), *names)
    return tuple(axis for axis in both if axis in mesh)


def _given(config: Config) -> Mapping[str, tuple[str, ...]]:
    """The first rule of each logical axis; what follows it is for where it cannot hold."""
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
            if where is config.over and name not in (*_LOGICAL, *OLDER, *HARMLESS):
                raise config.fault(
                    f"{RULES} changes {name!r}, which cannot be simulated; "
                    f"{nearest(name, _LOGICAL)}"
                )
        found = {**of_this, **found}
    return found


def _rule(config: Config, rule: object) -> tuple[str, tuple[str, ...]]:
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
