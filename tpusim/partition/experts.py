"""Experts: what a plan may ask of them, how unevenly they are chosen, and what sorting costs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log, prod
from random import Random
from typing import TYPE_CHECKING

from tpusim.errors import PlanError
from tpusim.graph import Route
from tpusim.partition.layout import Axes
from tpusim.partition.plan import Plan
from tpusim.program import Number, Vector
from tpusim.program.numeric import largest, smallest

if TYPE_CHECKING:
    from tpusim.partition.sizes import Sizes

_ONLY_EXPERTS = ("capacity_factor", "dispatch", "expert_buffer", "expert_skew")


def check_experts(plan: Plan, sharding: Collection[Axes], sizes: Mapping[str, int]) -> None:
    """Raise PlanError for experts that their axes do not divide, and for what a dense model lacks.

    sharding: the axes of experts' weights and of what is dispatched to them.
    """
    experts = sizes.get("expert", 0)
    if not experts:
        return _check_dense(plan)
    for axes in sharding:
        shards = prod(plan.active_axes[axis] for axis in axes)
        if experts % shards:
            named = " x ".join(f"{axis}={plan.active_axes[axis]}" for axis in axes)
            below = next(n for n in range(min(shards, experts), 0, -1) if experts % n == 0)
            above = next((n for n in range(shards, experts) if experts % n == 0), experts)
            raise PlanError(
                f"the {experts} experts of the model do not divide over {named}; write "
                f"{' or '.join(map(str, dict.fromkeys((below, above))))}"
            )


def _check_dense(plan: Plan) -> None:
    if plan.active_axes.get("expert", 1) > 1:
        raise PlanError(
            f"plan.mesh.expert is {plan.mesh['expert']}, but the model has no experts; call the "
            "axis fsdp or data, or give the model experts"
        )
    for key in _ONLY_EXPERTS:
        if value := getattr(plan, key):
            raise PlanError(
                f"plan.{key} is {value!r}, but the model has no experts; leave it out, or give "
                "the model experts"
            )


@lru_cache(maxsize=256)
def loads(experts: int, skew: float, seed: int) -> tuple[float, ...]:
    """The tokens of each expert over the mean: `1 + skew (x - 1)`, of which the mean is 1.

    x are drawn once from `seed`: exponentials over their mean, that is a point of the simplex of
    popularities, all equally likely (Dirichlet of concentration 1). So `skew` is about the standard
    deviation over the mean; 0 routes evenly, 1 is a router that nothing balances. Assumed: papers
    give losses and rules against imbalance, not what is left of it; the same draw, more and more
    pronounced, makes that of one device grow with `skew` and never shrink.
    """
    if not skew:
        return ()
    draw = Random(seed)
    drawn = [-log(1.0 - draw.random()) for _ in range(experts)]
    mean = sum(drawn) / experts
    return tuple(1.0 + skew * (one / mean - 1.0) for one in drawn)


def busiest(each: tuple[float, ...], devices: int) -> float:
    """The most tokens that one of `devices` has for its experts, over the mean."""
    own = len(each) // devices
    if devices == 1 or not own:
        return 1.0
    return max(sum(each[i * own : (i + 1) * own]) / own for i in range(devices))


@dataclass(frozen=True, slots=True)
class Room:
    """Rows of the buffers of `experts` where no token is dropped: of each of its `choices`.

    factor: over the mean; 0 for as many as could come. Shapes are fixed before anybody has chosen,
    so a device with n-th of the experts has room for `min(n, experts / choices)` times the mean:
    either all choices of all tokens, or each of its experts chosen by all (MaxText's moe.py,
    `get_ragged_buffer_size`; a ragged all-to-all over 4 chips of v6e leaves 4 times the rows, which
    each pass but the grouped kernels goes through, libtpu 0.0.42.1).
    """

    experts: int
    choices: int
    factor: float = 0.0

    def over(self, devices: Number, filled: Number) -> Number:
        """The rows over those that are filled, of a device of `devices`: at most as many times.

        filled: those of the busiest device over the mean. Nothing is dropped for want of room.
        """
        most = self.factor or self.experts / self.choices
        return largest(1.0, smallest(devices, most) / filled)


def buffers_of(plan: Plan, sizes: Mapping[str, int]) -> Room | None:
    """The room that the plan gives to slots; none where a capacity sizes them, or there are none.

    sizes: of the graph's dimensions.
    """
    if plan.capacity_factor or "expert" not in sizes:
        return None
    return Room(sizes["expert"], sizes["choice"], plan.expert_buffer)


def routing(op: Route, split: Mapping[str, Axes], sizes: "Sizes") -> Vector:
    """The work of sorting tokens: rows pass through HBM, picked by the order of their experts.

    A dispatch first repeats the row of each token for its choices, and then gathers the row of each
    slot: both are read, and written. A combine gathers the rows back, then reads them and writes
    their sum for each token, in f32. The transpose of a weighted one first writes each token's
    gradient times its gates, and gathers what the combine had gathered again for the gates'
    gradient (MaxText's moe.py, `permute` and `unpermute`; its repetition is a pass of its own and
    its gathers need no other on v6e 2x2, libtpu 0.0.42.1. `jnp.take` needs one that selects, in
    place of the repetition). A conversion, a multiplication and an addition each element of a slot;
    the sort of the experts' numbers is not counted.
    """
    one, other = op.tokens, op.output
    slots, tokens = (other, one) if op.dispatch else (one, other)
    row = sizes.product(slots.dims, split) * sizes.itemsize(slots.dtype)
    own = sizes.product(tokens.dims, split) * sizes.itemsize(tokens.dtype)
    flops = 3 * sizes.product(slots.dims, split)
    if not op.dispatch:
        return Vector(2 * row, row + own, flops)
    if op.weighted:
        return Vector(own + 3 * row, 3 * row, 2 * flops)
    return Vector(own + row, 2 * row, 0.0)
