"""Predictions of rows of the kind."""

from typing import Any


def hlo_line(measured: Any) -> float:
    """Return the predicted seconds of a row."""
    raise NotImplementedError("hlo_line")
