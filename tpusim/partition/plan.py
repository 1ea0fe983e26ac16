"""The plan: everything that a user decides about how a model runs on a slice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tpusim.graph import COMPUTE, Remat
from tpusim.partition.keys import context, experts, pipeline, saving, tables
from tpusim.partition.keys.dtypes import unless_given
from tpusim.partition.keys.pipeline import STAGE_AXES
from tpusim.partition.keys.values import check_positive, seconds
from tpusim.partition.keys.words import check_words

Rule = str | Sequence[str] | None

__all__ = ["STAGE_AXES", "Plan", "Rule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A sharding plan.

    Mesh and layouts.
    mesh: axis -> size, in devices; axes named `dcn_...` run across slices.
    rules: dimension -> axes, over `default_rules.py`; `act_` before a dimension means
        activations, without it weights.
    annotate: tensor -> one axis (or axes, or None) a dimension; the rest propagates from there.
    placement: axis -> torus dimensions or parts of them (`{"tensor": ["x", "y[:2]"]}`); chosen
        when not given.

    Batch.
    seq_len, global_batch: tokens a sequence, sequences a step over all devices.
    microbatches: parts of the global batch that run one after the other; their gradients are added
        up, and the optimizer runs once.
    vocab_tiles: parts of a device's tokens for which the loss is computed one after the other, so
        that the logits of one part lie in HBM; they are computed again in the backward pass.
    input_s: seconds that the host needs to make the batch of a step. It makes the next one while a
        step runs, so no step is shorter.

    What is kept for the backward pass.
    remat, save: what the forward pass keeps (see `Remat`), and tensors saved besides.
    offload: tensors saved on the host instead of in HBM, from the forward to the backward pass; the
        input of a layer, `layer_in`, is one of them when it is named.
    offload_optimizer: the optimizer's moments stay on the host, and pass through HBM at the update.

    Optimizer and dtypes.
    optimizer: `adam`, `adafactor` or `sgd`.
    dtype, param_dtype, moment_dtype, grad_dtype: of matmuls and activations, of stored weights, of
        the optimizer's moments, and of the stacked gradients.
    matmul_dtype: in which the layers' matmuls with weights multiply: `bf16`, `int8` or `fp8`, or
        empty for `dtype`. Operands narrower than `dtype` are quantised before each matmul.
    matmul_dtype_dx, matmul_dtype_dw: the same for the two backward matmuls, of input gradients and
        of weight gradients; empty for `matmul_dtype`.
    gather_dtype: in which weights are gathered; empty for `dtype`. `param_dtype` gathers them as
        they are stored and casts each gathered copy; the `matmul_dtype` of quantised matmuls
        gathers what is quantised already.
    reduce_dtype: in which weight gradients leave their matmul and are reduced; empty for `dtype`.
    accumulator_dtype: in which the gradients of microbatches are added up; empty for `grad_dtype`.
        MaxText's accumulators have the dtype of the weights.
    second_moment_dtype: of the optimizer's second moments; empty for `moment_dtype`. `mu_dtype` of
        optax is the first moment's alone.
    loss_dtype: in which logits and their gradient are written to HBM; empty for `dtype`.

    Compiler.
    lowering: `xla`, what the compiler does today; `ideal`, what a perfect one would do.
    collectives: by the algorithm that the compiler picks (`xla`), or by the fastest (`best`).
    style: whose programs the `xla` lowering imitates: `plain` JAX or `maxtext`.

    Sharded sequences.
    context_exchange: how attention kernels see the keys and values of a sequence that `context`
        shards: each device gathers them (`gather`), they travel round the axis beside the kernel
        (`ring`), or heads are sharded instead of tokens in the kernel (`all-to-all`). Or axis ->
        way, for several axes, which then take the place of `context` in the default rules.
    context_balanced: each device has an early and a late part of a causal sequence, so that all see
        as many keys (MaxText's `context_parallel_load_balance`); else the last device has nearly
        twice the average, and all wait for it. The batch is reordered on input, which is free.

    Experts.
    capacity_factor: slots of each expert over its even share of the tokens of a sequence; what does
        not find one is dropped. 0 drops nothing: each expert has as many as chose it.
    dispatch: how tokens find their slots: by `sort`, through HBM, or by products with a `one_hot`
        mask; empty for a mask where there is a capacity, and else a sort.
    expert_exchange: how tokens reach experts on other devices: `all-to-all`; `gather`, where each
        device gathers all tokens, picks those of its experts, and results are scattered; or `ring`,
        a gather in a collective matmul on the way there, and an all-to-all back.
    expert_buffer: rows that a device has room for, for its experts, over the mean, where nothing is
        dropped: shapes are fixed, so passes through HBM and memory have them all, and only grouped
        kernels skip what is empty. 0 has room for all that could come (MaxText's
        `ragged_buffer_factor`, which drops what finds no room; here nothing is dropped).
    expert_skew: how unevenly experts are chosen, from 0, even, to 1, as chance has it; seed: of the
        one draw that all layers share. The busiest device decides. For what is not dropped.

    Pipeline.
    schedule: of the pipeline over the axes `stage` and `dcn_stage`, in which order a stage works on
        the microbatches: `gpipe`, `1f1b` (where it is empty), `interleaved`, `zb-h1`, `zb-h2`, or
        `circular`, one program in which idle stages compute garbage.
    virtual_stages: parts of the model that each stage has, for `interleaved` and `circular`.
    stage_layers: layers of each part, in the model's order, where they are not equal.
    """

    mesh: Mapping[str, int]
    seq_len: int
    global_batch: int
    microbatches: int = 1
    remat: str = "full"
    save: Sequence[str] = ()
    offload: Sequence[str] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    annotate: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    placement: Mapping[str, Sequence[str]] | None = None
    optimizer: str = "adam"
    dtype: str = "bf16"
    matmul_dtype: str = ""
    matmul_dtype_dx: str = ""
    matmul_dtype_dw: str = ""
    param_dtype: str = "f32"
    moment_dtype: str = "f32"
    grad_dtype: str = "bf16"
    lowering: str = "xla"
    collectives: str = "xla"
    style: str = "plain"
    offload_optimizer: bool = False
    gather_dtype: str = ""
    reduce_dtype: str = ""
    accumulator_dtype: str = ""
    second_moment_dtype: str = ""
    loss_dtype: str = ""
    vocab_tiles: int = 1
    context_exchange: str | Mapping[str, str] = "gather"
    context_balanced: bool = True
    input_s: float = 0.0
    capacity_factor: float = 0.0
    dispatch: str = ""
    expert_exchange: str = "all-to-all"
    expert_buffer: float = 0.0
    expert_skew: float = 0.0
    seed: int = 0
    schedule: str = ""
    virtual_stages: int = 1
    stage_layers: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_words(self)
        for key in ("seq_len", "global_batch", "microbatches", "vocab_tiles", "virtual_stages"):
            check_positive(f"plan.{key}", getattr(self, key))
        saving.check(self)
        context.check(self)
        object.__setattr__(self, "input_s", seconds("plan.input_s", self.input_s))
        experts.check(self)
        tables.check(self)
        pipeline.check(self)

    @property
    def devices(self) -> int:
        """Devices that the mesh asks for."""
        return prod(self.mesh.values())

    @property
    def active_axes(self) -> dict[str, int]:
        """The axes that are larger than one; the others change nothing."""
        return {axis: size for axis, size in self.mesh.items() if size > 1}

    @property
    def stages(self) -> int:
        """Stages of the pipeline; 1 where there is none."""
        return prod(self.mesh.get(axis, 1) for axis in STAGE_AXES)

    @property
    def pipeline(self) -> str:
        """The schedule of the pipeline; empty where there is none."""
        return (self.schedule or "1f1b") if self.stages > 1 else ""

    @property
    def microbatch(self) -> int:
        """Sequences that run at a time, over all devices; partitioning checks that they divide."""
        return max(self.global_batch // self.microbatches, 1)

    @property
    def remat_policy(self) -> Remat:
        """The rematerialisation as the graph takes it."""
        return Remat(self.remat, tuple(self.save), tuple(self.offload))

    @property
    def matmul_dtypes(self) -> dict[str, str]:
        """The dtype of forward matmuls with weights, and of both backward ones, by their key."""
        forward = self.matmul_dtype or self.dtype
        return {
            "matmul_dtype": forward,
            "matmul_dtype_dx": self.matmul_dtype_dx or forward,
            "matmul_dtype_dw": self.matmul_dtype_dw or forward,
        }

    @property
    def quantised(self) -> bool:
        """Whether some matmul has operands of another dtype than the activations'."""
        return any(dtype != self.dtype for dtype in self.matmul_dtypes.values())

    def dtype_of(self, key: str) -> str:
        """The dtype under a key that may be empty: its own, or the one that it follows."""
        return str(getattr(self, key) or unless_given(self, key))

    @property
    def finished_dtype(self) -> str:
        """The dtype in which the optimizer finds the gradients."""
        summed = self.microbatches > 1 or self.stages > 1
        return self.dtype_of("accumulator_dtype") if summed else self.grad_dtype

    @property
    def logits_dtype(self) -> str:
        """The dtype of logits as the graph takes it."""
        dtype = self.dtype_of("loss_dtype")
        return COMPUTE if dtype == self.dtype else dtype

    @property
    def gathers_quantised(self) -> bool:
        """Whether weights of quantised matmuls are quantised before they are gathered."""
        return self.dtype_of("gather_dtype") not in (self.dtype, self.param_dtype)

    @property
    def exchanges_heads(self) -> bool:
        """Whether some axis shards heads instead of tokens in kernels."""
        return context.exchanges_heads(self)

    def __str__(self) -> str:
        from tpusim.partition.keys.text import text

        return text(self)


def check_together(plan: Plan) -> None:
    """Raise PlanError for keys of a plan that contradict each other.

    A plan is asked when it is simulated, as a sweep of several keys makes such plans on its way.
    """
    pipeline.check_together(plan)
    experts.check_together(plan)
