"""The keys that say what is kept for the backward pass, and where."""

from typing import TYPE_CHECKING

from tpusim.errors import PlanError
from tpusim.partition.keys.values import check_flag, check_names

if TYPE_CHECKING:
    from tpusim.partition.plan import Plan


def check(plan: "Plan") -> None:
    """Raise PlanError for what is no list of names, and for a tensor that is kept twice."""
    for key in ("save", "offload"):
        check_names(f"plan.{key}", getattr(plan, key))
    for name in plan.offload:
        if name in plan.save:
            raise PlanError(
                f"{name!r} is in plan.save and in plan.offload; keep it in one: save holds it "
                "in HBM, offload on the host"
            )
    check_flag("plan.offload_optimizer", plan.offload_optimizer)


def text(plan: "Plan") -> str:
    """The policy, what is saved besides, and what lies on the host."""
    saved = f" + {', '.join(plan.save)}" if plan.save else ""
    moved = [*plan.offload, *(["optimizer state"] if plan.offload_optimizer else [])]
    hosted = f", on the host: {', '.join(moved)}" if moved else ""
    return f"remat {plan.remat}{saved}{hosted}"
