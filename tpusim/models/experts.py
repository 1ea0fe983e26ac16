"""The experts of a layer: a router, slots for the tokens of each expert, and an MLP in each slot.

Slots are [expert, batch, slot, embed], the positions of one expert for one sequence. Tensors that
list the experts first take their axis, so tokens cross the network where their layout changes.
There are two routes to the slots. A *mask* [batch, seq, expert, slot] says which token is in which
slot; matmuls with it take tokens there and back (GShard, arXiv:2006.16668, section 3.2). A *sort*
picks rows by the order of their experts (MegaBlocks, arXiv:2211.15841).
"""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from math import ceil

from tpusim.base.errors import ModelError
from tpusim.graph import Einsum, Op, Pointwise, Tensor, TensorRole, TokenRouting, function
from tpusim.models.checks import check_types, check_values

SLOTS = ("expert", "batch", "slot")
SCORE_FLOPS = 10.0
CHOICE_FLOPS = 2.0
MASK_FLOPS = 4.0
"""Vector operations per element: of the router's scores, as a softmax; besides, for each choice, a
comparison and a selection; and of a mask, the comparison with the position, of which each expert
has one for a token, a selection, a multiplication and a conversion. Assumed: counted from the
formulas (MaxText's moe.py, `get_topk` and `generate_masks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE:
    """The experts of a model.

    experts: MLPs of which the router gives each token `experts_per_token`; 0 for a dense model.
    experts_per_token: experts that each token goes to.
    expert_mlp: width of each expert; 0 for the model's `mlp`.
    shared_mlp: width of the experts that all tokens take besides, together.
    dense_layers: the first layers that have no experts.
    expert_every: each so many-th layer has experts, the others an `mlp` (GShard: 2).
    """

    experts: int = 0
    experts_per_token: int = 0
    expert_mlp: int = 0
    shared_mlp: int = 0
    dense_layers: int = 0
    expert_every: int = 1

    def __post_init__(self) -> None:
        check_types(self, "moe.")
        check_values(self, {}, "moe.")
        for field in fields(self):
            if not self.experts and (value := getattr(self, field.name)) != field.default:
                raise ModelError(
                    f"moe.{field.name} is {value}, but the model has no experts; give experts, or "
                    f"write {field.name} = {field.default}"
                )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ModelError(
                f"moe.experts_per_token is {self.experts_per_token}; write how many of the "
                f"{self.experts} experts a token goes to, from 1 to {self.experts}"
            )

    def check_layers(self, layers: int) -> None:
        """Raise ModelError for experts that none of so many layers has."""
        if self.experts and not any(map(self.has_experts, range(layers))):
            raise ModelError(
                f"none of the {layers} layers has experts, as dense_layers is {self.dense_layers} "
                f"and expert_every is {self.expert_every}; write smaller ones, or leave experts out"
            )

    def has_experts(self, layer: int) -> bool:
        """Return True if a layer, counted from 0, has experts."""
        late = layer >= self.dense_layers
        return bool(self.experts) and late and (layer + 1) % self.expert_every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRouting:
    """The routing of a plan, see `tpusim.plan.Experts`."""

    capacity_factor: float = 0.0
    dispatch: str = ""
    exchange: str = "all-to-all"

    @property
    def by_mask(self) -> bool:
        """True if tokens find their slots by matmuls with a mask."""
        return (self.dispatch or ("one_hot" if self.capacity_factor else "sort")) == "one_hot"

    def slots(self, seq_len: int, experts: int, choices: int) -> int:
        """Return the slots of one expert for one sequence: `ceil(seq k / experts x capacity)`.

        At least 1, and at most the tokens of the sequence. Without a capacity it is the mean,
        rounded up.
        """
        capacity = Fraction(str(self.capacity_factor)) if self.capacity_factor else 1
        return max(1, min(seq_len, ceil(Fraction(seq_len * choices, experts) * capacity)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedTokens:
    """The routing of one layer.

    choices: experts of a token.
    share: the fraction of the slots that the model needs.
    shared: there is an MLP for all tokens besides.
    """

    routing: ExpertRouting
    choices: int
    share: Fraction
    shared: bool


def share_of_slots(slots: int, seq_len: int, experts: int, choices: int) -> Fraction:
    """Return the fraction of all slots that tokens fill if all experts are chosen equally often.

    So the FLOPs of the model are those of its choices; where there are fewer slots than choices,
    those of the slots.
    """
    return min(Fraction(1), Fraction(seq_len * choices, experts * slots))


def router(name: str, r: RoutedTokens, x: Tensor) -> tuple[tuple[Op, ...], tuple[Tensor, Tensor]]:
    """Return the router, and its gates for dispatch and for combine.

    A mask (or a sort's gates) that lists the experts first is only of a device's own experts, for
    all tokens that any of their devices has; so the tokens are gathered, and the results are
    partial sums. One mask serves both directions where both take it in the same order; in the
    dispatch only its positions count, so no gradient comes from it.
    """
    weight = Tensor(f"{name}/router", ("embed", "expert"), TensorRole.PARAM)
    logits = Tensor(f"{name}/router_logits", ("batch", "seq", "expert"), dtype="f32")
    gates = Tensor(f"{name}/gates", ("batch", "seq", "choice"), dtype="f32")
    there, back = r.routing.exchange != "all-to-all", r.routing.exchange == "gather"
    own = Tensor(f"{name}/expert_gates", ("expert", "batch", "seq"), dtype="f32")
    matmul = Einsum(f"{name}/router", x, weight, logits)
    flops = SCORE_FLOPS + CHOICE_FLOPS * r.choices
    made = (gates,) if r.routing.by_mask or not there else (gates, own)
    choose = Pointwise(
        f"{name}/top_k",
        (logits,),
        made,
        flops,
        over=("expert",),
        alone=True,
        function=function("top_k", choices="choice"),
    )
    if not r.routing.by_mask:
        return (matmul, choose), (own if there else gates, own if back else gates)
    dims = {False: ("batch", "seq", "expert", "slot"), True: ("expert", "batch", "seq", "slot")}
    weights = Tensor(f"{name}/combine_mask", dims[back])
    apart = Tensor(f"{name}/dispatch_mask", dims[there], dtype="pred")
    masks = (weights,) if there == back else (weights, apart)
    mask = Pointwise(
        f"{name}/masks",
        (gates,),
        masks,
        MASK_FLOPS,
        alone=True,
        generated=there == back,
        function=function("slot_masks", experts="expert", slots="slot"),
    )
    positions = replace(weights, stopped=True) if there == back else apart
    return (matmul, choose, mask), (positions, weights)


def dispatch(name: str, r: RoutedTokens, x: Tensor, gates: Tensor) -> tuple[Op, Tensor]:
    """Return the move of tokens into slots, and these; the FLOPs of a mask are not the model's."""
    slots = Tensor(f"{name}/dispatched", (*SLOTS, "embed"))
    if r.routing.by_mask:
        return Einsum(f"{name}/dispatch", x, gates, slots, 0.0), slots
    return TokenRouting(f"{name}/dispatch", x, gates, slots, dispatch=True), slots


def combine(name: str, r: RoutedTokens, slots: Tensor, gates: Tensor, out: Tensor) -> Op:
    """Return the sum of each token's expert results times their gates."""
    if r.routing.by_mask:
        return Einsum(f"{name}/combine", slots, gates, out, 0.0)
    return TokenRouting(f"{name}/combine", slots, gates, out, dispatch=False, weighted=True)
