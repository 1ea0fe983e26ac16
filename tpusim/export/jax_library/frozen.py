"""Steps that train a part of their weights; the others are left as they are."""

from collections.abc import Callable
from typing import Any

from tpusim.export.jax_library.layers import Array
from tpusim.export.jax_library.step_constants import FROZEN, loss


def trained(table: Any, within: str = "") -> Any:
    """Return what a table has for each weight, without those that are frozen.

    within: the table that it is a part of, with a slash.
    """
    if isinstance(table, list):
        return [trained(own, within) for own in table]
    if not isinstance(table, dict):
        return table
    kept = {name: own for name, own in table.items() if f"{within}{name}" not in FROZEN}
    return {name: trained(own, f"{name}/") for name, own in kept.items()}


def merged(own: Any, weights: Any) -> Any:
    """Return weights with those of `own` in place of theirs."""
    if isinstance(weights, list):
        return [merged(*pair) for pair in zip(own, weights, strict=True)]
    if not isinstance(weights, dict):
        return own
    return {name: merged(own[name], w) if name in own else w for name, w in weights.items()}


def loss_of_trained(weights: Any) -> Callable[..., Array]:
    """Return the loss as a function of the weights that are trained, and of the batch."""
    return lambda own, *batch: loss(merged(own, weights), *batch)
