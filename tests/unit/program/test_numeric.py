"""Arithmetic on numbers and arrays."""

import numpy as np
import pytest

from tpusim.program import largest, power_sum, round_up, smallest


def test_numbers_stay_python_numbers() -> None:
    assert type(largest(1, 2.0)) is float
    assert (round_up(4160, 128), largest(1, 2), smallest(1, 2)) == (4224, 2, 1)


def test_arrays_element_by_element() -> None:
    values = np.array([1.0, 128.0, 129.0])
    assert round_up(values, 128).tolist() == [128, 128, 256]  # type: ignore[union-attr]
    assert largest(values, 128).tolist() == [128, 128, 129]  # type: ignore[union-attr]
    assert smallest(values, 128).tolist() == [1, 128, 128]  # type: ignore[union-attr]


def test_power_sum_is_a_sum_at_one_and_a_maximum_at_infinity() -> None:
    assert power_sum(3.0, 4.0, 1) == 7
    assert power_sum(3.0, 4.0, 2) == pytest.approx(5)
    assert power_sum(3.0, 4.0, 1e9) == pytest.approx(4)
    assert power_sum(0.0, 0.0, 6.2) == 0
    assert power_sum(1e-12, 1e-12, 100) == pytest.approx(1e-12 * 2**0.01)
