"""The optimizer: its state in HBM, and the update of each weight at the end of the step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

from tpusim.base.phase import Phase
from tpusim.frames import adafactor
from tpusim.frames.body_frame import stored_weights
from tpusim.frames.newton_schulz import CATEGORY, orthogonalised
from tpusim.lowering import GradientDeps
from tpusim.partition import DTYPE_BYTES, Sizes, StoredWeight
from tpusim.plan import Axes, Numerics, Optimizer
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
    VectorWork,
)

UPDATE_FLOPS = {
    "adam": 12.0, "sgd": 2.0, "momentum": 4.0, "lars": 8.0, "lamb": 8.0, "muon": 2.0,
}  # fmt: skip
"""Vector operations per element: Adam's two moving averages, their correction, root and quotient
(Kingma and Ba, arXiv:1412.6980, algorithm 1); a scaled subtraction, of Muon after its iterations;
with momentum also its average, and with LARS weight decay and two rates (You, Gitman and Ginsburg,
arXiv:1708.03888, algorithm 1). LAMB's moments are counted as Adam's, and here its second pass (You
et al., arXiv:1904.00962, algorithm 2). Adafactor has passes of its own, see `adafactor`."""

MOMENTUM_FLOPS = 6.0
"""Vector operations per element of Muon's momentum, Nesterov's step and the sum of squares."""

CLIPPED = ("adam", "muon")
"""Optimizers of which MaxText, AXLearn or Levanter clip the gradients by default."""

TWO_MOMENTS = ("adam", "lamb")
"""Optimizers that keep averages of each gradient and of its square."""

ONE_MOMENTUM = ("momentum", "lars")
"""Optimizers that keep one average of each gradient."""

RATED = ("lars", "lamb")
"""Optimizers that give each weight a rate: the norm of the weight over that of its update."""

SUM_OF_SQUARES_FLOPS = 2.0
"""Vector operations per element of a sum of squares."""

Update: TypeAlias = tuple[Compute, *tuple[Op, ...]]
"""The operations of a weight's update; the first reads the gradient and the moments."""


def trained(weights: Iterable[StoredWeight]) -> tuple[StoredWeight, ...]:
    """Return the weights that the step updates: those with a gradient."""
    return tuple(weight for weight in weights if weight.trained)


def moment_elements(optimizer: str, weight: StoredWeight, sizes: Sizes) -> Number:
    """Return the elements of optimizer state on one device.

    Adam keeps two for each weight, Muon, LARS and momentum one, plain SGD none; Adafactor keeps
    means over the two largest dimensions of a matrix, see `adafactor.moment_elements`.
    """
    elements = sizes.elements(weight.updated)
    if optimizer in TWO_MOMENTS:
        return weight.copies * 2 * elements
    if optimizer in ("muon", *ONE_MOMENTUM):
        return weight.copies * elements
    if optimizer == "sgd":
        return 0
    return adafactor.moment_elements(weight, sizes)


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of weights on one device.

    gradients: dtype in which they find the gradients.
    staged: the weights are those of one stage of a pipeline.
    """

    optimizer: Optimizer
    numerics: Numerics
    gradients: str
    sizes: Sizes
    staged: bool

    def optimizer_of(self, weight: StoredWeight) -> str:
        """Return the optimizer of one weight: Adam for those that Muon leaves out."""
        name = self.optimizer.name
        return "adam" if name == "muon" and weight.matrix is None else name

    def moment_bytes(self, weight: StoredWeight) -> Number:
        """Return the bytes of optimizer state on one device.

        Adam's moments are as many of the first as of the second; a momentum is a first moment,
        Adafactor's means are second ones.
        """
        name = self.optimizer_of(weight)
        first, second = (
            DTYPE_BYTES[self.numerics.moment],
            DTYPE_BYTES[self.numerics.of("second_moment")],
        )
        items = dict.fromkeys(TWO_MOMENTS, (first + second) / 2) | dict.fromkeys(
            ("muon", *ONE_MOMENTUM), first
        )
        item = items.get(name, second)
        return moment_elements(name, weight, self.sizes) * item

    def resident(self, weights: tuple[StoredWeight, ...]) -> tuple[Alloc, ...]:
        """Return the allocations of weights, and of moments if they are not on the host."""
        moments = () if self.optimizer.offload else self.moments(weights)
        return (*stored_weights(weights, self.numerics, self.sizes), *moments)

    def moments(self, weights: tuple[StoredWeight, ...]) -> tuple[Alloc, ...]:
        """Return the optimizer's moments of each weight that is trained; plain SGD has none."""
        if self.optimizer.name == "sgd":
            return ()
        allocs = []
        for weight in trained(weights):
            state = self.moment_bytes(weight)
            padded = state * self.sizes.padding(weight.updated)
            allocs.append(Alloc(f"{weight.name}/moments", state, "optimizer state", padded))
        return tuple(allocs)

    def clip(
        self,
        weights: tuple[StoredWeight, ...],
        finished: GradientDeps,
        apart: Axes = (),
    ) -> tuple[Op, ...]:
        """Return the norm of all gradients, by which they are clipped, before any update.

        A pass over the gradients, two operations per element, and an all-reduce of one number over
        each axis that shards weights, or along which they are `apart`; the scaling is part of the
        updates. MaxText, AXLearn and Levanter clip by default; taken for every run with Adam or
        Muon and for no other.
        """
        if self.optimizer.name not in CLIPPED:
            return ()
        weights = trained(weights)
        elements = sum(weight.copies * self.sizes.elements(weight.updated) for weight in weights)
        deps = tuple(dict.fromkeys(dep for w in weights for dep in finished.deps(w.name)))
        norm = Compute(
            name="gradient_norm",
            phase=Phase.OPTIMIZER,
            scope="gradient_norm",
            deps=deps,
            work=VectorWork(
                elements * DTYPE_BYTES[self.gradients], 0, SUM_OF_SQUARES_FLOPS * elements
            ),
        )
        sharding = {axis for w in weights for axis in _axes(w)}.union(apart)
        sums = (_sum_over((axis,), "gradient_norm") for axis in self.sizes.axes if axis in sharding)
        return (norm, *sums)

    def rates(self, weights: tuple[StoredWeight, ...], finished: GradientDeps) -> tuple[Op, ...]:
        """Return the norms by which LARS and LAMB rate each weight, before any update.

        LARS reads weight and gradient; LAMB reads the moments too and updates them, as its second
        norm is that of the update. Both sums of all layers and weights that the same axes divide
        are added up in one all-reduce.
        """
        name = self.optimizer.name
        if name not in RATED:
            return ()
        ops: list[Op] = []
        groups: dict[Axes, list[StoredWeight]] = {}
        for weight in trained(weights):
            elements = weight.copies * self.sizes.elements(weight.updated)
            given = self.numerics.param, self.gradients
            reads = elements * sum(DTYPE_BYTES[dtype] for dtype in given)
            state = self.moment_bytes(weight) if name == "lamb" else 0
            flops = 2 * SUM_OF_SQUARES_FLOPS + (UPDATE_FLOPS["adam"] if name == "lamb" else 0)
            work = VectorWork(reads + state, state, flops * elements)
            ops.append(
                Compute(
                    name=f"norms/{weight.name}",
                    phase=Phase.OPTIMIZER,
                    scope=weight.name,
                    deps=finished.deps(weight.name),
                    work=work,
                    frees=finished.frees(weight.name) if name == "lamb" else (),
                )
            )
            groups.setdefault(_axes(weight), []).append(weight)
        for axes, members in groups.items():
            if axes:
                count = 2 * sum(weight.copies for weight in members)
                ops.append(_sum_over(axes, "rates", [f"norms/{w.name}" for w in members], count))
        return tuple(ops)

    def update(self, weight: StoredWeight, gradients: Sequence[str]) -> Update:
        """Return the update of one weight (all layers): it reads weight, moments and `gradients`.

        Muon's momentum of a matrix is made orthogonal before the weight is updated with it,
        Adafactor goes through weight and gradient several times (`adafactor.passes`). LAMB has
        updated the moments for its norms, see `rates`.
        """
        elements = weight.copies * self.sizes.elements(weight.updated)
        state, stored = self.moment_bytes(weight), elements * DTYPE_BYTES[self.numerics.param]
        reads = state + elements * DTYPE_BYTES[self.gradients]
        frees = tuple(gradients)
        name = self.optimizer_of(weight)
        if name == "adafactor":
            grad = elements * DTYPE_BYTES[self.gradients]
            return adafactor.passes(weight, self.sizes, (grad, state, stored), frees)
        flops = UPDATE_FLOPS[name] * elements
        if name == "lamb":
            return (_update(weight, VectorWork(stored + state, stored, flops), frees=()),)
        if name != "muon":
            return (
                _update(weight, VectorWork(stored + reads, stored + state, flops), frees=frees),
            )
        made = Alloc(f"{weight.name}/update", elements * DTYPE_BYTES["f32"], CATEGORY)
        momentum = Compute(
            name=f"momentum/{weight.name}",
            phase=Phase.OPTIMIZER,
            scope=weight.name,
            work=VectorWork(reads, state + made.bytes, MOMENTUM_FLOPS * elements),
            allocs=(made,),
            frees=frees,
        )
        work = VectorWork(stored + made.bytes, stored, flops)
        rest = (
            *orthogonalised(weight, self.sizes, self.staged),
            _update(weight, work, frees=(made.tensor,)),
        )
        return momentum, *rest


def _axes(weight: StoredWeight) -> Axes:
    """Return the axes that divide the update of a weight."""
    return tuple(axis for axes in weight.updated.layout for axis in axes)


def _sum_over(axes: Axes, scope: str, deps: Sequence[str] = (), count: int = 1) -> Collective:
    """Return the all-reduce of shards' sums of squares.

    scope: what is summed, and the operation that it follows, where `deps` are not given.
    count: numbers that are summed.
    """
    return Collective(
        name=f"all-reduce/{scope}@{','.join(axes)}",
        phase=Phase.OPTIMIZER,
        kind=CollectiveKind.ALL_REDUCE,
        axes=axes,
        bytes=count * DTYPE_BYTES["f32"],
        dtype="f32",
        mode=Mode.SYNC,
        scope=scope,
        deps=tuple(map(Dep, deps or (scope,))),
    )


def _update(weight: StoredWeight, work: VectorWork, frees: tuple[str, ...]) -> Compute:
    return Compute(
        name=f"update/{weight.name}",
        phase=Phase.OPTIMIZER,
        scope=weight.name,
        work=work,
        frees=frees,
    )


def streamed_updates(updates: Sequence[Update], moments: Sequence[Alloc]) -> tuple[Op, ...]:
    """Return the updates, each between the copies of its moments from the host and back.

    The next weight's moments come, one after another, while those of this one are updated and
    leave, once those of the weight before have left: two weights' are in HBM at a time. Without
    `moments` the updates are as they were.
    """
    if not moments:
        return tuple(chain.from_iterable(updates))
    scopes = [first.scope for first, *_ in updates]
    ops: list[Op] = [_fetch(scopes[0], moments[0])]
    for place, (update, state) in enumerate(zip(updates, moments, strict=True)):
        after, fetched = place + 1, Dep(f"{TransferKind.FROM_HOST}/{state.tensor}")
        if after < len(updates):
            left = tuple(Dep(f"{TransferKind.TO_HOST}/{m.tensor}") for m in moments[:place][-1:])
            fetch = _fetch(scopes[after], moments[after])
            ops.append(replace(fetch, deps=(fetched, *left)))
        first, *rest = update
        ops += [replace(first, deps=(*first.deps, fetched)), *rest]
        ops.append(_copy(TransferKind.TO_HOST, scopes[place], state, frees=(state.tensor,)))
    return tuple(ops)


def _fetch(scope: str, state: Alloc) -> Transfer:
    return _copy(TransferKind.FROM_HOST, scope, state, allocs=(state,))


def _copy(kind: TransferKind, scope: str, state: Alloc, **life: Any) -> Transfer:
    return Transfer(
        name=f"{kind}/{state.tensor}",
        phase=Phase.OPTIMIZER,
        kind=kind,
        bytes=state.bytes,
        scope=scope,
        **life,
    )
