"""Logical axis rules: the mesh axes that shard each dimension, for weights and for activations.

The words are those of JAX codes' logical axis rules (Flax, MaxText): a rule maps a dimension to
one axis or several. A tensor takes each axis once, the first dimension first. An axis that a
dimension is too small for is dropped for that dimension, which is then replicated over it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from tpusim.base.divisors import divisor_up_to
from tpusim.base.errors import PlanError, nearest
from tpusim.base.units import format_mesh
from tpusim.graph import (
    ADAPTER_RANK,
    COPIES,
    INPUT,
    KEYS,
    PART_DOT,
    Graph,
    Tensor,
    TensorRole,
    is_sequence,
    plain_dim,
    walk,
    whole_dim,
)
from tpusim.partition.context import (
    CONTEXT,
    check_exchange,
    check_sequence,
    exchanged_by,
    few_heads,
    kernel_rules,
    kernel_tensors,
    named_axes,
)
from tpusim.partition.expert_load import check_experts
from tpusim.partition.layout import Layout
from tpusim.plan import (
    ALL_TO_ALL,
    DEFAULT_RULES,
    STAGE_AXES,
    STYLE_RULES,
    Axes,
    Sharding,
    Style,
    axes_of,
    check_known,
    check_once,
)

WHOLE = ""
"""The key of dimensions that no rule shards: those of adapters, which MaxText replicates (0.2.5,
lora_utils.py). An annotation shards them."""

_EXACT = ("act_batch", "act_seq", "act_residual_seq", "expert", "act_expert")
"""Dimensions that their axes must divide: none of these is replicated if it is too small."""

_SIZE_OF = {"norm": "embed", "act_residual_seq": "seq"}
"""The dimension of a rule that is not named after it."""

_SEQ = "seq"
"""The sequence whose rules others inherit."""

_BASE_DIMS = frozenset(key.removeprefix("act_") for key in DEFAULT_RULES)

_AS_EMBED = ("q_rank", "kv_rank", "layer_embed")
"""Dimensions that few models have, of weights that lack `embed`; their default rule is its own."""

_NORMED = ("embed", "head_dim", *_AS_EMBED)
"""Dimensions whose weights of one dimension are replicated: scales of norms, and biases of the
residual stream. A bias of another dimension is sharded as the matmul's result (Flax's `Dense`)."""


@dataclass(frozen=True, slots=True)
class ShardingRules:
    """The rules in force: only axes that are larger than one, for the dimensions of one graph.

    dropped: (dimension, size, axis, size) where a dimension is smaller than its axis.
    exchanged: axes that shard the sequence outside of attention kernels, and heads within them.
    kernels: names of the tensors of those kernels.
    style: of the programs whose rules they are.
    fixed: tensors with layouts that no rule gives, by name.
    """

    table: tuple[tuple[str, Axes], ...]
    dropped: tuple[tuple[str, int, str, int], ...]
    exchanged: Axes = ()
    kernels: frozenset[str] = frozenset()
    style: Style = "plain"
    fixed: tuple[tuple[str, Layout], ...] = ()

    def layout(self, tensor: Tensor) -> Layout:
        """Return the layout that the rules give a tensor."""
        if (own := dict(self.fixed).get(tensor.name)) is not None:
            return own
        table = dict(self.table)
        taken: set[str] = set()
        layout = []
        for dim in tensor.dims:
            key = _key(tensor, dim)
            if tensor.name in self.kernels:
                key = key.replace("act_", "kernel_")
            axes = tuple(a for a in table.get(key, ()) if a not in taken)
            taken.update(axes)
            layout.append(axes)
        return tuple(layout)


def resolve_rules(sharding: Sharding, graph: Graph, style: Style = "plain") -> ShardingRules:
    """Return the rules of a sharding for the dimensions of `graph`.

    style: whose programs' rules are the default.

    Raise PlanError for a rule on a dimension or an axis that does not exist, and for a mesh axis
    that shards nothing.
    """
    sizes = graph.sizes
    active = sharding.active_axes
    table, dropped = {}, []
    for key, axes in _given_rules(sharding, style, sizes).items():
        size = _size_of(key, sizes)
        kept = tuple(axis for axis in axes if axis in active)
        while kept and not _is_exact(key) and prod(active[a] for a in kept) > size > 0:
            dropped.append((key.removeprefix("act_"), size, kept[-1], active[kept[-1]]))
            kept = kept[:-1]
        table[key] = kept
    _check_axes_used(sharding, table, dropped)
    check_experts(sharding, (table["expert"], table["act_expert"]), sizes)
    check_exchange(sharding, table)
    check_sequence(sharding, table, sizes)
    table |= kernel_rules(sharding, graph, table)
    exchanged = exchanged_by(sharding.context, table["act_seq"], ALL_TO_ALL)
    kernels = kernel_tensors(graph) if exchanged else frozenset()
    dropped += few_heads(sharding, graph, table) if exchanged else []
    return ShardingRules(tuple(table.items()), distinct_drops(dropped), exchanged, kernels, style)


def rule_prefixes(sharding: Sharding, style: Style, graph: Graph) -> Iterator[tuple[str, Axes]]:
    """Yield the axes that may be too large for a dimension, with its name in the graph.

    A dimension is sharded over the longest of them that it is large enough for, for each of its
    rules: plans for which the same ones are have the same rules.
    """
    found: dict[tuple[str, Axes], None] = {}
    for key, axes in _given_rules(sharding, style, graph.sizes).items():
        dim = _dim_of(key)
        if dim in graph.sizes and not _is_exact(key):
            kept = tuple(axis for axis in axes if axis in sharding.mesh)
            found.update(((dim, kept[:count]), None) for count in range(1, len(kept) + 1))
    yield from found


def distinct_drops(
    dropped: Iterable[tuple[str, int, str, int]],
) -> tuple[tuple[str, int, str, int], ...]:
    """Return each dimension that is replicated over an axis once, in order."""
    return tuple({(dim, axis): (dim, size, axis, n) for dim, size, axis, n in dropped}.values())


def rule_of(tensor: Tensor, dim: str) -> str:
    """Return the key of the rule for a dimension of a tensor, as a plan writes it."""
    return _written_key(_key(tensor, dim).replace("act_residual_", "act_"))


def idle_rules(sharding: Sharding, graph: Graph, rules: ShardingRules) -> Iterator[str]:
    """Yield a sentence for each rule of a sharding that gives an axis to no tensor of `graph`.

    Axes of size one are left out, and those that are dropped because a dimension is too small.
    """
    given: dict[str, set[str]] = {}
    for op, _ in walk(graph.ops):
        for tensor in (*op.inputs, *op.outputs):
            for dim, axes in zip(tensor.dims, rules.layout(tensor), strict=True):
                for key in _followed(_key(tensor, dim)):
                    given.setdefault(key, set()).update(axes)
    dropped = {(plain_dim(dim), axis) for dim, _, axis, _ in rules.dropped}
    for written, rule in sharding.rules.items():
        key = _own_key(written)
        dim = _SIZE_OF.get(key, key.removeprefix("act_"))
        if key not in given and f"act_{key}" in given:
            yield (
                f"plan.rules.{written} is not used, as it is for weights and none has the "
                f"dimension {dim}; the rule for activations is {_written_key(f'act_{key}')}"
            )
        elif key not in given:
            what = "dimension"
            if dim in graph.sizes:
                what = f"{'activation' if key.startswith('act_') else 'weight'} of dimension"
            yield f"plan.rules.{written} is not used, as the model has no {what} {dim}"
        else:
            idle = [a for a in axes_of(rule) if a in sharding.active_axes and a not in given[key]]
            idle = [axis for axis in idle if (plain_dim(dim), axis) not in dropped]
            for axis in idle:
                yield (
                    f"plan.rules.{written} gives {axis} to no tensor: another dimension has it "
                    "already"
                )
            if not idle and _is_default(sharding, written, graph, rules):
                why = "this mesh has the same rules without it"
                yield f"plan.rules.{written} is not used, as {why}"


def _is_default(sharding: Sharding, written: str, graph: Graph, rules: ShardingRules) -> bool:
    """Return True if the rules are the same without one of them."""
    others = {key: rule for key, rule in sharding.rules.items() if key != written}
    try:
        found = resolve_rules(replace(sharding, rules=others), graph, rules.style)
    except PlanError:
        return False
    return dict(found.table) == dict(rules.table)


def _followed(key: str) -> Iterator[str]:
    """Yield the keys of the rules that a dimension of a tensor may follow: its own first.

    `act_image.heads` follows `act_heads`, and `act_residual_target_seq` `act_residual_seq` and
    `act_seq`.
    """
    kind = next((one for one in ("act_residual_", "act_") if key.startswith(one)), "")
    dim = key.removeprefix(kind)
    plain = plain_dim(dim).removeprefix(INPUT)
    names = (
        dim,
        plain,
        *((f"{KEYS}{_SEQ}" if plain.startswith(KEYS) else _SEQ,) if is_sequence(dim) else ()),
    )
    for one in dict.fromkeys((kind, "act_" if kind else "")):
        yield from dict.fromkeys(f"{one}{name}" for name in names)


def weights_are_tiled(
    sharding: Sharding, style: Style, updated: Axes = (), over: Axes = ()
) -> bool:
    """Return True if weights are sharded over all axes of the mesh but stages'.

    updated: axes over which updates are divided.
    over: axes of a collective. One over axes that divide updates is of gradients or of updated
        weights, and these are sharded over the axes of the updates too.

    No device then has a part of a weight that another has too, as with an axis of data alone. The
    default rules of dimensions that repeat that of `embed`, and that few models have, do not count.
    """
    named = named_axes(sharding.context, sharding.mesh)
    default = {key: rule for key, rule in DEFAULT_RULES.items() if key not in _AS_EMBED}
    rules = {**default, **STYLE_RULES[style], **sharding.rules}
    given = {
        axis
        for key, rule in rules.items()
        if not key.startswith("act_") and key != "norm"
        for axis in axes_of(rule)
    }
    given |= set(named) if CONTEXT in given else set()
    given |= set() if set(over).isdisjoint(updated) else set(updated)
    return set(sharding.active_axes) - set(STAGE_AXES) <= given


def _given_rules(sharding: Sharding, style: Style, sizes: Mapping[str, int]) -> dict[str, Axes]:
    """Return all axes of each rule, larger than one or not.

    sizes: of the dimensions of a graph.
    """
    merged = {
        **_default_rules(sharding),
        **STYLE_RULES[style],
        **_user_rules(sharding, sizes),
    }
    merged["act_residual_seq"] = tuple(
        dict.fromkeys((*merged["act_seq"], *merged["act_residual_seq"]))
    )
    merged[f"act_{COPIES}"] = merged["act_heads"]
    return {**_inherited(merged, sizes), **merged}


def _dim_of(key: str) -> str:
    """Return the dimension whose size the axes of a rule may exceed."""
    return _SIZE_OF.get(key, key.removeprefix("act_"))


def _size_of(key: str, sizes: Mapping[str, int]) -> int:
    return sizes.get(_dim_of(key), 0)


def _default_rules(sharding: Sharding) -> Mapping[str, Axes]:
    """Return the default rules, with the axes of `context_exchange` in place of `context`.

    One that shards the dimension anyway, as `fsdp` does weights, stays where it is.
    """
    named = named_axes(sharding.context, sharding.mesh)
    return {
        key: tuple(
            dict.fromkeys(a for axis in axes for a in (named if axis == CONTEXT else (axis,)))
        )
        for key, axes in DEFAULT_RULES.items()
    }


def _inherited(rules: Mapping[str, Axes], sizes: Mapping[str, int]) -> dict[str, Axes]:
    """Return rules for the dimensions of parts of a model, and for sequences of other names.

    `image.heads` and `in_heads` have the rule of `heads`, `target_seq` that of `seq`.
    """
    found = {}
    for dim in {whole_dim(dim) for dim in sizes} - set(_BASE_DIMS):
        plain = plain_dim(dim).removeprefix(INPUT)
        like = plain
        if is_sequence(dim):
            like = f"{KEYS}{_SEQ}" if plain.startswith(KEYS) else _SEQ
        for kind in ("", "act_", "act_residual_"):
            given = rules.get(f"{kind}{plain}", rules.get(f"{kind}{like}"))
            if given is not None:
                found[f"{kind}{dim}"] = given
    return found


def _user_rules(sharding: Sharding, sizes: Mapping[str, int]) -> dict[str, Axes]:
    dims = {whole_dim(dim) for dim in sizes}
    dims |= {plain_dim(dim) for dim in dims}
    valid = {*DEFAULT_RULES, *dims, *(f"act_{dim}" for dim in dims)}
    rules = {}
    for written, rule in sharding.rules.items():
        key = _own_key(written)
        if key not in valid:
            known = {_written_key(one) for one in valid}
            raise PlanError(
                f"plan.rules.{written} names no dimension of the model: {nearest(written, known)}"
            )
        rules[key] = axes_of(rule)
        check_once(f"plan.rules.{written}", rules[key])
        check_known(f"plan.rules.{written} shards", rules[key], sharding.mesh)
    return rules


def _is_exact(key: str) -> bool:
    """Return True for a dimension that its axes must divide; the batch of a part is one, too."""
    return key in _EXACT or _of_parts(key) == "act_batch"


def _of_parts(key: str) -> str:
    """Return a key without the part of the model that its dimension belongs to."""
    kind = "act_" if key.startswith("act_") else ""
    return f"{kind}{plain_dim(key.removeprefix(kind))}"


def _own_key(written: str) -> str:
    """Return the key of a rule as a plan writes it: `image.act_heads` is `act_image.heads`."""
    part, dot, rule = written.rpartition(PART_DOT)
    kind = "act_" if rule.startswith("act_") else ""
    return f"{kind}{part}{dot}{rule.removeprefix(kind)}"


def _written_key(key: str) -> str:
    """Return a key as a plan writes it, the inverse of `_own_key`."""
    kind = "act_" if key.startswith("act_") else ""
    part, dot, dim = key.removeprefix(kind).rpartition(PART_DOT)
    return f"{part}{dot}{kind}{dim}"


def _check_axes_used(
    sharding: Sharding, table: Mapping[str, Axes], dropped: Iterable[tuple[str, int, str, int]]
) -> None:
    used = {axis for axes in table.values() for axis in axes} | {axis for _, _, axis, _ in dropped}
    noted = (rule for given in sharding.annotate.values() for rule in given)
    used |= {axis for rule in noted for axis in axes_of(rule)}
    for axis in sharding.active_axes:
        if axis not in used:
            names = sorted({a for axes in DEFAULT_RULES.values() for a in axes} | {*STAGE_AXES})
            raise PlanError(
                f"plan.mesh.{axis} shards nothing: no rule and no annotation names it; add one, "
                f"such as act_batch = [{axis!r}], or write an axis that has some: "
                f"{nearest(axis, names)}"
            )


def check_batch(
    sharding: Sharding, rules: ShardingRules, graph: Graph, global_batch: int, microbatches: int
) -> None:
    """Raise PlanError for a batch that its axes do not divide, and for a graph of another batch.

    graph: of one microbatch.
    """
    for key, axes in rules.table:
        if _of_parts(key) == "act_batch":
            shards = prod(sharding.active_axes[axis] for axis in axes)
            if global_batch % (shards * microbatches):
                named = format_mesh(sharding.active_axes, axes)
                of = f"the {shards} shards of its axes ({named})" if axes else "1 shard"
                raise PlanError(_does_not_divide(global_batch, microbatches, shards, of))
    each = max(global_batch // microbatches, 1)
    if graph.sizes.get("batch", each) != each:
        raise PlanError(
            f"the graph has a batch of {graph.sizes['batch']}, but a microbatch of the plan has "
            f"{each} sequences; build the graph with batch = plan.microbatch"
        )


def _does_not_divide(batch: int, count: int, shards: int, of: str) -> str:
    """Return the message, with the nearest batches that divide, or fewer microbatches.

    count: microbatches.
    """
    parts = shards * count
    small = "is smaller than" if batch < parts else "does not divide by"
    nearby = sorted({max(batch // parts, 1) * parts, -(-batch // parts) * parts})
    hint = f"write a multiple, such as {' or '.join(map(str, nearby))}"
    if count > 1:
        of = f"{count} microbatches x {of} = {parts}"
    if batch % shards == 0:
        each = batch // shards
        fits = divisor_up_to(each, count)
        hint += f", or microbatches = {fits}"
    return f"plan.global_batch is {batch}, which {small} {of}; {hint}"


def _key(tensor: Tensor, dim: str) -> str:
    if tensor.role is not TensorRole.PARAM:
        residual = is_sequence(dim, keys=False) and "embed" in map(plain_dim, tensor.dims)
        return f"{'act_residual' if residual else 'act'}_{whole_dim(dim)}"
    if ADAPTER_RANK in tensor.dims and plain_dim(dim) not in (ADAPTER_RANK, "expert"):
        return WHOLE
    normed = len(tensor.dims) == 1 and plain_dim(dim) in _NORMED
    return "norm" if normed else whole_dim(dim)
