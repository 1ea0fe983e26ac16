"""The plans of the first sample on v5p and v6e, with the flags of recipes that offload.

Recipes of MaxText for v6e move gathers, scatters and reductions to the SparseCore. A twin is the
one of the same number in `sample.py`, in the style of MaxText and with these flags.
"""

from collections.abc import Iterator
from dataclasses import replace

import sample
from sample import Twin

GENERATIONS = ("v5p", "v6e")
"""Generations with a SparseCore that collectives use only where flags ask for it."""


def numbers() -> Iterator[int]:
    """Return the numbers of all twins: there is no last one."""
    return (number for number in sample.numbers() if draw(number) is not None)


def draw(number: int) -> Twin | None:
    """Return twin `number`, or None if the first sample has none on these generations."""
    twin = sample.draw(number)
    if twin is None or twin.pod.chip.generation not in GENERATIONS or twin.pod.num_slices > 1:
        return None
    return replace(twin, plan=twin.plan | {"style": "maxtext"}, flags="sparsecore")
