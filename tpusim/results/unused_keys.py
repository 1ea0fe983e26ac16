"""Keys of a plan that change nothing: what each needs of the model, the mesh or other keys.

`NEEDS` has a row for each need, with the keys that have no effect without it. Rules have needs of
their own (`idle_rules`), and names in a key are checked where they are read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tpusim.base.plain_text import plain
from tpusim.graph import Attention, Op, layer_matrices, walk
from tpusim.lowering import matmul_key
from tpusim.models import Architecture
from tpusim.partition import exchanged_by, idle_rules, layouts, update_layouts
from tpusim.pipeline.planned_step import planned_graph
from tpusim.plan import ALL_TO_ALL, PLAN_KEYS, Axes, Plan
from tpusim.results.extra_flops import PartitionedStep


def unused_keys(model: Architecture, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each key of `plan` that has no effect for `model`, with the reason."""
    step = KeyEffects(model, plan)
    for key in dict.fromkeys(key for need in NEEDS for key in need.keys):
        if step.gives(key) and (need := step.unmet(key)):
            yield f"plan.{key} is not used, as {need.without.format(name=plain(model.name))}"
    yield from _too_much_capacity(step)
    yield from idle_rules(step.inner.sharding, step.graph, step.rules)


@dataclass(frozen=True)
class KeyEffects(PartitionedStep):
    """A step, and what its model and its plan make of each other."""

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """All operations of the graph."""
        return tuple(op for op, _ in walk(self.graph.ops))

    def axes(self, rule: str) -> Axes:
        """Return the axes of a rule, those larger than one."""
        return dict(self.rules.table)[rule]

    @cached_property
    def usual(self) -> Mapping[str, Any]:
        """The defaults of all keys."""
        return Plan(mesh=self.plan.mesh, global_batch=self.plan.global_batch).flat()

    def gives(self, key: str) -> bool:
        """Return True for a key with another value than the default, however that is written."""
        group, field = PLAN_KEYS.field_of(key)
        value, usual = self.plan.flat()[key], self.usual[key]
        if key == "schedule" and self.plan.stages > 1:
            return self.plan.active_schedule != self.plan.replace(schedule=usual).active_schedule
        if key == "context_exchange" and not isinstance(value, str):
            return set(value.values()) != {usual}
        if group == "dtypes" and field != "noise":
            return self.plan.dtypes.of(field) != self.plan.replace(**{key: usual}).dtypes.of(field)
        return bool(value != usual)

    def unmet(self, key: str) -> "Need | None":
        """Return the first need of a key that is not met; None if all are."""
        return next((n for n in NEEDS if key in n.keys and not n.met(self, key)), None)

    def reads(self, key: str) -> bool:
        """Return True if a key changes something."""
        return self.unmet(key) is None

    def changes_graph(self, key: str) -> bool:
        """Return True if the graph is another than with the default of a key."""
        return planned_graph(self.model, self.plan.replace(**{key: self.usual[key]})) != self.graph

    @cached_property
    def matmul_keys(self) -> frozenset[str]:
        """The keys of the dtypes of the matmuls that there are."""
        weights = frozenset(weight.tensor.name for weight in self.graph.parameters)
        return frozenset(matmul_key(op, weights) for op in self.ops)

    @cached_property
    def divides_updates(self) -> bool:
        """True if the axes of updates divide some weight further."""
        sharding, axes = self.inner.sharding, tuple(self.plan.optimizer.axes)
        found = layouts(self.graph, sharding, self.rules)
        return bool(update_layouts(self.graph, sharding, axes, found))

    @property
    def has_experts(self) -> bool:
        """True if a router chooses experts."""
        return "expert" in self.graph.sizes

    @property
    def rounds_gradients(self) -> bool:
        """True if gradients are quantised."""
        dtypes = self.plan.dtypes
        return any(
            key != "matmul_dtype" and key in self.matmul_keys and dtype != dtypes.compute
            for key, dtype in dtypes.matmuls.items()
        )


class Need(NamedTuple):
    """What some keys need.

    met: whether a step has it.
    without: why the keys are not used if it has not, after "as".
    """

    keys: tuple[str, ...]
    met: Callable[[KeyEffects, str], bool]
    without: str


def _with_kernel(step: KeyEffects, backward: bool) -> bool:
    return any(isinstance(op, Attention) and op.backward >= backward for op in step.ops)


def _sees_halves(step: KeyEffects, _: str) -> bool:
    return exchanged_by(step.plan.context, step.axes("act_seq"), ALL_TO_ALL) != step.axes("act_seq")


NO_KERNEL = "nothing in the model is a fused attention kernel"
NO_LAYERS = "the model has no row of layers that are alike"

NEEDS = (
    Need(("seq_len",), lambda s, _: s.model.reads_text, "{name} reads no text"),
    Need(
        ("accumulator_dtype", "gradient_reduction"),
        lambda s, _: s.plan.microbatches > 1,
        "there is one microbatch",
    ),
    Need(
        ("moment_dtype", "second_moment_dtype", "offload_optimizer"),
        lambda s, _: s.plan.optimizer.name != "sgd",
        "sgd keeps no moments",
    ),
    Need(
        ("optimizer",),
        lambda s, _: s.plan.optimizer.name != "muon" or bool(layer_matrices(s.graph)),
        "the model has no matrices of layers, which alone muon updates otherwise than adam",
    ),
    Need(("weight_update_axes",), lambda s, _: s.divides_updates, "it divides no weight further"),
    Need(
        ("schedule", "virtual_stages", "stage_layers"),
        lambda s, _: bool(s.plan.active_schedule),
        "the mesh has one stage",
    ),
    Need(
        (
            *("expert_exchange", "expert_tiles", "expert_sort_gradient"),
            *("expert_group", "expert_buffer", "expert_skew", "dispatch"),
        ),
        lambda s, _: s.has_experts,
        "the model has no experts",
    ),
    Need(
        ("expert_tiles",),
        lambda s, _: not s.plan.experts.capacity_factor,
        "experts with a capacity are batched matmuls",
    ),
    Need(
        ("expert_exchange", "expert_skew", "expert_buffer"),
        lambda s, _: bool(s.axes("act_expert")),
        "each device has all experts",
    ),
    Need(("seed",), lambda s, _: bool(s.plan.experts.skew), "plan.expert_skew is 0"),
    Need(
        ("context_exchange", "context_balanced"),
        lambda s, _: bool(s.axes("act_seq")),
        "no axis shards the sequence",
    ),
    Need(
        ("context_balanced",),
        lambda s, _: any(isinstance(op, Attention) and op.causal for op in s.ops),
        "the model has no causal attention kernel",
    ),
    Need(("context_balanced",), _sees_halves, "kernels see whole sequences of fewer heads"),
    Need(
        ("attention_block", "attention_library"),
        lambda s, _: _with_kernel(s, backward=False),
        NO_KERNEL,
    ),
    Need(
        ("attention_block_backward", "attention_backward"),
        lambda s, _: _with_kernel(s, backward=True),
        NO_KERNEL,
    ),
    Need(
        ("vocab_blocks", "loss_labels", "logits_dtype"),
        KeyEffects.changes_graph,
        "the model has no loss over a vocabulary",
    ),
    Need(("loss_dtype",), KeyEffects.changes_graph, "the compiler fuses the cast with the loss"),
    Need(("trainable",), KeyEffects.changes_graph, "it names all weights"),
    Need(
        ("remat", "scan_layers"),
        lambda s, key: s.model.has_layers or s.changes_graph(key),
        NO_LAYERS,
    ),
    Need(
        ("matmul_dtype", "matmul_dtype_dx", "matmul_dtype_dw"),
        lambda s, key: key in s.matmul_keys,
        "the model has no matmuls that it is for",
    ),
    Need(("quantisation_noise",), lambda s, _: s.rounds_gradients, "no gradient is quantised"),
)
"""The needs of keys, of which the first that is not met is told."""


def _too_much_capacity(step: KeyEffects) -> Iterator[str]:
    """Yield a sentence for a capacity that is larger than every expert can use."""
    factor = step.plan.experts.capacity_factor
    most = step.graph.sizes["expert"] / step.graph.sizes["choice"] if step.has_experts else factor
    if factor > most:
        yield (
            f"plan.capacity_factor is {factor:g}, but at {most:g} each "
            "expert has a slot for every token, and no more are made"
        )
