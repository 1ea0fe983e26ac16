"""Predictions of rows of the kind."""

from typing import Any


def collective(measured: Any) -> float:
    """Return the predicted seconds of a row."""
    raise NotImplementedError("collective")
