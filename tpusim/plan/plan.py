"""The plan: everything that a user decides about how a model runs on a slice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, Unpack, overload

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import ArgumentError, PlanError
from tpusim.base.grouped_keys import GroupedFields, GroupedKeys
from tpusim.base.html_text import html_table
from tpusim.base.shown_value import cut
from tpusim.base.units import format_mesh
from tpusim.graph import Adapters, Remat
from tpusim.plan.attention_kernel import AttentionKernel
from tpusim.plan.axes import Rule
from tpusim.plan.compiler import Compiler
from tpusim.plan.context import Context
from tpusim.plan.experts import Experts
from tpusim.plan.keys import KINDS, PART_OF, PARTS, PLAN_KEYS, WHOLE_PARTS, PlanKeys
from tpusim.plan.numerics import Numerics
from tpusim.plan.optimizer import Optimizer
from tpusim.plan.pipeline import Pipeline
from tpusim.plan.sharding import Sharding
from tpusim.plan.training import GRADIENT_REDUCTIONS, GradientReduction, Loop, LossLabels, Training

Value = TypeVar("Value")

LONGEST_CELL = 200
"""Characters of a value in a notebook."""


class Of(Generic[Value]):
    """A key or a group that is read through the plan: `plan.mesh` is `plan.sharding.mesh`."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, plan: None, owner: type) -> Self: ...

    @overload
    def __get__(self, plan: "Plan", owner: type) -> Value: ...

    def __get__(self, plan: "Plan | None", owner: type) -> "Self | Value":
        if plan is None:
            return self
        found: Value = getattr(getattr(plan, self._part), self._name)
        return found


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Plan(GroupedFields):
    """A sharding plan.

    Its constructor takes the fields of its parts, and each field of a group also by a flat key
    (`PLAN_KEYS`): `Plan(mesh=..., remat="minimal", gather_dtype="int8")` is
    `Plan(mesh=..., remat=Remat("minimal"), dtypes={"gather": "int8"})`. Flat keys can be read too
    (`plan.gather_dtype`), but for `remat` and `optimizer`, which are the groups. Values may be
    NumPy's, as a data frame holds them; NaN, which it holds where a row has no value, is refused.

    sharding: the mesh and what its axes shard: mesh, rules, annotate, placement, and the groups
        context and experts. Partitioning reads it.
    numerics: the dtypes of weights, gradients, matmuls and collectives (the group dtypes). The
        lowering of a body reads it, with the sharding and the compiler.
    compiler: the compiler that is assumed, with the blocks of its attention kernel.
    training: the frame around forward and backward pass: batch, microbatches, loss, input, loop,
        the weights that are trained, and the groups adapters, remat,
        optimizer and pipeline.
    """

    KEYS: ClassVar[GroupedKeys] = PLAN_KEYS
    sharding: Sharding
    numerics: Numerics
    compiler: Compiler
    training: Training

    mesh = Of[Mapping[str, int]]("sharding")
    rules = Of[Mapping[str, Rule]]("sharding")
    annotate = Of[Mapping[str, Sequence[Rule]]]("sharding")
    placement = Of[Mapping[str, Sequence[str]] | None]("sharding")
    context = Of[Context]("sharding")
    experts = Of[Experts]("sharding")
    devices = Of[int]("sharding")
    active_axes = Of[dict[str, int]]("sharding")
    stages = Of[int]("sharding")
    attention_kernel = Of[AttentionKernel]("compiler")
    seq_len = Of[int]("training")
    global_batch = Of[int]("training")
    microbatches = Of[int]("training")
    microbatch = Of[int]("training")
    gradient_reduction = Of[GradientReduction]("training")
    reduces_once = Of[bool]("training")
    vocab_tiles = Of[int]("training")
    vocab_blocks = Of[int]("training")
    loss_labels = Of[LossLabels]("training")
    input_s = Of[float]("training")
    loop = Of[Loop]("training")
    trainable = Of[Sequence[str]]("training")
    adapters = Of[Adapters]("training")
    remat = Of[Remat]("training")
    optimizer = Of[Optimizer]("training")
    pipeline = Of[Pipeline]("training")

    if TYPE_CHECKING:

        def __init__(self, **keys: Unpack[PlanKeys]) -> None: ...

    else:  # `dataclasses.replace` gives the parts

        def __init__(self, **keys: Any) -> None:
            self._fill(keys)

    def _fill(self, keys: Mapping[str, Any]) -> None:
        parts = {name: keys[name] for name in PARTS} if "sharding" in keys else {}
        changes = {key: value for key, value in keys.items() if key not in parts}
        for name, part in self._changed(parts, changes).items():
            object.__setattr__(self, name, part)

    @classmethod
    def _changed(cls, parts: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return all parts with some keys changed; those that are not given have the defaults."""
        old = {}
        for group in PLAN_KEYS.groups:
            if group in WHOLE_PARTS and WHOLE_PARTS[group] in parts:
                old[group] = parts[WHOLE_PARTS[group]]
            elif PART_OF.get(group) in parts:
                old[group] = getattr(parts[PART_OF[group]], group)
        found = PLAN_KEYS.fields_of(changes, KINDS, old)
        if missing := [k for k in PLAN_KEYS.needed if k not in found and PART_OF[k] not in parts]:
            raise ArgumentError(
                f"Plan needs {' and '.join(missing)}; write Plan(mesh=..., global_batch=...)"
            )
        made = dict(parts) | {
            WHOLE_PARTS[name]: found.pop(name) for name in tuple(found) if name in WHOLE_PARTS
        }
        for name, kind in PARTS.items():
            own = {key: value for key, value in found.items() if PART_OF[key] == name}
            if name not in made:
                made[name] = kind(**own)
            elif own:
                made[name] = replace(made[name], **own)
        return made

    def replace(self, **keys: Any) -> Self:
        """Return a copy with some keys changed, flat or grouped; the rest of a group stays.

        `plan.replace(remat="full", dtypes={"gather": "int8"})`. A sweep's paths are keys as well:
        `plan.replace(**{"dtypes.gather": "int8"})`.
        """
        parts = {name: getattr(self, name) for name in PARTS}
        made: Any = self._changed(parts, keys)
        return type(self)(**made)

    @property
    def dtypes(self) -> Numerics:
        """The numerics, by the name of their group."""
        return self.numerics

    @property
    def active_schedule(self) -> str:
        """The schedule of the pipeline; empty where there is none."""
        return self.pipeline.active_schedule(self.stages)

    @property
    def finished_dtype(self) -> str:
        """The dtype in which the optimizer finds the gradients."""
        summed = self.microbatches > 1 or self.stages > 1
        return self.numerics.of("accumulator" if summed else "grad")

    @property
    def as_compiled(self) -> Self:
        """The plan with the dtypes that programs of its style have.

        MaxText casts a weight within its layer, so that the loop over layers stacks the gradient of
        the weight itself, in its dtype: f32 in 10 of 10 of its own programs, which reduce it in
        bf16 before (0.2.4 and 0.2.5; `data`, `fsdp` and both, with and without rings, on v4, v5e,
        v5p and v6e; libtpu 0.0.42.1 and 0.0.52). Layers that are not scanned have no stacks, and
        those of its pipelines were not seen.
        """
        scanned = self.remat.scan_layers and not self.active_schedule
        stacks = self.compiler.style == "maxtext" and scanned
        if self.numerics.grad or not stacks or self.numerics.param != "f32":
            return self
        return self.replace(grad_dtype="f32")

    def check_together(self) -> None:
        """Raise PlanError for keys that contradict each other.

        This is checked when a plan is simulated, as a sweep of several keys makes such plans in
        between.
        """
        try:
            self.pipeline.check_together(self.mesh, self.remat.offload)
            self.pipeline.check_size(self.stages, self.microbatches)
            self.experts.check_together()
            self.adapters.check_together()
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
        mesh = format_mesh(self.mesh)
        parts = f" in {self.microbatches} microbatches" if self.microbatches > 1 else ""
        yield f"mesh {mesh}"
        each = f" x {self.seq_len} tokens" if self.seq_len else ""
        yield f"batch {self.global_batch}{each}{parts}"
        if self.gradient_reduction != GRADIENT_REDUCTIONS[0]:
            yield f"gradients reduced {self.gradient_reduction.replace('-', ' ')}"
        yield from self.pipeline.phrases(self.stages)
        yield from self.training.trained_phrases()
        yield from self.training.saving_phrases()
        yield from self.training.loss_phrases()
        yield from self.attention_kernel.phrases()
        yield from self.context.phrases()
        yield str(self.dtypes)
        parts = f" in parts over {', '.join(self.optimizer.axes)}" if self.optimizer.axes else ""
        yield f"{self.optimizer.name}{parts}"
        yield str(self.compiler)
        yield from self.experts.phrases()
        yield from self.training.loop_phrases()
