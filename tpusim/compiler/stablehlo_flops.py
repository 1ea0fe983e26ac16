"""FLOPs of a StableHLO module, before it is compiled or partitioned."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

from tpusim.compiler.to_program.op_metadata import REMAT_SCOPE
from tpusim.compiler.to_program.trip_counts import count_iterations
from tpusim.compiler.work.dots import window_pairs, window_products

_KERNEL = "tpu_custom_call"
"""Custom call of a Pallas kernel."""
_SIGNS = {"stablehlo.add": 1, "stablehlo.subtract": -1}


class UnknownFlopsError(Exception):
    """A program has work that cannot be counted."""


@dataclass(frozen=True, slots=True)
class Counting:
    """What counts as FLOPs: what `jax.checkpoint` recomputes, and taps on padding."""

    recomputed: bool
    padding_taps: bool

    def products(
        self,
        *,
        window: int,
        stride: int,
        low: int,
        dilation: int,
        spread: int,
        size: int,
        outputs: int,
    ) -> int:
        """Return the pairs of an output and a tap in a dimension that count."""
        if self.padding_taps:
            return window_products(window, size, outputs)
        return window_pairs(window, stride, low, dilation, spread, size, outputs)


def stablehlo_flops(exported: Any, recomputed: bool = False, padding_taps: bool = True) -> float:
    """Return the FLOPs of the matmuls and convolutions of an exported program, on all devices.

    exported: a `jax.export.Exported`.
    recomputed: include what `jax.checkpoint` recomputes.
    padding_taps: include the taps of convolutions on padding.

    2 per multiply-add, as `count_flops` counts a function of JAX: loops count their iterations, and
    those without a readable counter one; of branches the costlier counts. Pallas kernels count
    their cost estimate. Raise UnknownFlopsError for a kernel without one.
    """
    from jax._src.interpreters import mlir

    with mlir.make_ir_context():
        module = exported.mlir_module(serialized=False)
        return _Count(module, Counting(recomputed, padding_taps)).function("main")


class _Count:
    """The functions of a module, each counted once."""

    def __init__(self, module: Any, counting: Counting) -> None:
        self._module = module  # owns its operations
        self._counting = counting
        tops = [op.operation for op in module.body.operations]
        self._functions = {_name(op, "sym_name"): op for op in tops if op.name == "func.func"}
        self._meshes = [op for op in tops if op.name == "sdy.mesh"]
        self._known: dict[str, float] = {}

    def function(self, name: str) -> float:
        if name not in self._known:
            self._known[name] = self._inside(self._functions[name])
        return self._known[name]

    def _inside(self, op: Any) -> float:
        return sum(map(self._region, op.regions), 0.0)

    def _region(self, region: Any) -> float:
        return sum((self._flops(op.operation) for block in region for op in block), 0.0)

    def _flops(self, op: Any) -> float:
        name = op.name
        if name == "stablehlo.dot_general":
            return 0.0 if self._skipped(op) else _dot(op)
        if name == "stablehlo.convolution":
            return 0.0 if self._skipped(op) else _convolution(op, self._counting)
        if name == "chlo.ragged_dot":
            return 0.0 if self._skipped(op) else _ragged_dot(op)
        if name == "stablehlo.custom_call":
            return 0.0 if self._skipped(op) else _custom_call(op)
        if name in ("func.call", "stablehlo.composite"):
            called = _name(op, "callee" if name == "func.call" else "decomposition")
            return 0.0 if self._skipped(op) else self.function(called)
        if name == "stablehlo.while":
            return trip_count(op) * self._inside(op)
        if name in ("stablehlo.case", "stablehlo.if"):
            return max(map(self._region, op.regions), default=0.0)
        if name == "sdy.manual_computation":
            return self._manual_devices(op) * self._inside(op)
        return self._inside(op)

    def _skipped(self, op: Any) -> bool:
        return not self._counting.recomputed and REMAT_SCOPE in str(op.location)

    def _manual_devices(self, op: Any) -> int:
        """Return the number of devices whose shapes a manual computation has."""
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import sdy

        named = sdy.ManualAxesAttr(op.attributes["manual_axes"])
        manual = {ir.StringAttr(axis).value for axis in named}
        axes = chain(*(sdy.MeshAttr(each.attributes["mesh"]).axes for each in self._meshes))
        sizes = {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, axes)}
        return prod(sizes[axis] for axis in manual)


def trip_count(op: Any) -> int:
    """Return the trip count of a `while` that counts between constants in equal steps; else 1."""
    condition, body = (region.blocks[0] for region in op.regions)
    compared = _owner(_returned(condition)[0])
    if compared is None or compared.name != "stablehlo.compare":
        return 1
    index = _argument(condition, compared.operands[0])
    if index is None:
        return 1
    stepped = _owner(_returned(body)[index])
    if stepped is None or stepped.name not in _SIGNS:
        return 1
    if _argument(body, stepped.operands[0]) != index:
        return 1
    start, bound = _constant(op.operands[index]), _constant(compared.operands[1])
    step = _constant(stepped.operands[1])
    if start is None or bound is None or step is None:
        return 1
    direction = str(compared.attributes["comparison_direction"]).rpartition(" ")[2].rstrip(">")
    found = count_iterations(start, bound, _SIGNS[stepped.name] * step, direction)
    return 1 if found is None else found


def _returned(block: Any) -> list[Any]:
    return list(block.operations[len(block.operations) - 1].operation.operands)


def _argument(block: Any, value: Any) -> int | None:
    return next((at for at, each in enumerate(block.arguments) if each == value), None)


def _owner(value: Any) -> Any:
    """Return the operation that makes a value; None for an argument of a block."""
    return getattr(value.owner, "operation", None) if hasattr(value.owner, "name") else None


def _constant(value: Any) -> int | None:
    from jaxlib.mlir import ir

    made = _owner(value)
    if made is None or made.name != "stablehlo.constant":
        return None
    found = made.attributes["value"]
    whole = isinstance(found, ir.DenseIntElementsAttr) and found.is_splat
    return int(found[0]) if whole else None


def _dot(op: Any) -> float:
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left = _sizes(op.operands[0])
    contracted = prod(left[int(dim)] for dim in dims.lhs_contracting_dimensions)
    return _flops_per_pair(op) * prod(_sizes(op.results[0])) * contracted


def _convolution(op: Any, counting: Counting) -> float:
    """Return 2 x features in and out x batch x positions x taps, without the holes of a stride."""
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    (image, kernel), out = map(_sizes, op.operands), _sizes(op.results[0])
    count = len(dims.kernel_spatial_dimensions)
    strides, pads = (
        _integers(op, "window_strides", [1] * count),
        _integers(op, "padding", [0] * 2 * count),
    )
    dilation, spread = (_integers(op, f"{side}_dilation", [1] * count) for side in ("lhs", "rhs"))
    met = prod(
        counting.products(
            window=kernel[int(dims.kernel_spatial_dimensions[at])],
            stride=strides[at],
            low=pads[2 * at],
            dilation=dilation[at],
            spread=spread[at],
            size=image[int(dims.input_spatial_dimensions[at])],
            outputs=out[int(dims.output_spatial_dimensions[at])],
        )
        for at in range(count)
    )
    results = out[int(dims.output_batch_dimension)] * out[int(dims.output_feature_dimension)]
    return _flops_per_pair(op) * met * results * kernel[int(dims.kernel_input_feature_dimension)]


def _integers(op: Any, key: str, default: list[int]) -> list[int]:
    """Return an attribute of whole numbers, in row-major order."""
    if key not in op.attributes:
        return default
    return [int(each) for each in op.attributes[key]]


def _ragged_dot(op: Any) -> float:
    return 2.0 * prod(_sizes(op.operands[0])) * _sizes(op.results[0])[-1]


def _custom_call(op: Any) -> float:
    from jaxlib.mlir import ir

    if _name(op, "call_target_name") != _KERNEL:
        return 0.0
    text = ir.StringAttr(op.attributes["backend_config"]).value
    estimate = _estimate(text)
    if "flops" not in estimate:
        raise UnknownFlopsError
    return float(estimate["flops"])


def _estimate(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text).get("custom_call_config", {}).get("cost_estimate", {})
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _flops_per_pair(op: Any) -> float:
    """Return the FLOPs of a multiply-add: 2, and three times that for complex numbers."""
    return 6.0 if all("complex" in str(value.type) for value in op.operands) else 2.0


def _sizes(value: Any) -> list[int]:
    from jaxlib.mlir import ir

    return list(ir.RankedTensorType(value.type).shape)


def _name(op: Any, key: str) -> str:
    """Return a string or a symbol of an operation's attributes."""
    found = op.attributes[key]
    return str(found.value)
