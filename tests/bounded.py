"""Bounds of single operations, beside those that a simulated step has."""

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np

from tpusim.bounds import bound
from tpusim.bounds.work import WorkSeconds
from tpusim.costs import work_seconds
from tpusim.hardware import Device, Slice
from tpusim.models import Architecture
from tpusim.partition import ComputeNode
from tpusim.plan import Plan
from tpusim.program import AttentionWork, Compute, Program, Work, walk_ops
from tpusim.results import Result

PRIMES = "'"
"""What tells copies of one name apart."""

NOISE = 1e-12
"""The relative error of sums of floats that are added up in another order."""


def bound_and_operations(
    model: Architecture, plan: Plan, pod: Slice
) -> tuple[float, dict[str, float]]:
    """The bound of a plan, and the least seconds of each of its operations that is no kernel.

    Copies of one name, which primes tell apart, are one operation: the least of them.
    """
    found: dict[str, float] = {}
    work_of = WorkSeconds.work

    def work(self: WorkSeconds, node: ComputeNode, looped: bool, recurrent: bool) -> Work:
        made = work_of(self, node, looped, recurrent)
        if not isinstance(made, AttentionWork):
            name, seconds = node.name.rstrip("'"), float(np.max(self.seconds(made)))
            found[name] = min(seconds, found.get(name, seconds))
        return made

    with patch.object(WorkSeconds, "work", work):
        least = bound(model, plan, pod)
    return least, found


def operations_below(least: dict[str, float], result: Result) -> list[str]:
    """The operations that a step does in less than their least seconds.

    The gradient of a norm that the pass `late-norm-gradient` takes apart has two operations, the
    second of which sums that of its scale; what is bounded is both.
    """
    return [
        f"{name} takes {seconds} s, its bound is {least[name.rstrip(PRIMES)]} s"
        for program in result.programs
        for taken in [list(_seconds(program, result.pod.chip.device))]
        for scales in [{name: seconds for name, seconds in taken if name.endswith("/d/scale")}]
        for name, alone in taken
        if name.rstrip(PRIMES) in least
        for seconds in [alone + scales.get(f"{name}/scale", 0.0)]
        if least[name.rstrip(PRIMES)] > seconds * (1 + NOISE)
    ]


def _seconds(program: Program, device: Device) -> Iterator[tuple[str, float]]:
    for op, _ in walk_ops(program.body, program.segments):
        if isinstance(op, Compute):
            yield op.name, float(work_seconds(op.work, device))
