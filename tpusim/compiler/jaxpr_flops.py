"""FLOPs of a traced JAX function, before it is compiled or partitioned."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from tpusim.compiler.hlo.module import Instruction
from tpusim.compiler.hlo.shapes import Shape
from tpusim.compiler.stablehlo_flops import Counting, UnknownFlopsError, stablehlo_flops
from tpusim.compiler.to_program.op_metadata import REMAT_SCOPE
from tpusim.compiler.to_program.trip_counts import count_iterations
from tpusim.compiler.work.attention_kernels import attention_work, splash_mask, useful_flops


def count_flops(jaxpr: Any, recomputed: bool = False, padding_taps: bool = True) -> float | None:
    """Return the FLOPs of all matmuls and convolutions on all devices, 2 per multiply-add.

    None where a program that it calls (`jax.export`) has a kernel that states none.

    Loops count their iterations, and `while` loops without a readable counter one; of branches the
    costlier counts. In `shard_map` the shapes are one device's, times its devices. Unused results
    do not count, such as a gradient that a kernel's own rule computes in vain. Splash attention
    counts as in a compiled program: its useful matmuls, causal ones at half. Other Pallas kernels
    count their cost estimate, or their body in each step of the grid, and attention that is no
    kernel counts as written. A matmul of complex numbers is three of real ones, as the compiler
    makes it.

    recomputed: include what `jax.checkpoint` recomputes.
    padding_taps: include the taps of convolutions on padding.
    """
    from jax.interpreters.partial_eval import dce_jaxpr

    plain = getattr(jaxpr, "jaxpr", jaxpr)
    needed, _ = dce_jaxpr(plain, [True] * len(plain.outvars))
    try:
        return _counted(needed, Counting(recomputed, padding_taps))
    except UnknownFlopsError:
        return None


def _counted(jaxpr: Any, counting: Counting) -> float:
    return sum((_flops(eqn, counting) for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns), 0.0)


def _flops(eqn: Any, counting: Counting) -> float:
    name, params = eqn.primitive.name, eqn.params
    if not counting.recomputed and REMAT_SCOPE in str(eqn.source_info.name_stack):
        return 0.0
    if name == "dot_general":
        return _dot(eqn)
    if name == "conv_general_dilated":
        return _convolution(eqn, counting)
    if name in ("ragged_dot", "ragged_dot_general"):
        return 2.0 * _elements(eqn.invars[0]) * int(eqn.outvars[0].aval.shape[-1])
    if name == "pallas_call":
        return _kernel(eqn, counting)
    if name == "call_exported":
        return stablehlo_flops(params["exported"], counting.recomputed, counting.padding_taps)
    inner = [_counted(found, counting) for found in _called_jaxprs(params)]
    if name == "scan":
        return float(params["length"]) * sum(inner)
    if name == "while":
        return while_trip_count(eqn) * sum(inner)
    if name == "shard_map":
        return sum(inner) * prod(int(params["mesh"].shape[axis]) for axis in _manual_axes(params))
    return max(inner, default=0.0) if name == "cond" else sum(inner)


def _manual_axes(params: Any) -> Any:
    return params.get("manual_axes") or params["mesh"].axis_names


def _called_jaxprs(params: Any) -> Iterator[Any]:
    """Yield all jaxprs that an equation calls, without the rules of custom derivatives."""
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns") or hasattr(getattr(one, "jaxpr", None), "eqns"):
                yield one


def _kernel(eqn: Any, counting: Counting) -> float:
    params = eqn.params
    if "splash" in (name := str(params.get("name"))):
        return _splash(name, eqn)
    estimate = params.get("cost_estimate")
    if estimate is not None:
        return float(estimate.flops)
    grid = getattr(params.get("grid_mapping"), "grid", ())
    places = prod(size for size in grid if isinstance(size, int))
    return places * sum(_counted(found, counting) for found in _called_jaxprs(params))


def _splash(name: str, eqn: Any) -> float:
    operands = [_shape(variable) for variable in eqn.invars]
    made = ", ".join(str(_shape(variable)) for variable in eqn.outvars)
    kernel = Instruction(name, "custom-call", f"({made})")
    return useful_flops(kernel, attention_work(kernel, operands, splash_mask(operands), 0, 0))


def _shape(variable: Any) -> Shape:
    """Return a shape of compiled programs; its dtype is merely floating point or integer."""
    dtype = "bf16" if "float" in str(variable.aval.dtype) else "s32"
    return Shape(dtype, tuple(int(size) for size in variable.aval.shape))


def _dot(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    one = _flops_per_pair(eqn) * _elements(eqn.outvars[0])
    return one * prod(int(left[dim]) for dim in contracted)


def _convolution(eqn: Any, counting: Counting) -> float:
    """Return 2 x features in and out x batch x positions x taps, without the holes of a stride."""
    params = eqn.params
    image, kernel = (variable.aval.shape for variable in eqn.invars)
    shapes = params["dimension_numbers"]
    out = eqn.outvars[0].aval.shape
    met = prod(
        counting.products(
            window=int(kernel[shapes.rhs_spec[2 + at]]),
            stride=int(params["window_strides"][at]),
            low=int(params["padding"][at][0]),
            dilation=int(params["lhs_dilation"][at]),
            spread=int(params["rhs_dilation"][at]),
            size=int(image[shapes.lhs_spec[2 + at]]),
            outputs=int(out[dim]),
        )
        for at, dim in enumerate(shapes.out_spec[2:])
    )
    images, features = (int(out[dim]) for dim in shapes.out_spec[:2])
    return _flops_per_pair(eqn) * met * images * features * int(kernel[shapes.rhs_spec[1]])


def _flops_per_pair(eqn: Any) -> float:
    """Return the FLOPs of a multiply-add: 2, and three times that for complex numbers."""
    both = all("complex" in str(variable.aval.dtype) for variable in eqn.invars[:2])
    return 6.0 if both else 2.0


def _elements(variable: Any) -> int:
    return prod(int(size) for size in variable.aval.shape)


_DIRECTIONS = {"lt": "LT", "le": "LE", "gt": "GT", "ge": "GE", "ne": "NE"}
_SIGNS = {"add": 1, "sub": -1}


def while_trip_count(eqn: Any) -> int:
    """Return the trip count of a `while` that counts between constants in equal steps; otherwise 1.

    The same loops are read in the compiled program (`tpusim.compiler.to_program.trip_counts`).
    """
    params = eqn.params
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    carried = condition.invars[params["cond_nconsts"] :]
    compared = _defining_equation(condition, condition.outvars[0], _DIRECTIONS)
    if compared is None or compared.invars[0] not in carried:
        return 1
    place, bound = carried.index(compared.invars[0]), _number(compared.invars[1])
    stepped = _defining_equation(body, body.outvars[place], _SIGNS)
    own = body.invars[params["body_nconsts"] :][place]
    if stepped is None or stepped.invars[0] is not own:
        return 1
    start = _number(eqn.invars[params["cond_nconsts"] + params["body_nconsts"] + place])
    step = _number(stepped.invars[1])
    if start is None or bound is None or step is None:
        return 1
    direction = _DIRECTIONS[compared.primitive.name]
    found = count_iterations(start, bound, _SIGNS[stepped.primitive.name] * step, direction)
    return 1 if found is None else found


def _defining_equation(jaxpr: Any, variable: Any, by: Mapping[str, Any]) -> Any:
    """Return the equation that makes a variable, if it is one of these primitives."""
    found = next((eqn for eqn in jaxpr.eqns if variable in eqn.outvars), None)
    return found if found is not None and found.primitive.name in by else None


def _number(variable: Any) -> int | None:
    value = getattr(variable, "val", None)
    if value is None or variable.aval.shape or "int" not in str(variable.aval.dtype):
        return None
    return int(value)
