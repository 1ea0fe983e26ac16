"""The optimizer: what it keeps in HBM, and the update of each weight at the end of the step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tpusim.partition.accumulate import Gradients
from tpusim.partition.layout import Axes
from tpusim.partition.plan import Plan
from tpusim.partition.sizes import DTYPE_BYTES, Sizes
from tpusim.partition.template import Weight
from tpusim.phase import Phase
from tpusim.program import (
    Alloc,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Mode,
    Number,
    Op,
    Transfer,
    TransferKind,
    Vector,
)

UPDATE_FLOPS = {"adam": 12.0, "adafactor": 16.0, "sgd": 2.0}
"""Vector operations an element: Adam's two moving averages, their correction, root and quotient
(Kingma and Ba, arXiv:1412.6980, algorithm 1); Adafactor's row and column means and the clipping of
its update (Shazeer and Stern, arXiv:1804.04235, algorithm 4); a scaled subtraction."""


NORM_FLOPS = 2.0
"""Vector operations an element of a sum of squares."""


def moment_elements(optimizer: str, weight: Weight, sizes: Sizes) -> Number:
    """Elements of optimizer state on one device.

    Adam keeps two for each weight, plain SGD none; Adafactor keeps means over the rows and over
    the columns of matrices (its last dimension, and all others), and one a weight of vectors.
    """
    elements = sizes.elements(weight.local)
    if optimizer == "adam":
        return weight.copies * 2 * elements
    if optimizer == "sgd":
        return 0
    if len(weight.local.dims) < 2:
        return weight.copies * elements
    columns = sizes.extent(weight.local.dims[-1], weight.local.layout[-1])
    return weight.copies * (elements / columns + columns)


def moment_bytes(weight: Weight, plan: Plan, sizes: Sizes) -> Number:
    """Bytes of optimizer state on one device.

    Adam's moments are as many of the first as of the second; Adafactor's means are second moments.
    """
    first, second = (
        DTYPE_BYTES[plan.moment_dtype],
        DTYPE_BYTES[plan.dtype_of("second_moment_dtype")],
    )
    item = (first + second) / 2 if plan.optimizer == "adam" else second
    return moment_elements(plan.optimizer, weight, sizes) * item


def resident(weights: tuple[Weight, ...], plan: Plan, sizes: Sizes) -> tuple[Alloc, ...]:
    """What the step's arguments hold: the weights, and the moments if they are not on the host."""
    item = DTYPE_BYTES[plan.param_dtype]
    allocs = []
    for weight in weights:
        stored = item * weight.copies * sizes.elements(weight.local)
        padding = sizes.padding(weight.local)
        allocs.append(Alloc(weight.name, stored, "weights", stored * padding))
    return (*allocs, *(() if plan.offload_optimizer else moments(weights, plan, sizes)))


def moments(weights: tuple[Weight, ...], plan: Plan, sizes: Sizes) -> tuple[Alloc, ...]:
    """The optimizer's moments of each weight; plain SGD has none."""
    if plan.optimizer == "sgd":
        return ()
    allocs = []
    for weight in weights:
        state = moment_bytes(weight, plan, sizes)
        padded = state * sizes.padding(weight.local)
        allocs.append(Alloc(f"{weight.name}/moments", state, "optimizer state", padded))
    return tuple(allocs)


def cast(weights: tuple[Weight, ...], plan: Plan, sizes: Sizes) -> Compute | None:
    """The copy of these local weights in the compute dtype, made once a step.

    None where they are stored so, or where there are none.
    """
    if plan.param_dtype == plan.dtype or not weights:
        return None
    counts = [weight.copies * sizes.elements(weight.local) for weight in weights]
    elements = sum(counts)
    empty = sum(n * sizes.padding(w.local) for n, w in zip(counts, weights, strict=True))
    item = DTYPE_BYTES[plan.dtype]
    return Compute(
        name="cast_weights", phase=Phase.FORWARD, scope="cast_weights",
        work=Vector(elements * DTYPE_BYTES[plan.param_dtype], elements * item, elements),
        allocs=(Alloc("cast_weights", elements * item, "cast weights", empty * item),),
    )  # fmt: skip


def clip(
    weights: tuple[Weight, ...], plan: Plan, sizes: Sizes, gradients: Gradients, apart: Axes = ()
) -> tuple[Op, ...]:
    """The norm of all gradients, by which Adam's are clipped: no update starts before it is known.

    A pass over the gradients, two operations an element, and an all-reduce of one number over each
    axis that shards weights, or along which they are `apart`; the scaling is part of the updates.
    MaxText, AXLearn and Levanter clip by default; taken for every run with Adam and for no other.
    """
    if plan.optimizer != "adam":
        return ()
    elements = sum(weight.copies * sizes.elements(weight.local) for weight in weights)
    deps = tuple(dict.fromkeys(dep for w in weights for dep in gradients.deps(w.name)))
    norm = Compute(
        name="gradient_norm", phase=Phase.OPTIMIZER, scope="gradient_norm", deps=deps,
        work=Vector(elements * DTYPE_BYTES[plan.finished_dtype], 0, NORM_FLOPS * elements),
    )  # fmt: skip
    sharding = {axis for w in weights for axes in w.local.layout for axis in axes}.union(apart)
    return (norm, *(_sum_over(axis) for axis in plan.active_axes if axis in sharding))


def _sum_over(axis: str) -> Collective:
    """The shards' sums of squares added up over one axis."""
    return Collective(
        name=f"all-reduce/gradient_norm@{axis}", phase=Phase.OPTIMIZER,
        kind=CollectiveKind.ALL_REDUCE, axes=(axis,), bytes=DTYPE_BYTES["f32"], dtype="f32",
        mode=Mode.SYNC, scope="gradient_norm", deps=(Dep("gradient_norm"),),
    )  # fmt: skip


def update(weight: Weight, plan: Plan, sizes: Sizes, gradient: str) -> Compute:
    """The update of one weight (all layers of it): reads weight, moments and gradient."""
    elements = weight.copies * sizes.elements(weight.local)
    state = moment_bytes(weight, plan, sizes)
    stored = elements * DTYPE_BYTES[plan.param_dtype]
    reads = stored + state + elements * DTYPE_BYTES[plan.finished_dtype]
    return Compute(
        name=f"update/{weight.name}", phase=Phase.OPTIMIZER, scope=weight.name,
        work=Vector(reads, stored + state, UPDATE_FLOPS[plan.optimizer] * elements),
        frees=(gradient,) if gradient else (),
    )  # fmt: skip


def streamed(updates: Sequence[Compute], moments: Sequence[Alloc]) -> tuple[Op, ...]:
    """The updates, each between the copies of its moments from the host and back to it.

    The next weight's moments come, one after another, while those of this one are updated and
    leave, once those of the weight before have left: two weights' are in HBM at a time. Without
    `moments` the updates are as they were.
    """
    if not moments:
        return tuple(updates)
    ops: list[Op] = [_fetch(updates[0], moments[0])]
    for place, (update, state) in enumerate(zip(updates, moments, strict=True)):
        after, fetched = place + 1, Dep(f"{TransferKind.FROM_HOST}/{state.tensor}")
        if after < len(updates):
            left = tuple(Dep(f"{TransferKind.TO_HOST}/{m.tensor}") for m in moments[:place][-1:])
            fetch = _fetch(updates[after], moments[after])
            ops.append(replace(fetch, deps=(fetched, *left)))
        ops.append(replace(update, deps=(*update.deps, fetched)))
        ops.append(_copy(TransferKind.TO_HOST, update, state, frees=(state.tensor,)))
    return tuple(ops)


def _fetch(update: Compute, state: Alloc) -> Transfer:
    return _copy(TransferKind.FROM_HOST, update, state, allocs=(state,))


def _copy(kind: TransferKind, update: Compute, state: Alloc, **life: Any) -> Transfer:
    return Transfer(
        name=f"{kind}/{state.tensor}", phase=Phase.OPTIMIZER, kind=kind, bytes=state.bytes,
        scope=update.scope, **life,
    )  # fmt: skip
