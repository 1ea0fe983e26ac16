"""FLOPs of a traced JAX function, before it is compiled or partitioned."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from tpusim.xla.attention import attention, splash_mask, useful_flops
from tpusim.xla.module import Instruction
from tpusim.xla.passes import REMATTED
from tpusim.xla.shapes import Shape
from tpusim.xla.whiles import while_trips


def count_flops(jaxpr: Any, recomputed: bool = False) -> float:
    """FLOPs of all matmuls and convolutions, 2 a multiplication and addition, on all devices.

    Loops count their trips, `while` loops whose counter does not say them one; of branches the
    costlier counts. Inside `shard_map` the shapes are one device's, times its devices. What no
    result needs does not count, as a gradient that a kernel's own rule makes and nobody asks for.
    Splash attention counts as it does in a compiled program: its useful products, causal ones at
    half. Another Pallas kernel counts what its cost estimate says, else its body in each place of
    its grid, and attention that is no kernel as the program does it. A product of complex numbers
    is three of real ones, as the compiler makes it. recomputed: with what `jax.checkpoint` does
    again.
    """
    from jax.interpreters.partial_eval import dce_jaxpr

    plain = getattr(jaxpr, "jaxpr", jaxpr)
    needed, _ = dce_jaxpr(plain, [True] * len(plain.outvars))
    return _counted(needed, recomputed)


def _counted(jaxpr: Any, recomputed: bool) -> float:
    return sum((_flops(eqn, recomputed) for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns), 0.0)


def _flops(eqn: Any, recomputed: bool) -> float:
    name, params = eqn.primitive.name, eqn.params
    if not recomputed and REMATTED in str(eqn.source_info.name_stack):
        return 0.0
    if name == "dot_general":
        return _dot(eqn)
    if name == "conv_general_dilated":
        return _convolution(eqn)
    if name in ("ragged_dot", "ragged_dot_general"):
        return 2.0 * _elements(eqn.invars[0]) * int(eqn.outvars[0].aval.shape[-1])
    if name == "pallas_call":
        return _kernel(eqn, recomputed)
    inner = [_counted(found, recomputed) for found in _inner(params)]
    if name == "scan":
        return float(params["length"]) * sum(inner)
    if name == "while":
        return while_trips(eqn) * sum(inner)
    if name == "shard_map":
        return sum(inner) * prod(int(params["mesh"].shape[axis]) for axis in _manual(params))
    return max(inner, default=0.0) if name == "cond" else sum(inner)


def _manual(params: Any) -> Any:
    return params.get("manual_axes") or params["mesh"].axis_names


def _inner(params: Any) -> Iterator[Any]:
    """All jaxprs that an equation calls; the rules of custom derivatives are none of them."""
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns") or hasattr(getattr(one, "jaxpr", None), "eqns"):
                yield one


def _kernel(eqn: Any, recomputed: bool) -> float:
    params = eqn.params
    if "splash" in (name := str(params.get("name"))):
        return _splash(name, eqn)
    estimate = params.get("cost_estimate")
    if estimate is not None:
        return float(estimate.flops)
    grid = getattr(params.get("grid_mapping"), "grid", ())
    places = prod(size for size in grid if isinstance(size, int))
    return places * sum(_counted(found, recomputed) for found in _inner(params))


def _splash(name: str, eqn: Any) -> float:
    """Of a kernel of JAX's splash attention, forward or backward."""
    operands = [_shape(variable) for variable in eqn.invars]
    made = ", ".join(str(_shape(variable)) for variable in eqn.outvars)
    kernel = Instruction(name, "custom-call", f"({made})")
    return useful_flops(kernel, attention(kernel, operands, splash_mask(operands), 0, 0))


def _shape(variable: Any) -> Shape:
    """A shape as compiled programs have it; of its dtype, whether it is a floating-point one."""
    dtype = "bf16" if "float" in str(variable.aval.dtype) else "s32"
    return Shape(dtype, tuple(int(size) for size in variable.aval.shape))


def _dot(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    one = _product(eqn) * _elements(eqn.outvars[0])
    return one * prod(int(left[dim]) for dim in contracted)


def _convolution(eqn: Any) -> float:
    """2 x features in and out x batch x the taps that meet an element, not padding or a hole."""
    params = eqn.params
    image, kernel = (variable.aval.shape for variable in eqn.invars)
    shapes = params["dimension_numbers"]
    out = eqn.outvars[0].aval.shape
    met = 1
    for at, dim in enumerate(shapes.out_spec[2:]):
        met *= _taps(
            int(image[shapes.lhs_spec[2 + at]]),
            int(kernel[shapes.rhs_spec[2 + at]]),
            int(out[dim]),
            stride=params["window_strides"][at],
            before=params["padding"][at][0],
            holes=params["lhs_dilation"][at],
            spread=params["rhs_dilation"][at],
        )
    images, features = (int(out[dim]) for dim in shapes.out_spec[:2])
    return _product(eqn) * met * images * features * int(kernel[shapes.rhs_spec[1]])


def _product(eqn: Any) -> float:
    """FLOPs of a multiplication and addition: 2, and three times that of complex numbers."""
    both = all("complex" in str(variable.aval.dtype) for variable in eqn.invars[:2])
    return 6.0 if both else 2.0


def _taps(
    size: int, taps: int, out: int, *, stride: int, before: int, holes: int, spread: int
) -> int:
    """How many pairs of an output and a tap meet an element of the input, in one dimension.

    The arithmetic that a convolution needs, as XLA's HloCostAnalysis counts it: the same number in
    its forward pass and in both of its gradients.
    """
    places = np.arange(out)[:, None] * stride - before + np.arange(taps) * spread
    real = (places >= 0) & (places <= (size - 1) * holes) & (places % holes == 0)
    return int(real.sum())


def _elements(variable: Any) -> int:
    return prod(int(size) for size in variable.aval.shape)
