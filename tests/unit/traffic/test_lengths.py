"""Distributions of lengths: their bounds, their moments, and what they refuse."""

import math
from typing import Any

import numpy as np
import pytest

from tpusim import TpusimError
from tpusim.traffic import Lengths
from tpusim.traffic.lengths import lengths_of

MANY = 200_000


def drawn(lengths: Lengths, seed: int = 0) -> Any:
    return lengths.draw(MANY, np.random.Generator(np.random.PCG64(seed)))


@pytest.mark.parametrize(
    ("lengths", "low", "high"),
    [
        (lengths_of("prompt", 1024), 1024, 1024),
        (Lengths.uniform(3, 7), 3, 7),
        (Lengths.inferencex(1024, 0.8), 819, 1024),  # int(1024 * 0.8)
        (Lengths.inferencex(1024, 1), 1024, 1024),
        (Lengths.inferencex(1024, 0), 1, 1024),
        (Lengths.vllm(1000, 0.8), 199, 1800),  # 1000 * (1 - 0.8) is 199.99... in floats
        (Lengths.vllm(15, 0.5), 7, 23),  # rounded outwards
        (Lengths.vllm(1024, 0), 1024, 1024),
        (Lengths.vllm(3, 0.9), 1, 6),
    ],
)
def test_uniform_lengths_reach_their_bounds_and_no_further(
    lengths: Lengths, low: int, high: int
) -> None:
    found = drawn(lengths)
    assert (found.dtype, found.min(), found.max()) == (np.int64, low, high)
    sigma = (high - low + 1) / math.sqrt(12)
    assert abs(found.mean() - (low + high) / 2) <= 5 * sigma / math.sqrt(MANY)


def test_all_lengths_of_a_uniform_distribution_are_equally_frequent() -> None:
    counts = np.bincount(drawn(Lengths.uniform(1, 10)), minlength=11)[1:]
    expected = MANY / 10
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 33.7  # the 0.9999 quantile with 9 degrees of freedom


@pytest.mark.parametrize(
    ("given", "sigma"),
    [
        ({"mean": 1000 * math.exp(0.5)}, 1.0),
        ({"p90": 1000 * math.exp(1.2815515655446004 * 0.7)}, 0.7),
        ({"p99": 1000 * math.exp(2.3263478740408408 * 0.5)}, 0.5),
        ({"mean": 1000}, 0.0),
    ],
)
def test_a_log_normal_distribution_has_the_moments_that_it_is_given(
    given: dict[str, float], sigma: float
) -> None:
    logs = np.log(drawn(Lengths.log_normal(1000, **given)))
    assert logs.mean() == pytest.approx(math.log(1000), abs=5 * sigma / math.sqrt(MANY) + 1e-4)
    assert logs.std() == pytest.approx(sigma, rel=0.01, abs=1e-9)


def test_a_log_normal_distribution_is_cut_at_its_ends() -> None:
    found = drawn(Lengths.log_normal(2, p90=200, most=4096))
    assert (found.min(), found.max()) == (1, 4096)
    endless = drawn(Lengths.log_normal(1, p90=100_000_000))
    assert (endless.min(), endless.max()) == (1, 100_000_000)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lengths_of("prompt", 0), "prompt is 0; write a whole number from 1"),
        (lambda: lengths_of("prompt", 1.5), "prompt is 1.5"),
        (lambda: lengths_of("prompt", True), "prompt is true"),
        (lambda: lengths_of("prompt", "long"), "prompt is 'long'"),
        (lambda: Lengths.uniform(7, 3), "low is 7 and high 3; write the shorter length first"),
        (lambda: Lengths.uniform(0, 3), "low is 0"),
        (lambda: Lengths.inferencex(1024, 1.1), "ratio is 1.1; write a number from 0 to 1"),
        (lambda: Lengths.inferencex(1024, math.nan), "ratio is nan"),
        (lambda: Lengths.vllm(1024, 1.0), "ratio is 1.0; write a number from 0 to 1, and below 1"),
        (lambda: Lengths.vllm(1024, -0.1), "ratio is -0.1"),
        (lambda: Lengths.log_normal(10), "0 of mean, p90 and p99"),
        (lambda: Lengths.log_normal(10, mean=12, p90=30), "2 of mean, p90 and p99"),
        (
            lambda: Lengths.log_normal(10, mean=9),
            "from 10 to 1e+08, at least the median",
        ),
        (lambda: Lengths.log_normal(10, p90=math.inf), "p90 is inf"),
    ],
)
def test_what_is_no_length_is_refused_in_a_sentence(make: Any, words: str) -> None:
    with pytest.raises(TpusimError) as caught:
        make()
    assert words in str(caught.value)
