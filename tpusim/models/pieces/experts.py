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
from tpusim.graph import (
    GraphWriter,
    Pointwise,
    Tensor,
    TokenRouting,
    Tokens,
    checked_piece,
    function,
)
from tpusim.models.checks import check_types, check_values
from tpusim.models.pieces.mlp import ExpertMlp, mlp

SCORE_FLOPS = 10.0
CHOICE_FLOPS = 2.0
MASK_FLOPS = 4.0
GATE_FLOPS = 11.0
"""Vector operations per element: of the router's scores, as a softmax; besides, for each choice, a
comparison and a selection; and of a mask, the comparison with the position, of which each expert
has one for a token, a selection, a multiplication and a conversion; and of a gate, a sigmoid and a
multiplication. Assumed: counted from the
formulas (MaxText's moe.py, `get_topk` and `generate_masks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE:
    """The experts of a model.

    experts: experts of a layer; 0 for a dense model.
    experts_per_token: experts that the router gives each token.
    expert_mlp: width of each expert; 0 for `mlp`.
    shared_mlp: width of all shared experts together.
    shared_gate: a sigmoid gate on the shared experts (Qwen2 MoE).
    dense_layers: first layers without experts.
    expert_every: every n-th layer has experts (GShard: 2).
    """

    experts: int = 0
    experts_per_token: int = 0
    expert_mlp: int = 0
    shared_mlp: int = 0
    shared_gate: bool = False
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
        if self.shared_gate and not self.shared_mlp:
            raise ModelError(
                "moe.shared_gate is true, but no expert is shared; give moe.shared_mlp, or write "
                "shared_gate = false"
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

    def dims(self, mlp: int) -> dict[str, int]:
        """Return the dimensions that experts add to a graph; none for a dense model.

        mlp: width of the model's MLP.
        """
        if not self.experts:
            return {}
        shared = {"shared_mlp": self.shared_mlp} if self.shared_mlp else {}
        own = {"expert": self.experts, "choice": self.experts_per_token}
        return own | {"expert_mlp": self.expert_mlp or mlp} | shared

    def has_experts(self, layer: int) -> bool:
        """Return True if a layer, counted from 0, has experts."""
        late = layer >= self.dense_layers
        return bool(self.experts) and late and (layer + 1) % self.expert_every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRouting:
    """The routing of a plan, see `tpusim.plan.Experts`."""

    capacity_factor: float = 0.0
    group: int = 1
    dispatch: str = ""
    exchange: str = "all-to-all"

    def __post_init__(self) -> None:
        check_types(self, "ExpertRouting.")
        check_values(self, {}, "ExpertRouting.")

    @property
    def by_mask(self) -> bool:
        """True if tokens find their slots by matmuls with a mask."""
        return (self.dispatch or ("one_hot" if self.capacity_factor else "sort")) == "one_hot"

    def slots(self, seq_len: int, experts: int, choices: int) -> int:
        """Return the slots of one expert for one group: `ceil(seq k / experts x capacity)`.

        seq_len: tokens of the group, which is a sequence or several.

        At least 1, and at most the tokens of the group. Without a capacity it is the mean,
        rounded up.
        """
        capacity = Fraction(str(self.capacity_factor)) if self.capacity_factor else 1
        return max(1, min(seq_len, ceil(Fraction(seq_len * choices, experts) * capacity)))


EVEN = ExpertRouting()
"""Tokens sorted by their experts, without a capacity."""


@checked_piece
def experts(
    w: GraphWriter,
    x: Tokens,
    routing: ExpertRouting = EVEN,
    *,
    activation: str = "silu",
    gated: bool = False,
    bias: bool = False,
    router_bias: bool = False,
) -> Tensor:
    """Write a router and the MLPs of experts; return the sum of each token's experts.

    There are `expert` experts of width `expert_mlp`, of which a token takes `choice`.

    x: [batch, sequence, embed].
    bias: each matrix of an expert has one.
    router_bias: so has the router.

    Raise ModelError for groups that do not divide the batch.
    """
    tokens = x
    if routing.group > 1:
        x = _grouped(w, x, routing.group)
    length, count, choices = (w.extent(dim) for dim in (x.dims[1], "expert", "choice"))
    w.size(slot=routing.slots(length, count, choices))
    there, back = _router(w, x, routing, choices, bias=router_bias)
    slots = _dispatch(w, x, there, routing)
    share = share_of_slots(w.extent("slot"), length, count, choices)
    own = ExpertMlp(share=share, ragged=not routing.capacity_factor)
    filled = mlp(
        w, slots, activation=activation, gated=gated, bias=bias, prefix="expert_", experts=own
    )
    made = _combine(w, filled, back, x.dims, routing)
    return made if x is tokens else w.reshape("experts_out", made, tokens.dims)


def _grouped(w: GraphWriter, x: Tensor, sequences: int) -> Tensor:
    """Write the tokens of so many sequences each under one dimension; return [group, token, embed].

    The groups are sharded as the batch is, and their tokens as those of a sequence are.
    """
    batch, seq, embed = x.dims
    examples = w.extent(batch)
    if examples % sequences:
        raise ModelError(
            f"{w.name}: experts have slots for groups of {sequences} sequences, which do not "
            f"divide a batch of {examples}; write a group that does, such as 1"
        )
    groups, members = f"{seq}.batch", f"groups.{seq}"
    w.sizes[groups], w.sizes[members] = examples // sequences, sequences * w.extent(seq)
    return w.reshape("grouped", x, (groups, members, embed))


def share_of_slots(slots: int, seq_len: int, experts: int, choices: int) -> Fraction:
    """Return the fraction of all slots that tokens fill if all experts are chosen equally often.

    So the FLOPs of the model are those of its choices; where there are fewer slots than choices,
    those of the slots.
    """
    return min(Fraction(1), Fraction(seq_len * choices, experts * slots))


@checked_piece
def gated_by_token(w: GraphWriter, x: Tokens, made: Tokens) -> Tensor:
    """Write the product of the shared experts' result with a gate of each token, and return it.

    x, made: [batch, sequence, embed]; the gate is the sigmoid of a product of `x` with one column.
    """
    w.size(shared_gate=1)
    gate = w.dense("shared_gate", x, "shared_gate")
    return w.pointwise(
        "shared_gated",
        (made, gate),
        made.dims,
        GATE_FLOPS,
        function=function("gated_by_sigmoid"),
    )


def _router(
    w: GraphWriter, x: Tensor, routing: ExpertRouting, choices: int, *, bias: bool
) -> tuple[Tensor, Tensor]:
    """Write the router; return its gates for dispatch and for combine.

    A mask (or a sort's gates) that lists the experts first is only of a device's own experts, for
    all tokens that any of their devices has; so the tokens are gathered, and the results are
    partial sums. One mask serves both directions where both take it in the same order; in the
    dispatch only its positions count, so no gradient comes from it.
    """
    tokens = x.dims[:2]
    logits = w.tensor("router_logits", (*tokens, "expert"), "f32")
    gates = w.tensor("gates", (*tokens, "choice"), "f32")
    there, back = routing.exchange != "all-to-all", routing.exchange == "gather"
    own = w.tensor("expert_gates", ("expert", *tokens), "f32")
    w.einsum("router", x, w.weight("router", x.dims[-1], "expert"), logits)
    if bias:
        term = w.weight("router_bias", "expert")
        logits = w.add("router_biased", logits, term, out=replace(logits, name=f"{w.prefix}scores"))
    made = (gates,) if routing.by_mask or not there else (gates, own)
    choose = Pointwise(
        f"{w.prefix}top_k",
        (logits,),
        made,
        SCORE_FLOPS + CHOICE_FLOPS * choices,
        over=w.dims(("expert",)),
        alone=True,
        function=function("top_k", choices=w.dim("choice")),
    )
    w.write(choose)
    if not routing.by_mask:
        return own if there else gates, own if back else gates
    batch, seq = tokens
    dims = {False: (*tokens, "expert", "slot"), True: ("expert", batch, seq, "slot")}
    weights = w.tensor("combine_mask", dims[back])
    apart = w.tensor("dispatch_mask", dims[there], "pred")
    masks = (weights,) if there == back else (weights, apart)
    slots = function("slot_masks", experts=w.dim("expert"), slots=w.dim("slot"))
    generated = there == back
    name = f"{w.prefix}masks"
    w.write(
        Pointwise(
            name, (gates,), masks, MASK_FLOPS, alone=True, generated=generated, function=slots
        )
    )
    return replace(weights, stopped=True) if there == back else apart, weights


def _dispatch(w: GraphWriter, x: Tensor, gates: Tensor, routing: ExpertRouting) -> Tensor:
    """Write the move of tokens into slots; the FLOPs of a mask are not the model's."""
    slots = w.tensor("dispatched", ("expert", x.dims[0], "slot", x.dims[-1]))
    if routing.by_mask:
        return w.einsum("dispatch", x, gates, slots, share=0.0)
    w.write(TokenRouting(f"{w.prefix}dispatch", x, gates, slots, dispatch=True))
    return slots


def _combine(
    w: GraphWriter, slots: Tensor, gates: Tensor, dims: tuple[str, ...], routing: ExpertRouting
) -> Tensor:
    """Write the sum of each token's expert results times their gates."""
    out = w.tensor("mlp_out", dims)
    if routing.by_mask:
        return w.einsum("combine", slots, gates, out, share=0.0)
    name = f"{w.prefix}combine"
    w.write(TokenRouting(name, slots, gates, out, dispatch=False, weighted=True))
    return out
