"""Predictions of rows of the kind."""

from typing import Any


def attention(measured: Any) -> float:
    """Return the predicted seconds of a row."""
    raise NotImplementedError("attention")
