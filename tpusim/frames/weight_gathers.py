"""The gathers that begin a step whose weights are updated in parts.

Between steps each device has its part of the weights. They are cast to the compute dtype first, so
that less is gathered (MaxText's gradient_accumulation.py, `shard_optimizer_over_data`), and are
whole, but for the axes that shard them in the step, to the end of the backward pass.
"""

from collections.abc import Collection, Iterator, Sequence

from tpusim.base.phase import Phase
from tpusim.lowering import AskedPlace, BodyChoices
from tpusim.partition import (
    DTYPE_BYTES,
    LocalShape,
    Sizes,
    StoredWeight,
    is_across,
    reshard,
)
from tpusim.program import Alloc, Collective, Mode


def gathers(
    weights: Sequence[StoredWeight],
    shards: Collection[str],
    choices: BodyChoices,
    sizes: Sizes,
    place: AskedPlace,
) -> tuple[Collective, ...]:
    """Return what leads from weights as they are updated to weights as the step reads them.

    Each is gathered on its own while the core waits (language models over 8 devices of v4 and 16 of
    v5e, libtpu 0.0.42.1), by the lowering's algorithm, or the fastest where the plan asks for it.

    shards: the weights of which the shards are cast before.
    """
    return tuple(
        one
        for weight in weights
        for one in _of(
            weight,
            choices.numerics.compute if weight.name in shards else choices.numerics.param,
            choices,
            sizes,
            place,
        )
    )


def _of(
    weight: StoredWeight, dtype: str, choices: BodyChoices, sizes: Sizes, place: AskedPlace
) -> Iterator[Collective]:
    taken: tuple[str, ...] = ()
    for step in reshard(weight.updated.layout, (), weight.local.layout):
        axes = tuple(axis for axis in sizes.axes if axis in step.axes)
        low = place.lowering((axes, choices.tiles_weights(axes)))
        elements = weight.copies * sizes.elements(LocalShape(weight.local.dims, step.payload))
        nbytes = elements * DTYPE_BYTES[dtype]
        picked = "best" if choices.compiler.collectives == "best" else low.gather_algorithm
        name = f"{weight.name}/whole@{','.join(axes)}"
        yield Collective(
            name=f"{step.kind}/{name}",
            phase=Phase.FORWARD,
            kind=step.kind,
            axes=axes,
            bytes=nbytes,
            dtype=dtype,
            mode=Mode.SYNC,
            algorithm="" if is_across(axes) else picked,
            scope=weight.name,
            allocs=(Alloc(name, nbytes, "gathered weights"),),
            frees=taken,
        )
        taken = (name,)
