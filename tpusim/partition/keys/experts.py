"""The keys of experts: how tokens reach them, and how unevenly they are chosen."""

from math import inf
from typing import TYPE_CHECKING

from tpusim.errors import PlanError
from tpusim.partition.keys.values import is_number

if TYPE_CHECKING:
    from tpusim.partition.plan import Plan

DISPATCHES = ("sort", "one_hot")
EXCHANGES = ("all-to-all", "gather", "ring")


def check(plan: "Plan") -> None:
    """Raise PlanError for a number that its key cannot have."""
    capacity, skew, room = plan.capacity_factor, plan.expert_skew, plan.expert_buffer
    if not is_number(capacity) or not 0 <= capacity < inf:
        raise PlanError(
            f"plan.capacity_factor is {capacity!r}; write a number above 0, such as 1.25, or 0 to "
            "drop no token"
        )
    if not is_number(skew) or not 0 <= skew <= 1:
        raise PlanError(
            f"plan.expert_skew is {skew!r}; write a number from 0, even, to 1, as chance has it"
        )
    if not is_number(room) or not (room == 0 or 1 <= room < inf):
        raise PlanError(
            f"plan.expert_buffer is {room!r}; write a number of at least 1, such as 1.5, or 0 for "
            "room for all that could come"
        )
    if isinstance(plan.seed, bool) or not isinstance(plan.seed, int):
        raise PlanError(f"plan.seed is {plan.seed!r}; it must be a whole number")


def check_together(plan: "Plan") -> None:
    """Raise PlanError for keys that contradict each other."""
    capacity, skew, room = plan.capacity_factor, plan.expert_skew, plan.expert_buffer
    if plan.dispatch == "one_hot" and not capacity:
        raise PlanError(
            "plan.dispatch is 'one_hot', but plan.capacity_factor is 0: a mask has a fixed number "
            "of slots; write a capacity_factor, such as 1.25, or dispatch = 'sort'"
        )
    if room and capacity:
        raise PlanError(
            f"plan.expert_buffer is {room!r}, but plan.capacity_factor is {capacity!r}: a capacity "
            "gives buffers their size; leave one of them out"
        )
    if skew and capacity:
        raise PlanError(
            f"plan.expert_skew is {skew!r}, but plan.capacity_factor is {capacity!r}: a capacity "
            "gives all experts as many slots; leave one of them out"
        )


def text(plan: "Plan") -> str:
    """All that is not the default: capacity, dispatch, exchange, buffers and skew."""
    found = f", capacity {plan.capacity_factor:g}" if plan.capacity_factor else ""
    found += f", dispatch by {plan.dispatch}" if plan.dispatch else ""
    found += f", experts by {plan.expert_exchange}" * (plan.expert_exchange != "all-to-all")
    found += f", buffers x{plan.expert_buffer:g}" if plan.expert_buffer else ""
    found += f", skew {plan.expert_skew:g} of seed {plan.seed}" if plan.expert_skew else ""
    return found
