"""Bounds of single operations, beside those that a simulated step has."""

from unittest.mock import patch

import numpy as np

from tpusim.bounds import bound
from tpusim.bounds.work import WorkSeconds
from tpusim.costs import work_seconds
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.partition import ComputeNode
from tpusim.plan import Plan
from tpusim.program import AttentionWork, Compute, Work, walk_ops
from tpusim.results import Result

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
    """The operations that a step does in less than their least seconds."""
    device = result.pod.chip.device
    return [
        f"{op.name} takes {seconds} s, its bound is {least[own]} s"
        for program in result.programs
        for op, _ in walk_ops(program.body, program.segments)
        for own in [op.name.rstrip("'")]
        if isinstance(op, Compute) and own in least
        for seconds in [float(work_seconds(op.work, device))]
        if least[own] > seconds * (1 + NOISE)
    ]
