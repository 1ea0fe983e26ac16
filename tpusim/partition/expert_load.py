"""Load of the experts: their checks, how unevenly tokens choose them, and buffer capacity."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log, prod
from random import Random

from tpusim.base.divisors import divisor_from, divisor_up_to
from tpusim.base.errors import PlanError
from tpusim.base.units import format_mesh
from tpusim.plan import Axes, Experts, Sharding
from tpusim.program import Number, largest, smallest

_ONLY_EXPERTS = {
    "capacity_factor": "capacity_factor",
    "expert_group": "group",
    "dispatch": "dispatch",
    "expert_buffer": "buffer",
    "expert_skew": "skew",
}
"""The keys that need experts, and their fields."""

_USUAL = Experts()


def check_experts(sharding: Sharding, over: Collection[Axes], sizes: Mapping[str, int]) -> None:
    """Raise PlanError for experts that their axes do not divide, or expert keys of dense models.

    over: the axes of the experts' weights, and of the tokens dispatched to them.
    """
    experts = sizes.get("expert", 0)
    if not experts:
        return _check_dense(sharding)
    for axes in over:
        shards = prod(sharding.active_axes[axis] for axis in axes)
        if experts % shards:
            named = format_mesh(sharding.active_axes, axes)
            below, above = divisor_up_to(experts, shards), divisor_from(experts, shards)
            raise PlanError(
                f"the {experts} experts of the model do not divide over {named}; write "
                f"{' or '.join(map(str, dict.fromkeys((below, above))))}"
            )


def _check_dense(sharding: Sharding) -> None:
    if sharding.active_axes.get("expert", 1) > 1:
        raise PlanError(
            f"plan.mesh.expert is {sharding.mesh['expert']}, but the model has no experts; call "
            "the axis fsdp or data, or give the model experts"
        )
    for key, name in _ONLY_EXPERTS.items():
        value = getattr(sharding.experts, name)
        if value != getattr(_USUAL, name):
            raise PlanError(
                f"plan.{key} is {value!r}, but the model has no experts; leave it out, or give "
                "the model experts"
            )


@lru_cache(maxsize=256)
def loads(experts: int, skew: float, seed: int) -> tuple[float, ...]:
    """Return the tokens of each expert over the mean: `1 + skew (x - 1)`, of which the mean is 1.

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


def busiest_load(each: tuple[float, ...], devices: int) -> float:
    """Return the most tokens that one of `devices` has for its experts, over the mean."""
    own = len(each) // devices
    if devices == 1 or not own:
        return 1.0
    return max(sum(each[i * own : (i + 1) * own]) / own for i in range(devices))


@dataclass(frozen=True, slots=True)
class ExpertCapacity:
    """Rows of the buffers of `experts` where no token is dropped.

    choices: experts of a token.
    factor: rows over the mean; 0 for as many as could come.

    Shapes are fixed before any token has chosen, so a device with 1/n of the experts has a
    capacity of `min(n, experts / choices)` times the mean:
    either all choices of all tokens, or each of its experts chosen by all (MaxText's moe.py,
    `get_ragged_buffer_size`; a ragged all-to-all over 4 chips of v6e leaves 4 times the rows, which
    each pass but the grouped kernels goes through, libtpu 0.0.42.1).
    """

    experts: int
    choices: int
    factor: float = 0.0

    def over(self, devices: Number, filled: Number) -> Number:
        """Return the capacity over the filled rows, on one of `devices` devices.

        filled: rows of the busiest device over the mean. Nothing is dropped for lack of capacity.
        """
        most = self.factor or self.experts / self.choices
        return largest(1.0, smallest(devices, most) / filled)


def buffers_of(experts: Experts, sizes: Mapping[str, int]) -> ExpertCapacity | None:
    """Return the capacity of slots; None if a capacity factor sizes them or there are none.

    sizes: of the graph's dimensions.
    """
    if experts.capacity_factor or "expert" not in sizes:
        return None
    return ExpertCapacity(sizes["expert"], sizes["choice"], experts.buffer)
