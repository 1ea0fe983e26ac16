"""The plans of a search in the order of their bounds, without those that cannot be its answer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpusim.bounds.groups import GroupAnswers
from tpusim.bounds.placed_bounds import placed_seconds
from tpusim.bounds.plan_arrays import PlanArrays
from tpusim.bounds.plan_bounds import bounds
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Plan
from tpusim.searches.objectives import CHIPS, HBM, Goal

UNDIVIDED = "sizes that do not divide the batch, the layers or the tiles"
TOO_LARGE = "more HBM than there is"
ABOVE = "above a limit"
"""Reasons for which plans are out, besides sentences with which they are refused."""


@dataclass(frozen=True, slots=True)
class BoundedPlans:
    """Plans in the order of their bounds.

    model: of all plans.
    goal: of the search.
    blocks: the plans in arrays.
    order: of each, its block and its place there.
    lowest: bounds of each objective, [objective, plan].
    forms: equal for plans of one block, slice and set of axes larger than one, which are simulated
        alike.
    answers: what is known of groups of devices.
    left_out: how many plans are out, by reason.
    """

    model: Architecture
    goal: Goal
    blocks: Sequence[PlanArrays]
    order: NDArray[np.int64]
    lowest: NDArray[np.float64]
    forms: NDArray[np.int64]
    answers: GroupAnswers
    left_out: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.order)

    def plan(self, at: int) -> tuple[Plan, Slice]:
        """Return a plan and its slice."""
        block, place = self.order[at]
        plans = self.blocks[block]
        return plans.plan(int(place)), plans.pods[plans.pod[place]]

    def tighten(self, some: NDArray[np.int64]) -> None:
        """Raise the bounds of some plans to those of their best placement; the order stays."""
        for block in np.unique(self.order[some, 0]):
            mine = some[self.order[some, 0] == block]
            plans = self.blocks[block].take(self.order[mine, 1])
            seconds = placed_seconds(self.model, plans, self.answers)
            for row, name in zip(self.lowest, self.goal.names, strict=True):
                row[mine] = np.maximum(row[mine], self.goal.lowest(name, plans, seconds))


def bounded_plans(model: Architecture, blocks: Sequence[PlanArrays], goal: Goal) -> BoundedPlans:
    """Bound plans, and order those that may be the answer.

    Out are plans that the model refuses, whose state needs more HBM than there is, or whose bounds
    are above a limit. The order is that of the bounds; of two objectives, of their product.

    blocks: of the same slices.
    """
    names, limits = goal.names, goal.limits
    order, lowest, forms = [np.empty((0, 2), np.int64)], [np.empty((len(names), 0))], []
    answers = GroupAnswers(blocks[0].pods if blocks else ())
    usable = np.array([pod.chip.device.hbm_usable_bytes for pod in answers.pods])
    left_out: Counter[str] = Counter()
    for number, plans in enumerate(blocks):
        places = np.flatnonzero(_chips(plans) <= limits.get(CHIPS, np.inf))
        left_out[ABOVE] += len(plans) - len(places)
        if not len(places):
            continue
        some, refused = plans.take(places), Counter[str]()
        known = bounds(model, some, answers, refused)
        made = np.isfinite(known.seconds)
        fine = known.hbm_bytes <= usable[some.pod] * min(limits.get(HBM, 1.0), 1.0)
        left_out.update(refused)
        left_out[UNDIVIDED] += int((~made).sum()) - refused.total()
        left_out[TOO_LARGE] += int((made & ~fine).sum())
        fitting = int(fine.sum())
        for name in goal.limited:
            fine &= goal.lowest(name, some, known.seconds) <= limits[name]
        left_out[ABOVE] += fitting - int(fine.sum())
        places, some, seconds = places[fine], some.take(np.flatnonzero(fine)), known.seconds[fine]
        lowest.append(np.stack([goal.lowest(name, some, seconds) for name in names]))
        order.append(np.stack([np.full(len(places), number), places], axis=1))
        forms.append(_forms(some))
    every, values = np.concatenate(order), np.concatenate(lowest, axis=1)
    key = values[0] if len(names) == 1 else np.log(values).sum(axis=0)
    first = np.argsort(key, kind="stable")
    rows = np.concatenate([every[:, :1], np.concatenate([np.empty((0, 2), np.int64), *forms])], 1)
    _, alike = np.unique(rows, axis=0, return_inverse=True)
    alike = alike.reshape(-1)[first]
    reasons = {reason: count for reason, count in left_out.most_common() if count}
    return BoundedPlans(
        model, goal, blocks, every[first], values[:, first], alike, answers, reasons
    )


def _chips(plans: PlanArrays) -> NDArray[np.int64]:
    chips: NDArray[np.int64] = np.array([pod.chips for pod in plans.pods])[plans.pod]
    return chips


def _forms(plans: PlanArrays) -> NDArray[np.int64]:
    """Return slice and axes of each plan, [plan, 2]."""
    bits = [(sizes > 1) * np.int64(1 << at) for at, sizes in enumerate(plans.mesh.values())]
    return np.stack([plans.pod, np.sum([np.zeros(len(plans), np.int64), *bits], axis=0)], axis=1)
