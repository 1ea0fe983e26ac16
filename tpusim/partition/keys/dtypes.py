"""The dtypes of a plan: what they may be, what an empty one is, and how they print."""

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpusim.partition.plan import Plan

NARROW_DTYPES = ("int8", "fp8")
MATMUL_DTYPES = ("bf16", *NARROW_DTYPES)
WIDE_DTYPES = ("bf16", "f32")

MATMULS = ("matmul_dtype", "matmul_dtype_dx", "matmul_dtype_dw")

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


def unless_given(plan: "Plan", key: str) -> str:
    """What a dtype is where the plan does not give it."""
    if key in _FOLLOWS:
        return str(getattr(plan, _FOLLOWS[key]))
    return str(next(field.default for field in fields(plan) if field.name == key))


def text(plan: "Plan") -> str:
    """The dtype, those of the matmuls where they are others, and all that are not default."""
    forward, dx, dw = plan.matmul_dtypes.values()
    if not plan.quantised:
        found = plan.dtype
    elif forward == dx == dw:
        found = f"{plan.dtype} with {forward} matmuls"
    else:
        found = f"{plan.dtype} with matmuls {forward}, dx {dx}, dw {dw}"
    others = [
        f"{what} {getattr(plan, key)}"
        for key, what in _SHOWN.items()
        if getattr(plan, key) not in (unless_given(plan, key), "")
    ]
    return f"{found} ({', '.join(others)})" if others else found
