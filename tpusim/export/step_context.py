"""The facts of a step that its operations need when they are written as JAX."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from tpusim.base.errors import PlanError
from tpusim.base.units import format_mesh
from tpusim.export.names import DTYPES, entry, spec
from tpusim.export.served_arrays import ServedArrays
from tpusim.graph import (
    LAYER_IN,
    Attention,
    Einsum,
    Gather,
    Graph,
    Op,
    Remat,
    Scan,
    Tensor,
    TensorRole,
    training_step,
    walk,
)
from tpusim.partition import Layout, layouts, update_layouts
from tpusim.pipeline.planned_step import checked_rules
from tpusim.plan import STAGE_AXES, Plan, stage_plan

PADDABLE = "vocab"
"""The dimension that can be made longer without another model."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """A forward pass with the layout of each of its tensors.

    graph: forward pass and loss of one microbatch.
    layouts: layout of each tensor, by name.
    named: short names of tensors that a checkpoint policy saves by name.
    padded: (dimension, size that its axes divide) of each that they do not; JAX cuts arguments
        evenly.
    stages: the entry of the microbatches of a pipeline in shardings of tensors outside of its
        layers, as source; empty inside of them, and without a pipeline.
    order: parts of the sequence on different devices, where each device has an early and a late
        part of it; 1 where tokens are in order.
    updates: layouts of the weights that are updated in smaller parts than they are stored.
    served: the arrays of a step of a server; None for a step of training.
    """

    graph: Graph
    plan: Plan
    layouts: dict[str, Layout]
    named: frozenset[str]
    padded: dict[str, int]
    order: int
    stages: str = ""
    updates: Mapping[str, Layout] = field(default_factory=dict)
    served: ServedArrays | None = None

    def spec(self, tensor: Tensor, *lead: str, update: bool = False) -> str:
        """Return the sharding of a tensor as source.

        lead: entries of dimensions in front.
        update: the sharding of a weight while it is updated.

        The slots of experts without a capacity are rows, which their first three dimensions share.
        """
        layout = self.layouts[tensor.name]
        if update:
            layout = self.updates.get(tensor.name, layout)
        return spec(row_layout(layout) if self.in_rows(tensor) else layout, lead)

    def even_layout(self, tensor: Tensor) -> Layout:
        """Return the layout of an input, whole along dimensions that its axes do not divide.

        JAX cuts arguments evenly; such an input is cut where it is read.
        """
        mesh, sizes = self.plan.mesh, self.graph.sizes
        return tuple(
            () if sizes[dim] % prod(mesh[axis] for axis in axes) else axes
            for dim, axes in zip(tensor.dims, self.layouts[tensor.name], strict=True)
        )

    def in_rows(self, tensor: Tensor) -> bool:
        """Return True for slots of experts that have as many as chose them."""
        return "slot" in tensor.dims and not self.plan.experts.capacity_factor

    def value_spec(self, tensor: Tensor) -> str:
        """Return the sharding of an activation as source, with the microbatches of a pipeline."""
        return self.spec(tensor, *([self.stages] if self.stages else []))

    def dtype(self, tensor: Tensor) -> str:
        """Return JAX's name of the dtype of a tensor."""
        return "COMPUTE" if tensor.dtype == self.plan.dtypes.compute else DTYPES[tensor.dtype]

    @property
    def ids(self) -> tuple[Tensor, ...]:
        """The tokens that tables are read for: of the source, and of a target if there is one.

        None where the model reads more than tokens.
        """
        lookups = {op.ids.name: op.ids for op, _ in walk(self.graph.ops) if isinstance(op, Gather)}
        return () if self._given.keys() - lookups.keys() else tuple(lookups.values())

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the host gives of a model that reads more than tokens: images, texts, labels."""
        return () if self.ids else tuple(self._given.values())

    @property
    def _given(self) -> dict[str, Tensor]:
        """What the host gives each step, by name."""
        return {tensor.name: tensor for tensor in self.graph.given}

    @property
    def scans_layers(self) -> bool:
        """True if the layers are a scan; otherwise one follows the other in the program."""
        return self.plan.remat.scan_layers

    @property
    def casts_weights(self) -> bool:
        """True if weights are cast where they are used, and not once per step."""
        return self.plan.dtypes.of("grad") != self.plan.dtypes.compute

    @property
    def gathers_apart(self) -> bool:
        """True if weights are gathered in another dtype, and are then cast to that of compute."""
        dtypes = self.plan.dtypes
        return dtypes.of("gather") != dtypes.compute and not dtypes.gathers_quantised

    @property
    def moves_weights_apart(self) -> bool:
        """True if weights are gathered, or their gradients reduced, in another dtype."""
        return self.gathers_apart or self.plan.dtypes.of("reduce") != self.plan.dtypes.compute


def row_layout(layout: Layout) -> Layout:
    """Return the layout of rows, [row, width], of slots, [expert, batch, slot, width]."""
    experts, batch, slots, width = layout
    return ((*batch, *slots, *experts), width)


def step_context(graph: Graph, plan: Plan) -> StepContext:
    """Return the facts of a forward pass under a plan. Raise PlanError as partitioning does."""
    inner = stage_plan(plan)
    rules = checked_rules(inner, graph)
    table = dict(rules.table)
    causal = any(isinstance(op, Attention) and op.causal for op, _ in walk(graph.ops))
    balanced = causal and plan.context.balanced
    gathered = [axis for axis in table["act_seq"] if axis not in rules.exchanged]
    order = 1
    for axis in gathered if balanced else ():
        order *= plan.mesh[axis]
    found = layouts(graph, inner.sharding, rules)
    named = frozenset(_named(graph.ops, plan.remat, plan.dtypes.quantised))
    padded = dict(padded_sizes(graph, plan.mesh, found))
    stages = entry([axis for axis in STAGE_AXES if plan.mesh.get(axis, 1) > 1])
    axes = tuple(plan.optimizer.axes)
    step = training_step(graph, Remat())
    updates = dict(update_layouts(step, inner.sharding, axes, found))
    within = stages if plan.stages > 1 else ""
    return StepContext(graph, plan, found, named, padded, order, within, updates)


def padded_sizes(
    graph: Graph, mesh: Mapping[str, int], found: Mapping[str, Layout]
) -> Iterator[tuple[str, int]]:
    """Yield the padded size of each dimension that the axes of a weight do not divide.

    A longer vocabulary has tokens that no text contains; of other dimensions the model would be
    another one. Raise PlanError for these.
    """
    sizes = graph.sizes
    for weight in (parameter.tensor for parameter in graph.parameters):
        for dim, axes in zip(weight.dims, found[weight.name], strict=True):
            parts = prod(mesh[axis] for axis in axes)
            if sizes[dim] % parts and dim != PADDABLE:
                over = format_mesh(mesh, axes)
                raise PlanError(
                    f"the weight {weight.name} has {dim} = {sizes[dim]}, which {over} does not "
                    "divide; JAX cuts weights evenly, so write axes that divide it, or a rule that "
                    f"leaves it whole (rules.{dim} = [])"
                )
            if sizes[dim] % parts:
                yield dim, -(-sizes[dim] // parts) * parts


def _named(ops: tuple[Op, ...], remat: Remat, quantised: bool) -> Iterator[str]:
    """Yield the tensors that the policy of JAX does not save, and the plan does.

    They are those that the plan names, inputs of layers within an iteration, under `minimal` the
    results of matmuls with a weight for each expert, which have a batch dimension, and under `dots`
    those of grouped kernels, which are no dots. Of quantised matmuls JAX would save the results
    before they are scaled, so all are named.

    quantised: some matmuls are.
    """
    if remat.policy != "none":
        yield from (*remat.save, *remat.offload)
    for op in ops:
        if not isinstance(op, Scan) or op.recomputed or remat.policy == "none":
            continue
        for one in op.body:
            made = [tensor.short for tensor in one.outputs]
            yield from (name for name in made if name == LAYER_IN)
            if isinstance(one, Einsum) and _saved_by_name(one, remat, quantised):
                yield from made


def _saved_by_name(op: Einsum, remat: Remat, quantised: bool) -> bool:
    """Return True for a matmul that JAX's policy does not save; of experts, one with a weight."""
    if remat.policy == "minimal":
        per_expert = bool(set(op.lhs.dims) & set(op.rhs.dims) & set(op.output.dims))
        of_weight = any(tensor.role is TensorRole.PARAM for tensor in op.inputs)
        return of_weight and (per_expert or quantised)
    return remat.policy == "dots" and (op.ragged or quantised)
