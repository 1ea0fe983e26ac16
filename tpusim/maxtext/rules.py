"""The sharding rules of a config, where they are not those of the `maxtext` style."""

from collections.abc import Iterator, Mapping
from typing import Any

from tpusim.errors import nearest
from tpusim.maxtext.config import RULES, Config
from tpusim.maxtext.file import shown

BATCH = ("data", "fsdp", "fsdp_transpose", "expert")
WEIGHTS = ("fsdp", "fsdp_transpose", "sequence", "tensor_transpose", "context", "expert")
MLP = ("fsdp_transpose", "tensor", "tensor_sequence")
WIDE = ("tensor", "tensor_transpose", "tensor_sequence")

LOGICAL: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "activation_batch": ("act_batch", BATCH),
    "activation_length": ("act_seq", ("context",)),
    "activation_embed": ("act_embed", ("tensor", "tensor_transpose")),
    "activation_mlp": ("act_mlp", WIDE),
    "activation_heads": ("act_heads", WIDE),
    "activation_kv_heads": ("act_kv_heads", WIDE),
    "activation_vocab": ("act_vocab", WIDE),
    "embed": ("embed", WEIGHTS),
    "mlp": ("mlp", MLP),
    "q_heads": ("heads", WIDE),
    "heads": ("heads", WIDE),
    "kv_heads": ("kv_heads", WIDE),
    "vocab": ("vocab", WIDE),
}
"""MaxText's logical axes, the key of a plan's rules that each is, and the mesh axes that MaxText's
own rules give it. Axes that a mesh has not, such as those of decoding, are left out."""

HARMLESS = ("norm", "layers")
"""Logical axes that a model's config changes, of weights too small to matter here."""


def rules_of(config: Config, mesh: Mapping[str, int]) -> dict[str, Any]:
    """`rules` of the plan: those of fsdp_transpose, and what `logical_axis_rules` changes."""
    rules = {**_transposed(mesh), **_experts(config, mesh), **dict(_changed(config, mesh))}
    return {"rules": rules} if rules else {}


def _transposed(mesh: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The other dimension of weights over fsdp_transpose, which shards the batch too."""
    if not {"fsdp_transpose", "dcn_fsdp_transpose"} & mesh.keys():
        return {}
    other = _axes(("fsdp_transpose", "tensor"), mesh)
    rules = dict.fromkeys(("mlp", "heads", "kv_heads", "vocab"), other)
    return rules | {"act_batch": _axes(BATCH, mesh)}


def _experts(config: Config, mesh: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Weights of experts with whole experts on each place of fsdp."""
    if not config.flag("shard_exp_on_fsdp") or config.size("num_experts") == 1:
        return {}
    return {"expert": _axes(("expert", "fsdp"), mesh)}


def _axes(names: tuple[str, ...], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of the mesh among them; those across slices come first, as MaxText has them."""
    both = (*(f"dcn_{name}" for name in names), *names)
    return tuple(axis for axis in both if axis in mesh)


def _changed(config: Config, mesh: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The rules that are not MaxText's own, on the axes of this mesh."""
    given = _given(config)
    for name, (key, own) in LOGICAL.items():
        if name not in given or (name == "heads" and "q_heads" in given):
            continue
        axes = _axes(given[name], mesh)
        if set(axes) != set(_axes(own, mesh)):
            yield key, axes


def _given(config: Config) -> Mapping[str, tuple[str, ...]]:
    """The first rule of each logical axis; what follows it is for where it cannot hold."""
    found: dict[str, tuple[str, ...]] = {}
    for where in (config.over, config.written):
        rules = where.get(RULES, [])
        if not isinstance(rules, list):
            raise config.fault(f"{RULES} is {shown(rules)}; write a list of rules")
        of_this: dict[str, tuple[str, ...]] = {}
        for rule in rules:
            name, axes = _rule(config, rule)
            of_this.setdefault(name, axes)
            if where is config.over and name not in LOGICAL and name not in HARMLESS:
                raise config.fault(
                    f"{RULES} changes {name!r}, which cannot be simulated; {nearest(name, LOGICAL)}"
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
