"""The keys of sharded sequences: how kernels see all keys and values."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tpusim.errors import PlanError, nearest
from tpusim.partition.keys.values import check_flag

if TYPE_CHECKING:
    from tpusim.partition.plan import Plan

GATHER, RING, ALL_TO_ALL = CONTEXT_EXCHANGES = ("gather", "ring", "all-to-all")


def check(plan: "Plan") -> None:
    """Raise PlanError for an exchange that is none."""
    check_flag("plan.context_balanced", plan.context_balanced)
    if isinstance(plan.context_exchange, Mapping) and not plan.context_exchange:
        ways = ", ".join(map(repr, CONTEXT_EXCHANGES))
        raise PlanError(
            f"plan.context_exchange is empty; write one of {ways}, or one of them for each axis, "
            "such as { context = 'ring' }"
        )
    for axis, way in _ways(plan.context_exchange):
        if way not in CONTEXT_EXCHANGES:
            at = f"plan.context_exchange.{axis}" if axis else "plan.context_exchange"
            raise PlanError(f"{at} is {way!r}: {nearest(str(way), CONTEXT_EXCHANGES)}")


def _ways(given: Any) -> list[tuple[str, Any]]:
    """The axes that are named, each with its way; the way of all under no name."""
    return list(given.items()) if isinstance(given, Mapping) else [("", given)]


def exchanges_heads(plan: "Plan") -> bool:
    """Whether some axis shards heads instead of tokens in kernels."""
    return any(way == ALL_TO_ALL for _, way in _ways(plan.context_exchange))


def text(plan: "Plan") -> str:
    """How keys and values cross the axes of the sequence, where they are not gathered."""
    late = "" if plan.context_balanced else ", context not balanced"
    ways = [(axis or "the context", way) for axis, way in _ways(plan.context_exchange)
            if axis or way != GATHER]  # fmt: skip
    return "".join(f", {way} over {axis}" for axis, way in ways) + late
