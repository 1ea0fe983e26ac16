"""Adafactor's update of a weight: the passes over the weight, its gradient and its moments.

As `optax.adafactor` writes it (Shazeer and Stern, arXiv:1804.04235, algorithms 4 and 5), a program
goes through the gradient for the means, once more for the norm by which the update is clipped, and
a third time for the update; and twice through the weight for its scale, before it is updated. None
of these passes can run in another, as each needs a sum of the one before it over the whole weight.
A weight that is not factored has the mean of its squares in the pass of the norm.
"""

from tpusim.base.phase import Phase
from tpusim.partition import Sizes, StoredWeight
from tpusim.program import Compute, Number, VectorWork

LEAST_FACTORED = 128
"""The least size of the second largest dimension of a weight whose moments are factored
(`min_dim_size_to_factor` of optax and T5X)."""

SCALE_FLOPS = (2.0, 3.0)
MEANS_FLOPS = 5.0
CLIP_FLOPS = 5.0
UPDATE_FLOPS = 8.0
MOMENT_FLOPS = 21.0
UNFACTORED_UPDATE_FLOPS = 19.0
"""Vector operations per element: of both passes for the weight's scale, of the means of rows and
columns, of the norm of the update, and of the update; and where the moments are not factored, of
the moment and that norm, and of the update. As XLA counts them with gradients in bf16 (T5-base on
v3 4x4, Adafactor, libtpu 0.0.42.1)."""


def factored_dims(weight: StoredWeight, sizes: Sizes) -> tuple[int, int] | None:
    """Return the places of the two largest dimensions of a weight, over which means are kept.

    None where the second largest has less than `LEAST_FACTORED` elements: such a weight has one
    moment for each element.
    """
    dims = weight.updated.dims
    order = sorted(range(len(dims)), key=lambda place: sizes.dims[dims[place]])
    if len(order) < 2 or sizes.dims[dims[order[-2]]] < LEAST_FACTORED:
        return None
    return order[-2], order[-1]


def moment_elements(weight: StoredWeight, sizes: Sizes) -> Number:
    """Return the elements of the moments on one device: two means, or one for each element."""
    elements = weight.copies * sizes.elements(weight.updated)
    found = factored_dims(weight, sizes)
    if found is None:
        return elements
    dims, layout = weight.updated.dims, weight.updated.layout
    means: Number = 0
    for place in found:
        means = means + elements / sizes.extent(dims[place], layout[place])
    return means


def passes(
    weight: StoredWeight,
    sizes: Sizes,
    nbytes: tuple[Number, Number, Number],
    frees: tuple[str, ...],
) -> tuple[Compute, *tuple[Compute, ...]]:
    """Return the passes of the update of one weight (all layers).

    nbytes: of its gradient, its moments and the weight itself.
    frees: the gradient, which the last pass reads.
    """
    grad, state, stored = nbytes
    elements = weight.copies * sizes.elements(weight.updated)

    def one(
        name: str, read: Number, written: Number, flops: float, freed: tuple[str, ...] = ()
    ) -> Compute:
        work = VectorWork(read, written, flops * elements, compiled=True)
        return Compute(
            name=f"{name}/{weight.name}",
            phase=Phase.OPTIMIZER,
            scope=weight.name,
            work=work,
            frees=freed,
        )

    first, second = SCALE_FLOPS
    scale = one("scale", stored, 0, first), one("scale_again", stored, 0, second)
    if factored_dims(weight, sizes) is None:
        return (
            one("moments", grad + state, state, MOMENT_FLOPS),
            *scale,
            one("update", grad + state + stored, stored, UNFACTORED_UPDATE_FLOPS, frees),
        )
    return (
        one("means", grad + state, state, MEANS_FLOPS),
        one("clip", grad, 0, CLIP_FLOPS),
        *scale,
        one("update", grad + stored, stored, UPDATE_FLOPS, frees),
    )
