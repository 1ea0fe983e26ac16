"""MaxText's logical axis rules (base.yml), as sharding rules of a plan."""

from collections.abc import Iterator, Mapping
from typing import Any

from tpusim.base.errors import nearest
from tpusim.base.shown_value import shown
from tpusim.maxtext.config import MaxTextConfig
from tpusim.maxtext.shipped_tables import RULES, shipped
from tpusim.plan import DEFAULT_RULES, STYLE_RULES
from tpusim.plan.axes import Axes

LATENT, LAYER_EMBED = ("q_rank", "kv_rank"), "layer_embed"
"""Dimensions that latent attention alone has, and the width of tables that layers have."""

OLDER = {"heads": "q_heads"}
"""Logical axes by an older name."""

INACTIVE_AXES = ("norm", "layers")
"""Logical axes of small weights, which a model's config may change without effect here."""

APART = ("stage", "expert", "dcn_stage", "dcn_expert")
"""Axes of the mesh that shard pipelines and experts, whatever rules say of other dimensions."""

_LOGICAL = {key: row["name"] for key, row in shipped("logical_axes").items()}
"""MaxText's logical axis of each key of a plan's rules."""

_ALSO = {
    name: row["name"] for row in shipped("logical_axes").values() for name in row.get("also", ())
}
"""Logical axes of the same dimension in a part of the model, and the one that stands for it."""


def rules_of(config: MaxTextConfig, mesh: Mapping[str, int]) -> dict[str, Any]:
    """Return `rules` of the plan: MaxText's on this mesh, where they differ from the style's."""
    latent = config.text("attention_type") == "mla"
    layer_embed = config.size("hidden_size_per_layer_input", least=0) > 0
    absent = (*(() if latent else LATENT), *(() if layer_embed else (LAYER_EMBED,)))
    given, style = _given(config), {**DEFAULT_RULES, **STYLE_RULES["maxtext"]}
    for name, of in _ALSO.items():
        if name in given and _differ(mesh, given[name], _axes_of(given, of)):
            raise config.fault(
                f"{RULES} shards {name} otherwise than {of}, which cannot be simulated; write the "
                "same axes for both"
            )
    rules: dict[str, Any] = {}
    table = shipped("logical_axes")
    sequence = _axes_on(mesh, table["act_seq"]["axes"])
    for key, row in table.items():
        axes = _axes_on(mesh, _axes_of(given, row["name"]))
        if key == "act_residual_seq":
            axes = tuple(axis for axis in axes if axis not in sequence)
        if set(axes) != {axis for axis in style[key] if axis in mesh} and key not in absent:
            rules[key] = axes
    if config.flag("shard_exp_on_fsdp") and config.size("num_experts") > 1:
        rules["expert"] = _axes_on(mesh, ("expert", "fsdp"))
    return {"rules": rules} if rules else {}


def rule_notes(config: MaxTextConfig, mesh: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence on changed rules that hold for more than MaxText 0.2.5 shards by them."""
    given = _given(config)
    for name in dict.fromkeys(_ALSO.values()):
        row = next(row for row in shipped("logical_axes").values() if row["name"] == name)
        rest = [other for other in row["also"] if other not in given]
        own = () if config.flag("override_logical_axis_rules") else row["axes"]
        if rest and name in given and _differ(mesh, given[name], own):
            yield f"the rule of {name} holds for {', '.join(rest)} too, which MaxText has rules for"


def _axes_of(given: Mapping[str, Axes], name: str) -> Axes:
    """Return the axes of a logical axis: those given, or MaxText's."""
    rows = shipped("logical_axes").values()
    own: Axes = next(row["axes"] for row in rows if row["name"] == name)
    return given.get(name, own)


def _differ(mesh: Mapping[str, int], one: Axes, other: Axes) -> bool:
    """Return True if two rules differ on the mesh, but for axes of pipelines and experts."""
    first, second = ({*_axes_on(mesh, axes)} - {*APART} for axes in (one, other))
    return first != second


def _axes_on(mesh: Mapping[str, int], names: Axes) -> Axes:
    """Return the axes that the mesh has; those across slices come first, as in MaxText."""
    both = (*(f"dcn_{name}" for name in names), *names)
    return tuple(axis for axis in both if axis in mesh)


def _given(config: MaxTextConfig) -> Mapping[str, tuple[str, ...]]:
    """Return the first rule of each logical axis; later ones are for where it cannot hold.

    With `override_logical_axis_rules`, axes without a rule are not sharded.
    """
    wheres = [where for where in (config.over, config.model, config.file) if RULES in where]
    alone = config.flag("override_logical_axis_rules") and bool(wheres)
    found: dict[str, tuple[str, ...]] = {}
    for where in wheres[:1] if alone else wheres:
        rules = where[RULES]
        if not isinstance(rules, list):
            raise config.fault(f"{RULES} is {shown(rules)}; write a list of rules")
        of_this: dict[str, tuple[str, ...]] = {}
        for rule in rules:
            name, axes = _rule(config, rule)
            of_this.setdefault(OLDER.get(name, name), axes)
            known = (*_LOGICAL.values(), *_ALSO, *OLDER, *INACTIVE_AXES)
            if where is config.over and name not in known:
                raise config.fault(
                    f"{RULES} changes {name!r}, which cannot be simulated; "
                    f"{nearest(name, _LOGICAL.values())}"
                )
        found = {**of_this, **found}
    return dict.fromkeys(_LOGICAL.values(), ()) | found if alone else found


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
