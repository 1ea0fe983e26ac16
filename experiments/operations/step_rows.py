"""Predictions of rows of the kind."""

from typing import Any

from vision_step_rows import is_vision, vision_step


def step_category(measured: Any) -> float:
    """Return the predicted seconds of a row."""
    if is_vision(measured.params):
        return vision_step(measured)
    raise NotImplementedError("step_category")
