"""The attention kernels of a server's steps, whose time depends on the load."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from tpusim.costs.cached_attention import CachedAttentionRates
from tpusim.costs.load_rates import LoadRates, load_rates
from tpusim.engine.clock import picoseconds
from tpusim.hardware import Device
from tpusim.partition import DTYPE_BYTES
from tpusim.program import (
    CachedAttentionWork,
    CachedLinearWork,
    Compute,
    Program,
    Work,
    walk_ops,
)

LINEAR = 1e-4
"""Largest deviation from a straight line over which decode steps are summed as a trapezoid."""

KernelWorks: TypeAlias = tuple[tuple[float, Work], ...]
"""The attention kernels of a step: how often each runs (more often on a slower chip), and its work
with a cache whose elements have a byte."""


@dataclass(frozen=True, slots=True)
class StepKernels:
    """The attention kernels of a step. each: how often one runs, and its rates."""

    each: tuple[tuple[float, LoadRates], ...]

    @classmethod
    def of(cls, works: KernelWorks, kv_dtype: str, device: Device) -> "StepKernels":
        """Return the kernels over a cache of `kv_dtype`. Raise PlanError as `load_rates`."""
        item = DTYPE_BYTES[kv_dtype]
        rates = (
            (times, load_rates(_with_elements_of(work, item), device)) for times, work in works
        )
        return cls(tuple((times, each) for times, each in rates if each is not None))

    def seconds(self, load: tuple[float, ...]) -> float:
        """Return the seconds of all kernels on the numbers of an `AttentionLoad`."""
        found = 0.0
        for times, rates in self.each:
            found += times * rates.seconds(load)
        return found

    @property
    def windows(self) -> bool:
        """True if some kernel sees a window, so that its time is no straight line of the keys."""
        return any(isinstance(r, CachedAttentionRates) and r.window for _, r in self.each)


class DecodeSteps:
    """Steps that decode a number of tokens, whatever their keys.

    base: picoseconds of a step without its kernels.
    """

    __slots__ = ("base", "context", "first_ps", "kernels", "windows")

    def __init__(self, decodes: int, base: int, kernels: StepKernels) -> None:
        self.base = base
        self.kernels = [(times, rates.decoding(decodes)) for times, rates in kernels.each]
        self.windows = kernels.windows
        self.context, self.first_ps = 0, self._kernels_ps(0)

    def ps(self, context: int, steps: int, growth: int) -> int:
        """Return the picoseconds of `steps` in a row; see `StepCosts.decode_ps`."""
        if context != self.context:  # a run is asked for several numbers of its steps
            self.context, self.first_ps = context, self._kernels_ps(context)
        first = self.first_ps
        if steps == 1:
            return self.base + first
        if self.windows:
            return steps * self.base + self._summed(context, first, steps, growth)
        last = self._kernels_ps(context + (steps - 1) * growth)
        return steps * self.base + steps * (first + last) // 2

    def _kernels_ps(self, context: int) -> int:
        """Return the picoseconds of the kernels of one step."""
        seconds = 0.0
        for times, kernel_seconds in self.kernels:
            seconds += times * kernel_seconds(context)
        return picoseconds(seconds)

    def _summed(self, context: int, one: int, steps: int, growth: int) -> int:
        """Return the picoseconds of kernels with windows in steps in a row, `one` in the first."""
        last = steps - 1
        if not last:
            return one
        other = self._kernels_ps(context + last * growth)
        if last < 2:
            return steps * (one + other) // 2
        half = steps // 2
        middle = self._kernels_ps(context + half * growth)
        straight = one + (other - one) * half // last
        if abs(middle - straight) <= LINEAR * straight:
            return steps * (one + other) // 2
        rest = self._summed(context + half * growth, middle, steps - half, growth)
        return self._summed(context, one, half, growth) + rest


def attention_works(program: Program, slowest: float, kv_dtype: str) -> KernelWorks:
    """Return the kernels of a program whose time depends on the load of the step.

    slowest: seconds of the slowest chip for one of a healthy chip.
    kv_dtype: of the program's cache.
    """
    item = 1 / DTYPE_BYTES[kv_dtype]
    return tuple(
        (trips * slowest, _with_elements_of(op.work, item))
        for op, trips in walk_ops(program.body)
        if isinstance(op, Compute) and isinstance(op.work, CachedAttentionWork | CachedLinearWork)
    )


def _with_elements_of(work: Work, nbytes: float) -> Work:
    """Return the work of a kernel with elements of the cache of `nbytes` times as many bytes."""
    if isinstance(work, CachedAttentionWork):
        return replace(work, key_bytes=work.key_bytes * nbytes)
    return work
