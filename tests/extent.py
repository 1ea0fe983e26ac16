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


class Extent:
    """Whether thorough cases are collected: conftest.py says so before it imports any test."""

    whole = True


def thorough(*values: Any) -> Any:
    """Return a case that only `-m thorough` runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def seeds(*bounds: int, default: int = 3) -> list[Any]:
    """Return the seeds of `range(*bounds)`; all but the first few are thorough."""
    every = range(*bounds)
    return [*every[:default], *_thorough(every[default:], whole=Extent.whole or not default)]


def sample(cases: Iterable[Any], every: int) -> list[Any]:
    """Return all cases; all but the first of each `every` are thorough.

    A plain tuple is a case of several parameters.
    """
    listed = list(cases)
    if not Extent.whole:
        return listed[::every]
    return [
        case if at % every == 0 else thorough(*(case if type(case) is tuple else (case,)))
        for at, case in enumerate(listed)
    ]


def _thorough(cases: Iterable[Any], *, whole: bool) -> list[Any]:
    """Return the cases as thorough ones; where only others run, collecting them takes long."""
    return [thorough(case) for case in cases] if whole else []


def examples(count: int) -> settings:
    """Return the settings for `count` examples under `-m thorough`, and fewer by default."""
    return settings(max_examples=max(1, count * settings.default.max_examples // ALL_EXAMPLES))
