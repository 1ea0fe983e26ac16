"""The optimizer: what it keeps in HBM, and the update of each weight at the end of the step."""

from tpusim.partition.plan import Plan
from tpusim.partition.sizes import DTYPE_BYTES, Sizes
from tpusim.partition.template import Weight
from tpusim.phase import Phase
from tpusim.program import Alloc, Compute, Number, Vector

UPDATE_FLOPS = {"adam": 12.0, "adafactor": 16.0, "sgd": 2.0}
"""Vector operations an element: Adam's two moving averages, their correction, root and quotient
(Kingma and Ba, arXiv:1412.6980, algorithm 1); Adafactor's row and column means and the clipping of
its update (Shazeer and Stern, arXiv:1804.04235, algorithm 4); a scaled subtraction."""


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


def resident(weights: tuple[Weight, ...], plan: Plan, sizes: Sizes) -> tuple[Alloc, ...]:
    """What the step's arguments hold: the weights and the optimizer's moments."""
    item, moment = DTYPE_BYTES[plan.param_dtype], DTYPE_BYTES[plan.moment_dtype]
    allocs = []
    for weight in weights:
        stored = weight.copies * sizes.elements(weight.local)
        padding = sizes.padding(weight.local)
        state = moment * moment_elements(plan.optimizer, weight, sizes)
        allocs.append(Alloc(weight.name, stored * item, "weights", stored * item * padding))
        if plan.optimizer != "sgd":
            name = f"{weight.name}/moments"
            allocs.append(Alloc(name, state, "optimizer state", state * padding))
    return tuple(allocs)


def cast(weights: tuple[Weight, ...], plan: Plan, sizes: Sizes) -> Compute | None:
    """The copy of the local weights in the compute dtype, made once a step; None if stored so."""
    if plan.param_dtype == plan.dtype:
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


def update(weight: Weight, plan: Plan, sizes: Sizes, gradient: str) -> Compute:
    """The update of one weight (all layers of it): reads weight, moments and gradient."""
    elements = weight.copies * sizes.elements(weight.local)
    state = moment_elements(plan.optimizer, weight, sizes) * DTYPE_BYTES[plan.moment_dtype]
    stored = elements * DTYPE_BYTES[plan.param_dtype]
    reads = stored + state + elements * DTYPE_BYTES[plan.grad_dtype]
    return Compute(
        name=f"update/{weight.name}", phase=Phase.OPTIMIZER, scope=weight.name,
        work=Vector(reads, stored + state, UPDATE_FLOPS[plan.optimizer] * elements),
        frees=(gradient,) if gradient else (),
    )  # fmt: skip
