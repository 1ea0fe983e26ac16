"""Answers as JSON, which has no word for what is no number: NaN and infinities are null."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def json_text(value: Any) -> str:
    """Return indented JSON that every reader takes.

    >>> print(json_text({"gap": float("inf"), "rows": (1, float("nan"))}).replace("\\n", ""))
    {  "gap": null,  "rows": [    1,    null  ]}
    """
    try:
        return json.dumps(value, indent=2, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
