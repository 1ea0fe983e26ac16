"""Least seconds of the optimizer, on arrays of plans."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tpusim.costs import work_seconds
from tpusim.exploration.bound_groups import GroupAnswers
from tpusim.exploration.bound_transfers import TransferSeconds
from tpusim.exploration.plan_arrays import PlanArrays
from tpusim.lowering import optimizer
from tpusim.lowering.accumulate import GradientDeps
from tpusim.partition import Sizes, StoredWeight
from tpusim.plan import Plan
from tpusim.program import Collective, Compute, Loop, Number, Op


class UpdateSeconds:
    """The least seconds of the updates of weights, with the norms before them.

    In a pipeline, whose stages share the weights, only operations outside of loops count.
    """

    def __init__(
        self, plan: Plan, inner: Plan, sizes: Sizes, plans: PlanArrays, answers: GroupAnswers
    ) -> None:
        self.plan, self.inner, self.sizes = plan, inner, sizes
        self.plans, self.answers = plans, answers

    def of(self, weights: tuple[StoredWeight, ...]) -> Number:
        """Return the seconds of the updates of weights.

        Muon lays its matrices out as the sizes of the mesh demand, so each mesh counts by itself.
        """
        axes = self.sizes.axes
        if self.inner.optimizer.name != "muon" or not axes:
            return self._updates(weights, self.sizes, self.plans)
        rows = np.stack([self.plans.pod, *axes.values()], axis=1)
        _, first, index = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        found = []
        for at in first.tolist():
            own = {axis: self.plans.mesh[axis][at : at + 1].astype(float) for axis in axes}
            sizes = replace(self.sizes, axes=own)
            some = replace(self.plans.take(np.array([at])), footprints=None)
            found.append(float(np.max(self._updates(weights, sizes, some))))
        seconds: Number = np.array(found)[index.reshape(-1)]
        return seconds

    def _updates(
        self, weights: tuple[StoredWeight, ...], sizes: Sizes, plans: PlanArrays
    ) -> Number:
        deps = GradientDeps({weight.name: "" for weight in weights}, {})
        given = self.inner, sizes
        ops = [
            *optimizer.clip(weights, *given, deps),
            *optimizer.rates(weights, *given, deps),
            *(op for w in optimizer.trained(weights) for op in optimizer.update(w, *given, "")),
        ]
        device = plans.pods[int(plans.pod[0])].chip.device
        transfers = TransferSeconds(self.plan, self.inner, sizes, plans, self.answers)
        total: Number = 0.0
        for op, times in _operations(ops, looped=not self.plan.active_schedule):
            if isinstance(op, Compute):
                total = total + times * work_seconds(op.work, device)
            elif isinstance(op, Collective) and not self.plan.active_schedule:
                total = total + times * transfers.waited(op)
        return total


def _operations(ops: Sequence[Op], looped: bool, times: int = 1) -> Iterator[tuple[Op, int]]:
    """Yield operations with how often each runs. looped: also those in loops."""
    for op in ops:
        if not isinstance(op, Loop):
            yield op, times
        elif looped:
            yield from _operations(op.body, looped, times * op.trips)
