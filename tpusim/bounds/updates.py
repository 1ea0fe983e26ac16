"""Least seconds of the optimizer, on arrays of plans."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tpusim.bounds.plan_arrays import distinct_rows
from tpusim.bounds.transfers import TransferSeconds
from tpusim.costs import work_seconds
from tpusim.frames import trained, updates_of
from tpusim.lowering import GradientDeps
from tpusim.partition import StoredWeight
from tpusim.plan import Plan
from tpusim.program import Collective, Compute, Loop, Number, Op


class UpdateSeconds:
    """The least seconds of the updates of weights, with the norms before them.

    In a pipeline, whose stages share the weights, only operations outside of loops count.
    """

    def __init__(self, plan: Plan, transfers: TransferSeconds) -> None:
        self.plan, self.transfers = plan, transfers

    def of(self, weights: tuple[StoredWeight, ...]) -> Number:
        """Return the seconds of the updates of weights.

        Muon lays its matrices out as the sizes of the mesh demand, so each mesh counts by itself.
        """
        ask = self.transfers.ask
        axes, plans = ask.sizes.axes, ask.plans
        if ask.inner.optimizer.name != "muon" or not axes:
            return self._updates(weights, self.transfers)
        first, index = distinct_rows((plans.pod, *(plans.mesh[axis] for axis in axes)))
        found = []
        for at in first.tolist():
            own = {axis: plans.mesh[axis][at : at + 1].astype(float) for axis in axes}
            some = replace(plans.take(np.array([at])), footprints=None)
            sizes = replace(ask.sizes, axes=own)
            transfers = TransferSeconds(self.plan, ask.inner, sizes, some, ask.answers)
            found.append(float(np.max(self._updates(weights, transfers))))
        seconds: Number = np.array(found)[index]
        return seconds

    def _updates(self, weights: tuple[StoredWeight, ...], transfers: TransferSeconds) -> Number:
        deps = GradientDeps({weight.name: "" for weight in weights}, {})
        updates = updates_of(transfers.ask.inner, transfers.ask.sizes)
        ops = [
            *updates.clip(weights, deps),
            *updates.rates(weights, deps),
            *(op for w in trained(weights) for op in updates.update(w, ())),
        ]
        total: Number = 0.0
        for op, times in _operations(ops, looped=not self.plan.active_schedule):
            if isinstance(op, Compute):
                total = total + times * work_seconds(op.work, transfers.rings.pod.chip.device)
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
