"""The dtypes of a plan."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tpusim.base.value_checks import check_words

NarrowDtype: TypeAlias = Literal["int8", "fp8"]
WideDtype: TypeAlias = Literal["bf16", "f32"]
MatmulDtype: TypeAlias = Literal["", "bf16", NarrowDtype]
GatherDtype: TypeAlias = Literal["", WideDtype, NarrowDtype]
OptionalDtype: TypeAlias = Literal["", WideDtype]
NoiseDtype: TypeAlias = Literal["", "u16", "u32"]

NARROW_DTYPES: tuple[str, ...] = get_args(NarrowDtype)
MATMUL_DTYPES: tuple[str, ...] = ("bf16", *NARROW_DTYPES)
WIDE_DTYPES: tuple[str, ...] = get_args(WideDtype)

_FOLLOWS = {
    "gather": "compute",
    "reduce": "compute",
    "accumulator": "grad",
    "second_moment": "moment",
    "logits": "compute",
    "loss": "logits",
    "matmul": "compute",
    "matmul_dx": "matmul",
    "matmul_dw": "matmul",
}
"""The dtype that an empty one is the same as."""

GRADIENTS = "bf16"
"""The dtype of gradients, where nothing else is said."""

_DTYPE_LABELS = {
    "param": "weights",
    "gather": "gathers",
    "reduce": "reductions",
    "grad": "gradients",
    "accumulator": "accumulators",
    "moment": "moments",
    "second_moment": "second moments",
    "logits": "logits",
    "loss": "loss",
}
"""The label of each dtype that a plan's text lists where it is not the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The dtypes of a step: `bf16` or `f32`, and for gathers and matmuls also `int8` and `fp8`.

    compute: matmuls and activations.
    param: stored weights.
    grad: stacked gradients; empty for the program style's own. `Plan.as_compiled` fills it in.
    moment: moments of the optimizer.
    second_moment: second moments; empty for `moment`. `mu_dtype` of optax is for the first moment
        only.
    gather: weights in gathers; empty for `compute`. The `param` dtype gathers weights as they are
        stored and casts each gathered copy; the `matmul` dtype of quantised matmuls gathers
        quantised weights, and quantised activations for these matmuls.
    reduce: weight gradients in their reduction; empty for `compute`. Their matmuls write this
        dtype.
    accumulator: sums of microbatches' gradients; empty for `grad`. MaxText's accumulators have the
        dtype of the weights.
    logits: logits as the head's matmul writes them (`preferred_element_type`); empty for `compute`.
        Their gradient always has `compute`. MaxText: `logits_dot_in_fp32`.
    loss: logits in the loss; empty for `logits`. XLA fuses the cast with its readers, so it changes
        nothing in HBM.
    matmul: the layers' matmuls with weights; empty for `compute`. Operands narrower than `compute`
        are quantised before each matmul.
    matmul_dx: backward matmuls of input gradients; empty for `matmul`.
    matmul_dw: backward matmuls of weight gradients; empty for `matmul`.
    noise: random numbers of stochastic rounding, `u16` or `u32`; empty for rounding to the nearest.
        The numbers are added to gradients before they are quantised. AQT's `jax.uniform`, which
        MaxText takes for int8, draws `u32`; AQT's `custom-1` draws `u16`.
    """

    compute: WideDtype = "bf16"
    param: WideDtype = "f32"
    grad: OptionalDtype = ""
    moment: WideDtype = "f32"
    second_moment: OptionalDtype = ""
    gather: GatherDtype = ""
    reduce: OptionalDtype = ""
    accumulator: OptionalDtype = ""
    logits: OptionalDtype = ""
    loss: OptionalDtype = ""
    matmul: MatmulDtype = ""
    matmul_dx: MatmulDtype = ""
    matmul_dw: MatmulDtype = ""
    noise: NoiseDtype = ""

    def __post_init__(self) -> None:
        check_words("plan.dtypes", self)

    def of(self, key: str) -> str:
        """Return the dtype of a field: its own, or where it is empty the one that it follows."""
        return str(getattr(self, key)) or (self.of(_FOLLOWS[key]) if key in _FOLLOWS else GRADIENTS)

    @property
    def matmuls(self) -> dict[str, str]:
        """The dtype of forward matmuls with weights, and of both backward ones, by flat key."""
        return {
            "matmul_dtype": self.of("matmul"),
            "matmul_dtype_dx": self.of("matmul_dx"),
            "matmul_dtype_dw": self.of("matmul_dw"),
        }

    @property
    def quantised(self) -> bool:
        """True if some matmul has operands of another dtype than the activations'."""
        return any(dtype != self.compute for dtype in self.matmuls.values())

    @property
    def gathers_quantised(self) -> bool:
        """True if weights of quantised matmuls are quantised before they are gathered."""
        return self.of("gather") not in (self.compute, self.param)

    def __str__(self) -> str:
        forward, dx, dw = self.matmuls.values()
        if not self.quantised:
            found: str = self.compute
        elif forward == dx == dw:
            found = f"{self.compute} with {forward} matmuls"
        else:
            found = f"{self.compute} with matmuls {forward}, dx {dx}, dw {dw}"
        others = []
        for key, label in _DTYPE_LABELS.items():
            usual = self.of(_FOLLOWS[key]) if key in _FOLLOWS else Numerics().of(key)
            if getattr(self, key) not in (usual, ""):
                others.append(f"{label} {getattr(self, key)}")
        return f"{found} ({', '.join(others)})" if others else found
