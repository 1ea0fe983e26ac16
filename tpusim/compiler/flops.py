"""FLOPs of a program before the TPU compiler optimises and partitions it.

What JAX, TensorFlow and PyTorch make ends in StableHLO, and so in HLO, where one count serves all:
2 FLOPs per multiply-add of matmuls and convolutions on all devices. Loops count their iterations,
and those without a readable counter one; of branches the costlier counts. In a `shard_map` the
shapes are one device's, times its devices. Splash attention counts as in a compiled program: its
useful matmuls, causal ones at half. Other Pallas kernels count their author's estimate, or their
body in each step of the grid. A matmul of complex numbers is three of real ones, as the compiler
makes it. All uses of JAX's private names for this are in this file.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from math import prod
from typing import Any, NamedTuple

from tpusim.compiler.hlo.attributes import (
    call_target,
    called_computations,
    kernel_config,
    op_name,
)
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.opcodes import KERNEL_TARGETS
from tpusim.compiler.hlo.parser_process import HloParser
from tpusim.compiler.hlo.read import build_module, encoded_body, read_kernel_bodies
from tpusim.compiler.to_program.op_metadata import is_recomputed
from tpusim.compiler.to_program.trip_counts import trip_count
from tpusim.compiler.work.attention_kernels import attention_work, splash_mask, useful_flops
from tpusim.compiler.work.dots import DOT_OPCODES, dot_shape
from tpusim.compiler.work.kernels import SPLASH_KERNEL, body_cost

_MANUAL_BODY = "manual_computation_body"
"""Part of the names of computations whose shapes are one device's (`shard_map`)."""
_MANUAL_END = "xla.sdy.LocalToGlobalShape"
"""Custom call that reads the results of such a computation, and names its axes."""
_AXIS_SIZE = re.compile(r'\\*"([^"\\]+)\\*"=(\d+)')
_MANUAL_AXES = re.compile(r"manual_axes\{([^}]*)\}>")
_WORD = re.compile(r'[^\\", ]+')
_UNCOUNTED = frozenset({"CustomSPMDPartitioning", "SPMDFullToShardShape"})
"""Custom calls of which the program does not show what one device computes."""


class StepFlops(NamedTuple):
    """FLOPs of a step on all devices; on_padding: those of taps of convolutions on padding."""

    total: float = 0.0
    on_padding: float = 0.0

    def __mul__(self, times: float) -> "StepFlops":  # type: ignore[override]
        """Return those of so many times the work."""
        return StepFlops(self.total * times, self.on_padding * times)


class _UnknownError(Exception):
    """A program has work that cannot be counted."""


def lowered_flops(lowered: Any, *, recomputed: bool = False) -> StepFlops | None:
    """Return the FLOPs of a `jax.stages.Lowered`; None where its work cannot be counted.

    That is the case for a kernel without an estimate whose body cannot be read, and for a function
    with `jax.experimental.custom_partitioning` over several devices.

    recomputed: include what `jax.checkpoint` recomputes.
    """
    from jaxlib import _jax, xla_client

    written = BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(file=written)
    made = _jax.mlir.mlir_module_to_xla_computation(written.getvalue(), False, False)
    printed = xla_client.hlo.HloPrintOptions()
    printed.print_operand_shape = printed.print_program_shape = False
    hlo = made.get_hlo_module()
    text = hlo.to_string(printed)
    axes = {axis: int(size) for axis, size in _AXIS_SIZE.findall(text.partition("\n")[0])}

    def skips(name: str) -> bool:
        return not recomputed and is_recomputed(name)

    module = build_module(hlo.name, text)
    with HloParser() as parser:  # starts no process before there is a kernel to read
        bodies = read_kernel_bodies(module.computations.values(), parser)
    return module_flops(replace(module, bodies=bodies), skips, axes)


def module_flops(
    module: HloModule, skips: Callable[[str], bool], axes: Mapping[str, int] | None = None
) -> StepFlops | None:
    """Return the FLOPs of a module that the compiler has not seen yet; None if not all are known.

    skips: whether operations of a name do not count, as those that are recomputed.
    axes: sizes of the mesh whose devices a `shard_map` is over.
    """
    try:
        return _Count(module, skips, axes or {}).of(module.main)
    except _UnknownError:
        return None


@dataclass(slots=True)
class _Count:
    """The computations of a module, each counted once."""

    module: HloModule
    skips: Callable[[str], bool]
    axes: Mapping[str, int]
    known: dict[str, StepFlops] = field(default_factory=dict)

    def of(self, where: Computation) -> StepFlops:
        if where.name not in self.known:
            counted = (self._flops(where, each) for each in where.instructions)
            self.known[where.name] = _sum(counted)
        return self.known[where.name]

    def _flops(self, where: Computation, each: Instruction) -> StepFlops:
        if self.skips(op_name(each)):
            return StepFlops()
        if each.opcode in DOT_OPCODES:
            return _dot(where, each)
        if each.opcode == "ragged-dot":
            rows = where.operands(each)[0].arrays[0]
            return StepFlops(2.0 * rows.elements * each.arrays[0].dims[-1])
        if each.opcode == "custom-call":
            return self._custom_call(where, each)
        called = called_computations(self.module, each)
        inner = [self.of(one) for one in called]
        if each.opcode == "while":
            trips = trip_count(self.module, where, each)
            return _sum(inner) * (1 if trips is None else trips)
        if each.opcode == "conditional":
            return max(inner, default=StepFlops())
        manual = any(_MANUAL_BODY in one.name for one in called)
        return _sum(inner) * (self._manual_devices(where, each) if manual else 1)

    def _manual_devices(self, where: Computation, call: Instruction) -> int:
        """Return the number of devices whose shapes a `shard_map` has."""
        made = {call.name}
        for each in where.instructions:
            if made.isdisjoint(each.operands):
                continue
            if each.opcode == "get-tuple-element":
                made.add(each.name)
            elif call_target(each) == _MANUAL_END:
                named = _MANUAL_AXES.search(each.attributes)
                return prod(self.axes[axis] for axis in _WORD.findall(named[1] if named else ""))
        return 1

    def _custom_call(self, where: Computation, each: Instruction) -> StepFlops:
        target = call_target(each)
        if target in _UNCOUNTED:
            raise _UnknownError
        if target not in KERNEL_TARGETS:
            return StepFlops()
        name = op_name(each).split("/")[-2:][0]
        if SPLASH_KERNEL.match(name):
            operands = [shape for one in where.operands(each) for shape in one.arrays]
            kernel = Instruction(name, each.opcode, each.shape_text)
            work = attention_work(kernel, operands, splash_mask(operands), 0, 0)
            return StepFlops(useful_flops(kernel, work))
        estimate = kernel_config(each).get("cost_estimate")
        if isinstance(estimate, dict) and "flops" in estimate:
            return StepFlops(float(estimate["flops"]))
        body = self.module.bodies.get(encoded_body(each))
        if body is None:
            raise _UnknownError
        return StepFlops(body_cost(body).flops)


def _dot(where: Computation, each: Instruction) -> StepFlops:
    left, right = (one.arrays[0] for one in where.operands(each)[:2])
    found = dot_shape(each, left, right, each.arrays[0])
    both = left.dtype.startswith("c") and right.dtype.startswith("c")
    return StepFlops(found.flops, found.padding_flops) * (3 if both else 1)


def _sum(parts: Iterable[StepFlops]) -> StepFlops:
    found = list(parts)
    return StepFlops(sum(each.total for each in found), sum(each.on_padding for each in found))
