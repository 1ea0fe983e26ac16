"""The keys of a plan: their spellings, their types, and their words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

from tpusim.base.errors import PlanError
from tpusim.base.grouped_keys import GroupedKeys
from tpusim.base.value_checks import choices_of
from tpusim.graph import Remat
from tpusim.graph.remat import Policy
from tpusim.plan.attention_kernel import AttentionKernel, BackwardKernels
from tpusim.plan.axes import Rule
from tpusim.plan.compiler import Collectives, Compiler, Lowering, Style
from tpusim.plan.context import Context, ContextExchanges
from tpusim.plan.experts import Dispatch, ExpertExchange, Experts
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

PLAN_KEYS = GroupedKeys(
    owner="Plan",
    prefix="plan.",
    error=PlanError,
    groups={
        "remat": Remat,
        "optimizer": Optimizer,
        "dtypes": Numerics,
        "compiler": Compiler,
        "attention_kernel": AttentionKernel,
        "context": Context,
        "experts": Experts,
        "pipeline": Pipeline,
    },
    own=(Training, Sharding),
    needed=("mesh", "global_batch"),
    table={
        "mesh": ("", "mesh"),
        "seq_len": ("", "seq_len"),
        "global_batch": ("", "global_batch"),
        "microbatches": ("", "microbatches"),
        "gradient_reduction": ("", "gradient_reduction"),
        "remat": ("remat", "policy"),
        "save": ("remat", "save"),
        "offload": ("remat", "offload"),
        "scan_layers": ("remat", "scan_layers"),
        "rules": ("", "rules"),
        "annotate": ("", "annotate"),
        "placement": ("", "placement"),
        "optimizer": ("optimizer", "name"),
        "dtype": ("dtypes", "compute"),
        "matmul_dtype": ("dtypes", "matmul"),
        "matmul_dtype_dx": ("dtypes", "matmul_dx"),
        "matmul_dtype_dw": ("dtypes", "matmul_dw"),
        "quantisation_noise": ("dtypes", "noise"),
        "param_dtype": ("dtypes", "param"),
        "moment_dtype": ("dtypes", "moment"),
        "grad_dtype": ("dtypes", "grad"),
        "lowering": ("compiler", "lowering"),
        "collectives": ("compiler", "collectives"),
        "style": ("compiler", "style"),
        "collective_matmul": ("compiler", "collective_matmul"),
        "offload_optimizer": ("optimizer", "offload"),
        "weight_update_axes": ("optimizer", "axes"),
        "gather_dtype": ("dtypes", "gather"),
        "reduce_dtype": ("dtypes", "reduce"),
        "accumulator_dtype": ("dtypes", "accumulator"),
        "second_moment_dtype": ("dtypes", "second_moment"),
        "loss_dtype": ("dtypes", "loss"),
        "vocab_tiles": ("", "vocab_tiles"),
        "vocab_blocks": ("", "vocab_blocks"),
        "loss_labels": ("", "loss_labels"),
        "context_exchange": ("context", "exchange"),
        "context_balanced": ("context", "balanced"),
        "attention_block": ("attention_kernel", "block"),
        "attention_block_backward": ("attention_kernel", "block_backward"),
        "attention_backward": ("attention_kernel", "backward"),
        "input_s": ("", "input_s"),
        "loop": ("", "loop"),
        "capacity_factor": ("experts", "capacity_factor"),
        "dispatch": ("experts", "dispatch"),
        "expert_exchange": ("experts", "exchange"),
        "expert_buffer": ("experts", "buffer"),
        "expert_skew": ("experts", "skew"),
        "seed": ("experts", "seed"),
        "expert_tiles": ("experts", "tiles"),
        "schedule": ("pipeline", "schedule"),
        "virtual_stages": ("pipeline", "virtual_stages"),
        "stage_layers": ("pipeline", "stage_layers"),
        "without_passes": ("compiler", "without_passes"),
    },
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


class PlanKeys(TypedDict, total=False):
    """The keys of a plan that have defaults, as `Plan(...)` takes them; see its parts."""

    seq_len: int
    microbatches: int
    gradient_reduction: GradientReduction
    remat: Policy | Remat | Mapping[str, Any]
    save: Sequence[str]
    offload: Sequence[str]
    scan_layers: bool
    rules: Mapping[str, Rule]
    annotate: Mapping[str, Sequence[Rule]]
    placement: Mapping[str, Sequence[str]] | str | None
    optimizer: OptimizerName | Optimizer | Mapping[str, Any]
    dtype: WideDtype
    matmul_dtype: MatmulDtype
    matmul_dtype_dx: MatmulDtype
    matmul_dtype_dw: MatmulDtype
    quantisation_noise: NoiseDtype
    param_dtype: WideDtype
    moment_dtype: WideDtype
    grad_dtype: WideDtype
    lowering: Lowering
    collectives: Collectives
    style: Style
    collective_matmul: bool
    offload_optimizer: bool
    weight_update_axes: Sequence[str]
    gather_dtype: GatherDtype
    reduce_dtype: OptionalDtype
    accumulator_dtype: OptionalDtype
    second_moment_dtype: OptionalDtype
    loss_dtype: OptionalDtype
    vocab_tiles: int
    vocab_blocks: int
    loss_labels: LossLabels
    context_exchange: ContextExchanges
    context_balanced: bool
    attention_block: Sequence[int]
    attention_block_backward: Sequence[int]
    attention_backward: BackwardKernels
    input_s: float
    loop: Loop
    capacity_factor: float
    dispatch: Dispatch
    expert_exchange: ExpertExchange
    expert_buffer: float
    expert_skew: float
    seed: int
    expert_tiles: Sequence[int]
    schedule: ScheduleName
    virtual_stages: int
    stage_layers: Sequence[int]
    without_passes: Sequence[str]
    dtypes: Numerics | Mapping[str, Any]
    compiler: Compiler | Mapping[str, Any]
    attention_kernel: AttentionKernel | Mapping[str, Any]
    context: Context | Mapping[str, Any]
    experts: Experts | Mapping[str, Any]
    pipeline: Pipeline | Mapping[str, Any]


def _plan_choices() -> Iterator[tuple[str, tuple[str, ...]]]:
    for key, (group, name) in PLAN_KEYS.table.items():
        owner: Any = PLAN_KEYS.groups[group] if group else PARTS[PART_OF[name]]
        if words := choices_of(owner).get(name):
            yield key, tuple(word for word in words if word)


PLAN_CHOICES: Mapping[str, tuple[str, ...]] = dict(_plan_choices())
"""The words of each flat key that takes one of some; they are those of its field's type."""
