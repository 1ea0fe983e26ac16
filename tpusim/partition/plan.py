"""The plan: everything that a user decides about how a model runs on a slice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, prod
from typing import Any

from tpusim.errors import PlanError, nearest
from tpusim.graph import COMPUTE, POLICIES, Remat
from tpusim.units import format_seconds

OPTIMIZERS = ("adam", "adafactor", "sgd")
LOWERINGS = ("xla", "ideal")
COLLECTIVES = ("xla", "best")
CONTEXT_EXCHANGES = ("gather", "ring", "all-to-all")
MATMUL_DTYPES = ("bf16", "int8", "fp8")
WIDE_DTYPES = ("bf16", "f32")
STYLES = ("plain", "maxtext")
DISPATCHES = ("sort", "one_hot")
EXCHANGES = ("all-to-all", "gather", "ring")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "circular", "zb-h1", "zb-h2")
STAGE_AXES = ("dcn_stage", "stage")
"""The axes of a pipeline's stages, the outer one first."""

_CHOICES = {
    "remat": POLICIES,
    "optimizer": OPTIMIZERS,
    "lowering": LOWERINGS,
    "collectives": COLLECTIVES,
    "style": STYLES,
    "expert_exchange": EXCHANGES,
    "dtype": WIDE_DTYPES,
    "param_dtype": WIDE_DTYPES,
    "moment_dtype": WIDE_DTYPES,
    "grad_dtype": WIDE_DTYPES,
}

_MATMULS = ("matmul_dtype", "matmul_dtype_dx", "matmul_dtype_dw")

_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_MATMULS, MATMUL_DTYPES),
    "gather_dtype": (*WIDE_DTYPES, "int8", "fp8"),
    **dict.fromkeys(
        ("reduce_dtype", "accumulator_dtype", "second_moment_dtype", "loss_dtype"), WIDE_DTYPES
    ),
    "dispatch": DISPATCHES,
    "schedule": SCHEDULES,
}
"""The words that may be empty, and what else they may be."""

_CHUNKED = ("interleaved", "circular")
"""The schedules of stages that have several parts of the model."""

_TABLES = {
    "mesh": "{'fsdp': 256, 'tensor': 8}",
    "rules": "{'act_embed': 'tensor'}",
    "annotate": "{'layer/q': ['fsdp', None, 'tensor', None]}",
}
"""The keys that are tables, and what they may be."""

_FOLLOWS = {
    "gather_dtype": "dtype",
    "reduce_dtype": "dtype",
    "accumulator_dtype": "grad_dtype",
    "second_moment_dtype": "moment_dtype",
    "loss_dtype": "dtype",
}
"""What an empty dtype is the same as."""

_SHOWN = {
    "param_dtype": "weights",
    "gather_dtype": "gathers",
    "reduce_dtype": "reductions",
    "grad_dtype": "gradients",
    "accumulator_dtype": "accumulators",
    "moment_dtype": "moments",
    "second_moment_dtype": "second moments",
    "loss_dtype": "logits",
}
"""What a plan's text calls each dtype, where it is not the default."""

Rule = str | Sequence[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A sharding plan.

    mesh: axis -> size, in devices; axes named `dcn_...` run across slices.
    seq_len, global_batch: tokens a sequence, sequences a step over all devices.
    microbatches: parts of the global batch that run one after the other; their gradients are added
        up, and the optimizer runs once.
    vocab_tiles: parts of a device's tokens for which the loss is computed one after the other, so
        that the logits of one part lie in HBM; they are computed again in the backward pass.
    remat, save: what the forward pass keeps (see `Remat`), and tensors saved besides.
    rules: dimension -> axes, over the defaults of `rules.py`; `act_` before a dimension means
        activations, without it weights.
    annotate: tensor -> one axis (or axes, or None) a dimension; the rest propagates from there.
    offload: tensors saved on the host instead of in HBM, from the forward to the backward pass; the
        input of a layer, `layer_in`, is one of them when it is named.
    offload_optimizer: the optimizer's moments stay on the host, and pass through HBM at the update.
    placement: axis -> torus dimensions or parts of them (`{"tensor": ["x", "y[:2]"]}`); chosen
        when not given.
    matmul_dtype: in which the layers' matmuls with weights multiply: `bf16`, `int8` or `fp8`, or
        empty for `dtype`. Operands narrower than `dtype` are quantised before each matmul.
    matmul_dtype_dx, matmul_dtype_dw: the same for the two backward matmuls, of input gradients and
        of weight gradients; empty for `matmul_dtype`.
    dtype, param_dtype, moment_dtype, grad_dtype: of matmuls and activations, of stored weights, of
        the optimizer's moments, and of the stacked gradients.
    gather_dtype: in which weights are gathered; empty for `dtype`. `param_dtype` gathers them as
        they are stored and casts each gathered copy; the `matmul_dtype` of quantised matmuls
        gathers what is quantised already.
    reduce_dtype: in which weight gradients leave their matmul and are reduced; empty for `dtype`.
    accumulator_dtype: in which the gradients of microbatches are added up; empty for `grad_dtype`.
        MaxText's accumulators have the dtype of the weights.
    second_moment_dtype: of the optimizer's second moments; empty for `moment_dtype`. `mu_dtype` of
        optax is the first moment's alone.
    loss_dtype: in which logits and their gradient are written to HBM; empty for `dtype`.
    lowering: `xla`, what the compiler does today; `ideal`, what a perfect one would do.
    collectives: by the algorithm that the compiler picks (`xla`), or by the fastest (`best`).
    style: whose programs the `xla` lowering imitates: `plain` JAX or `maxtext`.
    context_exchange: how attention kernels see the keys and values of a sequence that `context`
        shards: each device gathers them (`gather`), they travel round the axis beside the kernel
        (`ring`), or heads are sharded instead of tokens in the kernel (`all-to-all`). Or axis ->
        way, for several axes, which then take the place of `context` in the default rules.
    context_balanced: each device has an early and a late part of a causal sequence, so that all see
        as many keys (MaxText's `context_parallel_load_balance`); else the last device has nearly
        twice the average, and all wait for it. The batch is reordered on input, which is free.
    input_s: seconds that the host needs to make the batch of a step. It makes the next one while a
        step runs, so no step is shorter.
    capacity_factor: slots of each expert over its even share of the tokens of a sequence; what does
        not find one is dropped. 0 drops nothing: each expert has as many as chose it.
    dispatch: how tokens find their slots: by `sort`, through HBM, or by products with a `one_hot`
        mask; empty for a mask where there is a capacity, and else a sort.
    expert_exchange: how tokens reach experts on other devices: `all-to-all`; `gather`, where each
        device gathers all tokens, picks those of its experts, and results are scattered; or `ring`,
        a gather in a collective matmul on the way there, and an all-to-all back.
    expert_skew: how unevenly experts are chosen, from 0, even, to 1, as chance has it; seed: of the
        one draw that all layers share. The busiest device decides. For what is not dropped.
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
    expert_skew: float = 0.0
    seed: int = 0
    schedule: str = ""
    virtual_stages: int = 1
    stage_layers: Sequence[int] = ()

    def __post_init__(self) -> None:
        for key, choices in {**_CHOICES, **_OPTIONAL}.items():
            value = getattr(self, key)
            empty = isinstance(value, str) and not value and key in _OPTIONAL
            if not empty and (not isinstance(value, str) or value not in choices):
                raise PlanError(f"plan.{key} is {value!r}: {nearest(str(value), choices)}")
        for key in ("seq_len", "global_batch", "microbatches", "vocab_tiles", "virtual_stages"):
            _positive(f"plan.{key}", getattr(self, key))
        for key in ("save", "offload"):
            _names(f"plan.{key}", getattr(self, key))
        for name in self.offload:
            if name in self.save:
                raise PlanError(
                    f"{name!r} is in plan.save and in plan.offload; keep it in one: save holds it "
                    "in HBM, offload on the host"
                )
        for key in ("offload_optimizer", "context_balanced"):
            if not isinstance(getattr(self, key), bool):
                raise PlanError(f"plan.{key} is {getattr(self, key)!r}; write true or false")
        _exchanges("plan.context_exchange", self.context_exchange)
        object.__setattr__(self, "input_s", _seconds("plan.input_s", self.input_s))
        _check_routing(self)
        for key, example in _TABLES.items():
            if not isinstance(getattr(self, key), Mapping):
                raise PlanError(
                    f"plan.{key} is {getattr(self, key)!r}; write a table, such as {example}"
                )
        for key, rule in self.rules.items():
            _rule(f"plan.rules.{key}", rule)
        for name, given in self.annotate.items():
            if not isinstance(given, Sequence) or isinstance(given, str):
                raise PlanError(
                    f"plan.annotate.{name} is {given!r}; write an entry for each dimension, such "
                    "as ['fsdp', None]"
                )
            for place, rule in enumerate(given):
                _rule(f"plan.annotate.{name}[{place}]", rule)
        if not self.mesh:
            raise PlanError("plan.mesh is empty; write at least one axis, such as fsdp = 256")
        for axis, size in self.mesh.items():
            _positive(f"plan.mesh.{axis}", size)
        _check_stage_layers(self.stage_layers)

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
        return str(getattr(self, key) or self._unless_given(key))

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

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        saved = f" + {', '.join(self.save)}" if self.save else ""
        parts = f" in {self.microbatches} microbatches" if self.microbatches > 1 else ""
        moved = [*self.offload, *(["optimizer state"] if self.offload_optimizer else [])]
        tiles = f", loss in {self.vocab_tiles} tiles" if self.vocab_tiles > 1 else ""
        hosted = f", on the host: {', '.join(moved)}" if moved else ""
        made = f", input made in {format_seconds(self.input_s)}" if self.input_s else ""
        best = "" if self.collectives == "xla" else f", {self.collectives} collectives"
        routed = f", capacity {self.capacity_factor:g}" if self.capacity_factor else ""
        routed += f", dispatch by {self.dispatch}" if self.dispatch else ""
        routed += f", experts by {self.expert_exchange}" * (self.expert_exchange != "all-to-all")
        routed += f", skew {self.expert_skew:g} of seed {self.seed}" if self.expert_skew else ""
        return (
            f"mesh {mesh}, batch {self.global_batch} x {self.seq_len} tokens{parts}"
            f"{self._pipelined}, "
            f"remat {self.remat}{saved}{hosted}{tiles}{self._context}, {self._dtypes}, "
            f"{self.optimizer}, "
            f"lowering {self.lowering} ({self.style}){best}{routed}{made}"
        )

    @property
    def exchanges_heads(self) -> bool:
        """Whether some axis shards heads instead of tokens in kernels."""
        ways = self.context_exchange
        return "all-to-all" in ((ways,) if isinstance(ways, str) else ways.values())

    @property
    def _context(self) -> str:
        """How keys and values cross the axes of the sequence, where they are not gathered."""
        ways = self.context_exchange
        late = "" if self.context_balanced else ", context not balanced"
        if isinstance(ways, str):
            return late if ways == "gather" else f", {ways} over the context{late}"
        return "".join(f", {way} over {axis}" for axis, way in ways.items()) + late

    @property
    def _pipelined(self) -> str:
        """The schedule, and what each stage has where that is more than one equal part."""
        if not self.pipeline:
            return ""
        chunks = f" x {self.virtual_stages}" if self.virtual_stages > 1 else ""
        layers = f" (layers {', '.join(map(str, self.stage_layers))})" if self.stage_layers else ""
        return f", pipeline {self.pipeline}{chunks}{layers}"

    @property
    def _dtypes(self) -> str:
        """The dtype, those of the matmuls where they are others, and all that are not default."""
        forward, dx, dw = self.matmul_dtypes.values()
        if not self.quantised:
            text = self.dtype
        elif forward == dx == dw:
            text = f"{self.dtype} with {forward} matmuls"
        else:
            text = f"{self.dtype} with matmuls {forward}, dx {dx}, dw {dw}"
        others = [
            f"{what} {getattr(self, key)}"
            for key, what in _SHOWN.items()
            if getattr(self, key) not in (self._unless_given(key), "")
        ]
        return f"{text} ({', '.join(others)})" if others else text

    def _unless_given(self, key: str) -> str:
        """What a dtype is where the plan does not give it."""
        return str(getattr(self, _FOLLOWS[key]) if key in _FOLLOWS else _DEFAULTS[key])


_DEFAULTS = {field.name: field.default for field in fields(Plan)}


def check_together(plan: Plan) -> None:
    """Raise PlanError for keys of a plan that contradict each other.

    A plan is asked when it is simulated, as a sweep of several keys makes such plans on its way.
    """
    _check_pipeline(plan)
    capacity, skew = plan.capacity_factor, plan.expert_skew
    if plan.dispatch == "one_hot" and not capacity:
        raise PlanError(
            "plan.dispatch is 'one_hot', but plan.capacity_factor is 0: a mask has a fixed number "
            "of slots; write a capacity_factor, such as 1.25, or dispatch = 'sort'"
        )
    if skew and capacity:
        raise PlanError(
            f"plan.expert_skew is {skew!r}, but plan.capacity_factor is {capacity!r}: a capacity "
            "gives all experts as many slots; leave one of them out"
        )


def _check_pipeline(plan: Plan) -> None:
    staged = any(axis in plan.mesh for axis in STAGE_AXES)
    given = {"schedule": plan.schedule, "stage_layers": plan.stage_layers}
    for key, value in given.items():
        if value and not staged:
            raise PlanError(
                f"plan.{key} is {value!r}, but no axis of the mesh has stages; write one, such as "
                "stage = 4"
            )
    schedule = plan.schedule or "1f1b"
    if plan.virtual_stages > 1 and schedule not in _CHUNKED:
        raise PlanError(
            f"plan.virtual_stages is {plan.virtual_stages}, but the schedule {schedule} has one "
            f"part of the model a stage; write schedule = {_either(_CHUNKED)}, or leave it out"
        )
    if plan.schedule == "interleaved" and plan.virtual_stages == 1:
        raise PlanError(
            "plan.schedule is 'interleaved', but plan.virtual_stages is 1, so there is nothing to "
            "interleave; write virtual_stages = 2 or more, or schedule = '1f1b'"
        )
    if plan.offload and schedule.startswith("zb"):
        raise PlanError(
            f"plan.offload is {list(plan.offload)}, but the schedule {schedule} keeps what weight "
            "gradients read in HBM until it makes them; leave it out, or write schedule = '1f1b'"
        )


def _check_stage_layers(given: Any) -> None:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise PlanError(
            f"plan.stage_layers is {given!r}; write a list of whole numbers, such as [16, 16, 15]"
        )
    for place, layers in enumerate(given):
        _positive(f"plan.stage_layers[{place}]", layers)


def _either(words: Sequence[str]) -> str:
    return " or ".join(map(repr, words))


def _positive(where: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{where} is {value!r}; it must be a whole number of at least 1")


def _check_routing(plan: Plan) -> None:
    """Raise PlanError for a capacity, a skew or a seed that is none."""
    capacity, skew = plan.capacity_factor, plan.expert_skew
    if not _is_number(capacity) or not 0 <= capacity < inf:
        raise PlanError(
            f"plan.capacity_factor is {capacity!r}; write a number above 0, such as 1.25, or 0 to "
            "drop no token"
        )
    if not _is_number(skew) or not 0 <= skew <= 1:
        raise PlanError(
            f"plan.expert_skew is {skew!r}; write a number from 0, even, to 1, as chance has it"
        )
    if isinstance(plan.seed, bool) or not isinstance(plan.seed, int):
        raise PlanError(f"plan.seed is {plan.seed!r}; it must be a whole number")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(where: str, value: Any) -> float:
    if not _is_number(value) or not 0 <= value < inf:
        raise PlanError(f"{where} is {value!r}; write seconds, a finite number of at least 0")
    return float(value)


def _exchanges(where: str, value: Any) -> None:
    if isinstance(value, Mapping) and not value:
        raise PlanError(
            f"{where} is empty; write {_either(CONTEXT_EXCHANGES)}, or one of them for each axis, "
            "such as { context = 'ring' }"
        )
    named = value.items() if isinstance(value, Mapping) else [("", value)]
    for axis, way in named:
        if way not in CONTEXT_EXCHANGES:
            at = f"{where}.{axis}" if axis else where
            raise PlanError(f"{at} is {way!r}: {nearest(str(way), CONTEXT_EXCHANGES)}")


def _rule(where: str, value: Any) -> None:
    listed = isinstance(value, Sequence) and all(isinstance(axis, str) for axis in value)
    if value is not None and not listed:
        raise PlanError(f"{where} is {value!r}; write an axis, a list of axes or None")


def _names(where: str, value: Any) -> None:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not all(isinstance(name, str) for name in value):
        raise PlanError(f'{where} is {value!r}; write a list of names, such as ["q", "k"]')
    for place, name in enumerate(value):
        if name in value[:place]:
            raise PlanError(f"{where} lists {name!r} twice; write each name once")
