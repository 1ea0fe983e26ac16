"""Floats become integers once, upwards for time and volume, downwards for rates."""

import pytest
from engines import nanobytes, nanobytes_per_ps
from hypothesis import given
from hypothesis import strategies as st

from tpusim.engine import picoseconds, whole_bytes


def test_decimal_seconds_are_exact() -> None:
    assert picoseconds(1e-6) == 1_000_000
    assert picoseconds(0.1 + 0.2) == 300_000_000_000
    assert picoseconds(21.7) == 21_700_000_000_000
    assert picoseconds(3 * 1.1e-6) == 3_300_000


def test_what_is_not_whole_is_rounded_up() -> None:
    assert picoseconds(1e-15) == 1
    assert picoseconds(1.0000001e-6) == 1_000_001
    assert nanobytes(1e-10) == 1
    assert whole_bytes(10.5) == 11
    assert picoseconds(0) == nanobytes(0) == whole_bytes(0) == 0


def test_rates_are_rounded_down_and_never_nothing() -> None:
    assert nanobytes_per_ps(1228.8e9) == 1_228_800_000
    assert nanobytes_per_ps(1999.0) == 1
    assert nanobytes_per_ps(1.0) == 1


@given(st.floats(0, 1e4), st.floats(0, 1e4))
def test_longer_is_never_shorter(one: float, other: float) -> None:
    short, long = sorted((one, other))
    assert picoseconds(short) <= picoseconds(long)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_what_is_no_quantity_is_refused(value: float) -> None:
    for convert in (picoseconds, nanobytes, whole_bytes, nanobytes_per_ps):
        with pytest.raises(ValueError, match="must be finite"):
            convert(value)


def test_a_link_without_bandwidth_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0 B/s"):
        nanobytes_per_ps(0.0)
