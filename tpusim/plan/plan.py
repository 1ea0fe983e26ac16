"""The plan: everything that a user decides about how a model runs on a slice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.grouped_keys import GroupedFields, GroupedKeys
from tpusim.base.html_text import html_table
from tpusim.base.shown_value import cut
from tpusim.base.units import format_seconds
from tpusim.base.value_checks import (
    check_name,
    check_positive,
    check_words,
    choices_of,
    is_list,
    seconds,
)
from tpusim.graph import Remat
from tpusim.plan.attention_kernel import AttentionKernel
from tpusim.plan.axes import Rule
from tpusim.plan.compiler import Compiler
from tpusim.plan.context import Context
from tpusim.plan.dtypes import Dtypes
from tpusim.plan.experts import Experts
from tpusim.plan.optimizer import Optimizer
from tpusim.plan.pipeline import Pipeline, stages_of
from tpusim.plan.placement_text import read_placement

PLAN_KEYS = GroupedKeys(
    owner="Plan",
    prefix="plan.",
    error=PlanError,
    groups={
        "remat": Remat,
        "optimizer": Optimizer,
        "dtypes": Dtypes,
        "compiler": Compiler,
        "attention_kernel": AttentionKernel,
        "context": Context,
        "experts": Experts,
        "pipeline": Pipeline,
    },
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

Loop: TypeAlias = Literal["asynchronous", "synchronous"]
LOOPS: tuple[Loop, ...] = get_args(Loop)
"""Training loops: what the host does while a step runs."""

GradientReduction: TypeAlias = Literal["per-microbatch", "per-step"]
GRADIENT_REDUCTIONS: tuple[GradientReduction, ...] = get_args(GradientReduction)
"""When the gradients of weights are summed over devices."""

LossLabels: TypeAlias = Literal["mask", "index"]
LABELS: tuple[LossLabels, ...] = get_args(LossLabels)
"""How the loss finds the logits of the labels."""

LONGEST_CELL = 200
"""Characters of a value in a notebook."""

_TABLE_EXAMPLES = {
    "mesh": "{'fsdp': 256, 'tensor': 8}",
    "rules": "{'act_embed': 'tensor'}",
    "annotate": "{'layer/q': ['fsdp', None, 'tensor', None]}",
}
"""An example of each field that is a table."""


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Plan(GroupedFields):
    """A sharding plan.

    Its constructor takes the fields below, and each field of a group also by a flat key
    (`PLAN_KEYS`): `Plan(mesh=..., remat="minimal", gather_dtype="int8")` is
    `Plan(mesh=..., remat=Remat("minimal"), dtypes={"gather": "int8"})`. Flat keys can be read too
    (`plan.gather_dtype`), but for `remat` and `optimizer`, which are the groups. Values may be
    NumPy's, as a data frame holds them; NaN, which it holds where a row has no value, is refused.

    mesh: axis -> size, in devices; axes named `dcn_...` run across slices.
    seq_len: tokens per example, for models that read text; 0 for others.
    global_batch: sequences per step, over all devices.
    microbatches: parts of the global batch that run one after the other; their gradients are added
        up, and the optimizer runs once.
    gradient_reduction: when the gradients of weights are summed over devices: `per-microbatch`, as
        the compiler does, so that what is added up has the layout of the weights; or `per-step`,
        as programs do that write their own collectives: each device adds up its own terms, whole
        where gathered weights were read, and they are summed after the last microbatch in the
        accumulators' dtype.
    vocab_tiles: parts of a device's tokens for which the loss is computed one after the other, so
        that the logits of one part are in HBM; they are computed again in the backward pass.
    vocab_blocks: blocks of the vocabulary for which the loss is computed one after the other, with
        a running sum of exponentials; logits are computed again in the backward pass.
    loss_labels: how the loss finds the logits of the labels: by a `mask` (one_hot, or
        take_along_axis, which XLA turns into one), or by `index` (`logits[rows, labels]`), whose
        gradient is a scatter into that of the logits.
    input_s: seconds that the host needs to make the batch of a step. It makes the next one while a
        step runs, so no step is shorter.
    loop: `asynchronous` if the host starts a step while the one before runs; `synchronous` if it
        reads the loss of each step before it starts the next, so that the devices wait for it.
    rules: dimension -> axes, over `default_rules.py`; `act_` before a dimension means
        activations, without it weights.
    annotate: tensor -> one axis (or axes, or None) per dimension; the rest propagates from there.
    placement: axis -> torus dimensions or parts of them (`{"tensor": ["x", "y[:2]"]}`), or as text,
        as results and the frames of sweeps have it (`tensor=8 on x,y[:2] · fsdp=64 on y[::2],z`;
        `;` is as good as `·`, and sizes may be left out); chosen when not given or empty.
    remat: the tensors kept for the backward pass, and their place.
    optimizer: the optimizer and the place of its state.
    dtypes: of weights, gradients, matmuls and collectives.
    compiler: the compiler that is assumed.
    attention_kernel: the blocks and backward kernels of fused attention.
    context: the exchange of keys and values of sharded sequences.
    experts: the routing of tokens to experts.
    pipeline: the schedule over stages.
    """

    KEYS: ClassVar[GroupedKeys] = PLAN_KEYS
    mesh: Mapping[str, int]
    seq_len: int = 0
    global_batch: int
    microbatches: int = 1
    gradient_reduction: GradientReduction = GRADIENT_REDUCTIONS[0]
    vocab_tiles: int = 1
    vocab_blocks: int = 1
    loss_labels: LossLabels = LABELS[0]
    input_s: float = 0.0
    loop: Loop = LOOPS[0]
    rules: Mapping[str, Rule] = field(default_factory=dict)
    annotate: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    placement: Mapping[str, Sequence[str]] | None = None
    remat: Remat = field(default_factory=Remat)
    optimizer: Optimizer = field(default_factory=Optimizer)
    dtypes: Dtypes = field(default_factory=Dtypes)
    compiler: Compiler = field(default_factory=Compiler)
    attention_kernel: AttentionKernel = field(default_factory=AttentionKernel)
    context: Context = field(default_factory=Context)
    experts: Experts = field(default_factory=Experts)
    pipeline: Pipeline = field(default_factory=Pipeline)

    def __init__(self, *, mesh: Mapping[str, int], global_batch: int, **keys: Any) -> None:
        needed = {"mesh": mesh, "global_batch": global_batch}
        self._fill(needed | keys)
        self._check()

    def _check(self) -> None:
        for key in ("mesh", "rules", "annotate", "placement"):  # the caller's may change
            if isinstance(value := getattr(self, key), dict):
                object.__setattr__(self, key, dict(value))
        if self.seq_len or not isinstance(self.seq_len, int):
            check_positive("plan.seq_len", self.seq_len)
        for key in ("global_batch", "microbatches", "vocab_tiles", "vocab_blocks"):
            check_positive(f"plan.{key}", getattr(self, key))
        object.__setattr__(self, "input_s", seconds("plan.input_s", self.input_s))
        check_words("plan", self)
        for key, example in _TABLE_EXAMPLES.items():
            if not isinstance(getattr(self, key), Mapping):
                raise PlanError(
                    f"plan.{key} is {getattr(self, key)!r}; write a table, such as {example}"
                )
        if not self.mesh:
            raise PlanError("plan.mesh is empty; write at least one axis, such as fsdp = 256")
        for axis, size in self.mesh.items():
            check_name("plan.mesh", axis)
            check_positive(f"plan.mesh.{axis}", size)
        for key, rule in self.rules.items():
            _check_rule(f"plan.rules.{key}", rule)
        if isinstance(self.placement, str):
            object.__setattr__(self, "placement", read_placement(self.placement, self.mesh))
        for name, given in self.annotate.items():
            if not is_list(given):
                raise PlanError(
                    f"plan.annotate.{name} is {given!r}; write an entry for each dimension, such "
                    "as ['fsdp', None]"
                )
            for position, rule in enumerate(given):
                _check_rule(f"plan.annotate.{name}[{position}]", rule)

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh.values())

    @property
    def active_axes(self) -> dict[str, int]:
        """The axes that are larger than one; the others change nothing."""
        return {axis: size for axis, size in self.mesh.items() if size > 1}

    @property
    def stages(self) -> int:
        """Stages of the pipeline; 1 where there is none."""
        return stages_of(self.mesh)

    @property
    def active_schedule(self) -> str:
        """The schedule of the pipeline; empty where there is none."""
        return self.pipeline.active_schedule(self.stages)

    @property
    def microbatch(self) -> int:
        """Sequences that run at a time, over all devices; partitioning checks that they divide."""
        return max(self.global_batch // self.microbatches, 1)

    @property
    def reduces_once(self) -> bool:
        """True if gradients of several microbatches are added up before they are reduced."""
        return self.microbatches > 1 and self.gradient_reduction == GRADIENT_REDUCTIONS[1]

    @property
    def finished_dtype(self) -> str:
        """The dtype in which the optimizer finds the gradients."""
        summed = self.microbatches > 1 or self.stages > 1
        return self.dtypes.of("accumulator" if summed else "grad")

    def check_together(self) -> None:
        """Raise PlanError for keys that contradict each other.

        This is checked when a plan is simulated, as a sweep of several keys makes such plans in
        between.
        """
        try:
            self.pipeline.check_together(self.mesh, self.remat.offload)
            self.pipeline.check_size(self.stages, self.microbatches)
            self.experts.check_together()
            self.optimizer.check_together(self.mesh)
            self._check_blocks()
        except PlanError as error:
            raise PlanError(PLAN_KEYS.with_flat_keys(str(error))) from error

    def _check_blocks(self) -> None:
        """Raise PlanError for blocks of the vocabulary that the plan cannot have."""
        where = f"plan.vocab_blocks is {self.vocab_blocks}"
        if self.vocab_blocks > 1 and self.vocab_tiles > 1:
            raise PlanError(
                f"{where} and plan.vocab_tiles is {self.vocab_tiles}; set only one of them"
            )
        if self.vocab_blocks > 1 and self.stages > 1:
            raise PlanError(
                f"{where}, which a pipeline cannot have; write vocab_tiles instead, or stage = 1"
            )

    def __str__(self) -> str:
        return ", ".join(self._phrases())

    def _repr_html_(self) -> str:
        """Return the plan's words and the keys that are not the default's, for a notebook."""
        usual = Plan(mesh=self.mesh, global_batch=self.global_batch).flat()
        changed = {key: value for key, value in self.flat().items() if value != usual[key]}
        shown = {"mesh": self.mesh, "global_batch": self.global_batch} | changed
        rows = ((key, cut(str(value), LONGEST_CELL)) for key, value in shown.items())
        return html_table(f"Plan: {self}", rows)

    def _phrases(self) -> Iterator[str]:
        mesh = " x ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        parts = f" in {self.microbatches} microbatches" if self.microbatches > 1 else ""
        yield f"mesh {mesh}"
        each = f" x {self.seq_len} tokens" if self.seq_len else ""
        yield f"batch {self.global_batch}{each}{parts}"
        if self.gradient_reduction != GRADIENT_REDUCTIONS[0]:
            yield f"gradients reduced {self.gradient_reduction.replace('-', ' ')}"
        yield from self.pipeline.phrases(self.stages)
        saved = f" + {', '.join(self.remat.save)}" if self.remat.save else ""
        yield f"remat {self.remat.policy}{saved}"
        if not self.remat.scan_layers:
            yield "layers not scanned"
        moved = [*self.remat.offload, *(["optimizer state"] if self.optimizer.offload else [])]
        if moved:
            yield f"on the host: {', '.join(moved)}"
        if self.vocab_tiles > 1:
            yield f"loss in {self.vocab_tiles} tiles"
        if self.vocab_blocks > 1:
            yield f"loss over {self.vocab_blocks} blocks of the vocabulary"
        if self.loss_labels != LABELS[0]:
            yield "labels by index"
        yield from self.attention_kernel.phrases()
        yield from self.context.phrases()
        yield str(self.dtypes)
        parts = f" in parts over {', '.join(self.optimizer.axes)}" if self.optimizer.axes else ""
        yield f"{self.optimizer.name}{parts}"
        yield str(self.compiler)
        yield from self.experts.phrases()
        if self.input_s:
            yield f"input made in {format_seconds(self.input_s)}"
        if self.loop != LOOPS[0]:
            yield f"{self.loop} loop"


def _check_rule(where: str, value: Any) -> None:
    listed = isinstance(value, Sequence) and all(isinstance(axis, str) for axis in value)
    if value is not None and not listed:
        raise PlanError(f"{where} is {value!r}; write an axis, a list of axes or None")


def _plan_choices() -> Iterator[tuple[str, tuple[str, ...]]]:
    for key, (group, name) in PLAN_KEYS.table.items():
        owner: Any = PLAN_KEYS.groups[group] if group else Plan
        if words := choices_of(owner).get(name):
            yield key, tuple(word for word in words if word)


PLAN_CHOICES: Mapping[str, tuple[str, ...]] = dict(_plan_choices())
"""The words of each flat key that takes one of some; they are those of its field's type."""
