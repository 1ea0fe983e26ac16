"""The keys of a plan: their spellings, their types, and their words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Required, TypedDict

from tpusim.base.errors import PlanError
from tpusim.base.grouped_keys import GroupedKeys, flat_keys_of
from tpusim.base.value_checks import choices_of
from tpusim.graph import Adapters, Remat
from tpusim.graph.remat import Policy
from tpusim.plan.attention_kernel import AttentionKernel, AttentionLibrary, BackwardKernels
from tpusim.plan.axes import Rule
from tpusim.plan.compiler import Collectives, Compiler, Lowering, Style
from tpusim.plan.context import Context, ContextExchanges
from tpusim.plan.experts import Dispatch, ExpertExchange, Experts, SortGradient
from tpusim.plan.numerics import (
    GatherDtype,
    MatmulDtype,
    NoiseDtype,
    Numerics,
    OptionalDtype,
    WideDtype,
)
from tpusim.plan.optimizer import Optimizer, OptimizerName
from tpusim.plan.pipeline import Pipeline, ScheduleName
from tpusim.plan.sharding import Sharding
from tpusim.plan.training import GradientReduction, Loop, LossLabels, Training


class PlanKeys(TypedDict, total=False):
    """The keys of a `Plan`, in the order in which files list them; see its parts.

    A key of a group names the group and the field that it is. `remat` and `optimizer` are the
    policy and the name, or the groups.
    """

    mesh: Mapping[str, int]
    seq_len: int
    global_batch: Required[int]
    microbatches: int
    gradient_reduction: GradientReduction
    remat: Annotated[Policy | Remat | Mapping[str, Any], "remat.policy"]
    save: Annotated[Sequence[str], "remat.save"]
    offload: Annotated[Sequence[str], "remat.offload"]
    scan_layers: Annotated[bool, "remat.scan_layers"]
    trainable: Sequence[str]
    adapter_rank: Annotated[int, "adapters.rank"]
    adapter_weights: Annotated[Sequence[str], "adapters.weights"]
    rules: Mapping[str, Rule]
    annotate: Mapping[str, Sequence[Rule]]
    placement: Mapping[str, Sequence[str]] | str | None
    optimizer: Annotated[OptimizerName | Optimizer | Mapping[str, Any], "optimizer.name"]
    dtype: Annotated[WideDtype, "dtypes.compute"]
    matmul_dtype: Annotated[MatmulDtype, "dtypes.matmul"]
    matmul_dtype_dx: Annotated[MatmulDtype, "dtypes.matmul_dx"]
    matmul_dtype_dw: Annotated[MatmulDtype, "dtypes.matmul_dw"]
    quantisation_noise: Annotated[NoiseDtype, "dtypes.noise"]
    param_dtype: Annotated[WideDtype, "dtypes.param"]
    moment_dtype: Annotated[WideDtype, "dtypes.moment"]
    grad_dtype: Annotated[OptionalDtype, "dtypes.grad"]
    lowering: Annotated[Lowering, "compiler.lowering"]
    collectives: Annotated[Collectives, "compiler.collectives"]
    style: Annotated[Style, "compiler.style"]
    collective_matmul: Annotated[bool, "compiler.collective_matmul"]
    offload_optimizer: Annotated[bool, "optimizer.offload"]
    weight_update_axes: Annotated[Sequence[str], "optimizer.axes"]
    gather_dtype: Annotated[GatherDtype, "dtypes.gather"]
    reduce_dtype: Annotated[OptionalDtype, "dtypes.reduce"]
    accumulator_dtype: Annotated[OptionalDtype, "dtypes.accumulator"]
    second_moment_dtype: Annotated[OptionalDtype, "dtypes.second_moment"]
    logits_dtype: Annotated[OptionalDtype, "dtypes.logits"]
    loss_dtype: Annotated[OptionalDtype, "dtypes.loss"]
    vocab_tiles: int
    vocab_blocks: int
    loss_labels: LossLabels
    context_exchange: Annotated[ContextExchanges, "context.exchange"]
    context_balanced: Annotated[bool, "context.balanced"]
    attention_block: Annotated[Sequence[int], "attention_kernel.block"]
    attention_block_backward: Annotated[Sequence[int], "attention_kernel.block_backward"]
    attention_backward: Annotated[BackwardKernels, "attention_kernel.backward"]
    attention_library: Annotated[AttentionLibrary, "attention_kernel.library"]
    input_s: float
    loop: Loop
    capacity_factor: Annotated[float, "experts.capacity_factor"]
    expert_group: Annotated[int, "experts.group"]
    dispatch: Annotated[Dispatch, "experts.dispatch"]
    expert_exchange: Annotated[ExpertExchange, "experts.exchange"]
    expert_sort_gradient: Annotated[SortGradient, "experts.sort_gradient"]
    expert_buffer: Annotated[float, "experts.buffer"]
    expert_skew: Annotated[float, "experts.skew"]
    seed: Annotated[int, "experts.seed"]
    expert_tiles: Annotated[Sequence[int], "experts.tiles"]
    schedule: Annotated[ScheduleName, "pipeline.schedule"]
    virtual_stages: Annotated[int, "pipeline.virtual_stages"]
    stage_layers: Annotated[Sequence[int], "pipeline.stage_layers"]
    without_passes: Annotated[Sequence[str], "compiler.without_passes"]
    dtypes: Numerics | Mapping[str, Any]
    compiler: Compiler | Mapping[str, Any]
    attention_kernel: AttentionKernel | Mapping[str, Any]
    adapters: Adapters | Mapping[str, Any]
    context: Context | Mapping[str, Any]
    experts: Experts | Mapping[str, Any]
    pipeline: Pipeline | Mapping[str, Any]


_GROUPS = {
    "remat": Remat,
    "optimizer": Optimizer,
    "dtypes": Numerics,
    "compiler": Compiler,
    "attention_kernel": AttentionKernel,
    "adapters": Adapters,
    "context": Context,
    "experts": Experts,
    "pipeline": Pipeline,
}

PLAN_KEYS = GroupedKeys(
    owner="Plan",
    prefix="plan.",
    error=PlanError,
    groups=_GROUPS,
    own=(Training, Sharding),
    needed=tuple(key for key in PlanKeys.__annotations__ if key in PlanKeys.__required_keys__),
    table=flat_keys_of(PlanKeys, _GROUPS),
)
"""Every flat key of a plan, in the order in which files list them."""

PARTS: Mapping[str, Any] = {
    "training": Training,
    "sharding": Sharding,
    "numerics": Numerics,
    "compiler": Compiler,
}
"""The class of each part of a plan."""

WHOLE_PARTS = {
    group: part
    for part, kind in PARTS.items()
    for group, of in PLAN_KEYS.groups.items()
    if of is kind
}
"""The part that a group is the whole of."""

PART_OF = {field.name: part for part, kind in PARTS.items() for field in fields(kind)}
"""The part that has each group or key of the plan's own."""

KINDS: Mapping[tuple[str, str], Any] = {
    (home, field.name): field.type
    for home, kind in (*(("", kind) for kind in PLAN_KEYS.own), *PLAN_KEYS.groups.items())
    for field in fields(kind)
}
"""The type of each group and field; the group is empty for the plan's own."""


def _plan_choices() -> Iterator[tuple[str, tuple[str, ...]]]:
    for key, (group, name) in PLAN_KEYS.table.items():
        owner: Any = PLAN_KEYS.groups[group] if group else PARTS[PART_OF[name]]
        if words := choices_of(owner).get(name):
            yield key, tuple(word for word in words if word)


PLAN_CHOICES: Mapping[str, tuple[str, ...]] = dict(_plan_choices())
"""The words of each flat key that takes one of some; they are those of its field's type."""
