"""The experts of a layer: a router, slots for the tokens of each expert, and an MLP in each slot.

Slots are [expert, batch, slot, embed], the places of one expert for one sequence. What lists the
experts first takes their axis, so tokens cross the network where their layout changes, and nothing
here says so. Two ways lead to the slots. A *mask* [batch, seq, expert, slot] says which token is in
which slot; products with it take tokens there and back (GShard, arXiv:2006.16668, section 3.2). A
*sort* picks rows by the order of their experts (MegaBlocks, arXiv:2211.15841).
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from tpusim.graph import Einsum, Op, Pointwise, Role, Route, Tensor

SLOTS = ("expert", "batch", "slot")
SCORE_FLOPS = 10.0
CHOICE_FLOPS = 2.0
MASK_FLOPS = 4.0
"""Vector operations an element: of the router's scores, as a softmax; besides, for each choice, a
comparison and a selection; and of a mask, the comparison with the place, which each expert has one
of for a token, a selection, a multiplication and a conversion. Assumed: counted from the formulas
(MaxText's moe.py, `get_topk` and `generate_masks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a plan routes tokens, see `Plan`."""

    capacity_factor: float = 0.0
    dispatch: str = ""
    exchange: str = "all-to-all"

    @property
    def by_mask(self) -> bool:
        """Whether tokens find their slots by products with a mask."""
        return (self.dispatch or ("one_hot" if self.capacity_factor else "sort")) == "one_hot"

    def slots(self, seq_len: int, experts: int, choices: int) -> int:
        """Places of one expert for one sequence: `ceil(seq k / experts x capacity)`.

        At least 1, and no more than the sequence has tokens. Without a capacity it is the mean,
        rounded up.
        """
        capacity = Fraction(str(self.capacity_factor)) if self.capacity_factor else 1
        return max(1, min(seq_len, ceil(Fraction(seq_len * choices, experts) * capacity)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The routing of one layer. choices: experts of a token.

    share: of the slots, those that the model needs. shared: there is an MLP for all tokens besides.
    """

    routing: Routing
    choices: int
    share: Fraction
    shared: bool


def share_of_slots(slots: int, seq_len: int, experts: int, choices: int) -> Fraction:
    """The share of all slots that tokens fill when every expert is chosen equally often.

    So the FLOPs of the model are those of its choices; where there are fewer slots than choices,
    those of the slots.
    """
    return min(Fraction(1), Fraction(seq_len * choices, experts * slots))


def router(name: str, r: Routed, x: Tensor) -> tuple[tuple[Op, ...], tuple[Tensor, Tensor]]:
    """The router, and its gates for the way to the experts and for the way back.

    A mask (or a sort's gates) that lists the experts first is only of a device's own experts, for
    all tokens that any of their devices has; so these are what is gathered, and the results are
    partial sums. One mask serves both ways where both want it in the same order; on the way there
    only its places count, so no gradient comes from it.
    """
    weight = Tensor(f"{name}/router", ("embed", "expert"), Role.PARAM)
    logits = Tensor(f"{name}/router_logits", ("batch", "seq", "expert"), dtype="f32")
    gates = Tensor(f"{name}/gates", ("batch", "seq", "choice"), dtype="f32")
    there, back = r.routing.exchange != "all-to-all", r.routing.exchange == "gather"
    own = Tensor(f"{name}/expert_gates", ("expert", "batch", "seq"), dtype="f32")
    product = Einsum(f"{name}/router", x, weight, logits)
    flops = SCORE_FLOPS + CHOICE_FLOPS * r.choices
    made = (gates,) if r.routing.by_mask or not there else (gates, own)
    choose = Pointwise(f"{name}/top_k", (logits,), made, flops, over=("expert",), alone=True)
    if not r.routing.by_mask:
        return (product, choose), (own if there else gates, own if back else gates)
    dims = {False: ("batch", "seq", "expert", "slot"), True: ("expert", "batch", "seq", "slot")}
    weights = Tensor(f"{name}/combine_mask", dims[back])
    apart = Tensor(f"{name}/dispatch_mask", dims[there], dtype="pred")
    masks = (weights,) if there == back else (weights, apart)
    mask = Pointwise(
        f"{name}/masks", (gates,), masks, MASK_FLOPS, alone=True, generated=there == back
    )
    places = replace(weights, stopped=True) if there == back else apart
    return (product, choose, mask), (places, weights)


def dispatch(name: str, r: Routed, x: Tensor, gates: Tensor) -> tuple[Op, Tensor]:
    """Tokens into slots; the FLOPs of a mask are not the model's."""
    slots = Tensor(f"{name}/dispatched", (*SLOTS, "embed"))
    if r.routing.by_mask:
        return Einsum(f"{name}/dispatch", x, gates, slots, 0.0), slots
    return Route(f"{name}/dispatch", x, gates, slots, dispatch=True), slots


def combine(name: str, r: Routed, slots: Tensor, gates: Tensor, out: Tensor) -> Op:
    """Slots back to their tokens, each the sum of its experts' results times their gates."""
    if r.routing.by_mask:
        return Einsum(f"{name}/combine", slots, gates, out, 0.0)
    return Route(f"{name}/combine", slots, gates, out, dispatch=False, weighted=True)
