"""How much of a test runs by default, and how much under `pytest -m thorough`.

By default a law is tried on its first few seeds, on a few examples and on a sample of its cases;
`pytest -m thorough` tries it on all of them.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

ALL_EXAMPLES = 100
"""Examples of a law under `-m thorough`, if it asks for no other number."""


def thorough(*values: Any) -> Any:
    """Return a case that only `-m thorough` runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def seeds(*bounds: int, default: int = 3) -> list[Any]:
    """Return the seeds of `range(*bounds)`; all but the first few are thorough."""
    return [thorough(seed) if at >= default else seed for at, seed in enumerate(range(*bounds))]


def sample(cases: Iterable[Any], every: int) -> list[Any]:
    """Return all cases; all but the first of each `every` are thorough.

    A plain tuple is a case of several parameters.
    """
    return [
        case if at % every == 0 else thorough(*(case if type(case) is tuple else (case,)))
        for at, case in enumerate(cases)
    ]


def examples(count: int) -> settings:
    """Return the settings for `count` examples under `-m thorough`, and fewer by default."""
    return settings(max_examples=max(1, count * settings.default.max_examples // ALL_EXAMPLES))
