"""Distributions of the lengths of prompts and outputs, in tokens."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np

from tpusim.base.errors import TrafficError
from tpusim.traffic.checks import MOST_TOKENS, number, whole
from tpusim.traffic.requests import Column


class Lengths(ABC):
    """A distribution of lengths, each a whole number of at least 1 token."""

    @abstractmethod
    def draw(self, count: int, random: np.random.Generator) -> Column:
        """Return `count` lengths, int64, drawn independently."""

    @staticmethod
    def uniform(low: int, high: int) -> "Lengths":
        """Return the uniform distribution of the whole numbers from `low` to `high`, both included.

        Raise TrafficError unless 1 <= low <= high.
        """
        first, last = whole("low", low, MOST_TOKENS), whole("high", high, MOST_TOKENS)
        if first > last:
            raise TrafficError(
                f"low is {first:,} and high {last:,}; write the shorter length first"
            )
        return UniformLengths(low=first, high=last)

    @staticmethod
    def inferencex(length: int, ratio: float) -> "Lengths":
        """Return lengths as `--random-range-ratio` has them in InferenceX: uniform in [r L, L].

        `benchmark_serving.py` of InferenceX (formerly InferenceMAX) draws
        `randint(int(L * r), L + 1)`; a length of 0 is taken as 1 here.

        length: L, in tokens.
        ratio: r, from 0 to 1; 1 makes all lengths L.

        Raise TrafficError for a value outside its range.
        """
        longest = whole("length", length, MOST_TOKENS)
        least = int(longest * number("ratio", ratio, 0, 1))
        return UniformLengths(low=max(least, 1), high=longest)

    @staticmethod
    def vllm(length: int, ratio: float) -> "Lengths":
        """Return lengths as `--random-range-ratio` has them in vLLM: L (1 - r) to L (1 + r).

        `RandomDataset` of vLLM's `benchmarks/datasets.py`, for `vllm bench serve`, draws uniformly,
        with the lower bound rounded down and the upper one up.

        length: L, in tokens.
        ratio: r, from 0 to below 1; 0 makes all lengths L.

        Raise TrafficError for a value outside its range.
        """
        mean = whole("length", length, MOST_TOKENS // 2)
        below_one = math.nextafter(1, 0)
        share = number("ratio", ratio, 0, below_one, ", and below 1")
        low, high = math.floor(mean * (1 - share)), math.ceil(mean * (1 + share))
        return UniformLengths(low=max(low, 1), high=high)

    @staticmethod
    def log_normal(
        median: float,
        *,
        mean: float | None = None,
        p90: float | None = None,
        p99: float | None = None,
        most: int = MOST_TOKENS,
    ) -> "Lengths":
        """Return the log-normal distribution of a median and one more number, rounded to tokens.

        median: tokens.
        mean: tokens, above the median: `sigma = sqrt(2 ln(mean / median))`.
        p90, p99: a percentile, in tokens, above the median: `sigma = ln(p / median) / z`, with z
            the quantile of the standard normal distribution.
        most: tokens to which longer lengths are cut, which lowers the mean.

        Raise TrafficError unless exactly one of `mean`, `p90` and `p99` is given, above the median.
        """
        middle = number("median", median, 1, MOST_TOKENS)
        given = {"mean": mean, "p90": p90, "p99": p99}
        known = {name: value for name, value in given.items() if value is not None}
        if len(known) != 1:
            raise TrafficError(
                f"a log-normal distribution with {len(known)} of mean, p90 and p99 beside its "
                "median; write exactly one of them"
            )
        ((name, value),) = known.items()
        log = math.log(number(name, value, middle, MOST_TOKENS, ", at least the median") / middle)
        if name == "mean":
            sigma = math.sqrt(2 * log)
        else:
            sigma = log / NormalDist().inv_cdf(int(name[1:]) / 100)
        return LogNormalLengths(median=middle, sigma=sigma, most=whole("most", most, MOST_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLengths(Lengths):
    """Whole numbers from `low` to `high`, both included, all equally probable."""

    low: int
    high: int

    def draw(self, count: int, random: np.random.Generator) -> Column:
        """Return `count` lengths, int64; those of a fixed length take nothing from `random`."""
        if self.low == self.high:
            return np.full(count, self.low, dtype=np.int64)
        return random.integers(self.low, self.high, size=count, endpoint=True, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLengths(Lengths):
    """Lengths whose logarithms are normal: `median exp(sigma z)`, rounded, from 1 to `most`."""

    median: float
    sigma: float
    most: int

    def draw(self, count: int, random: np.random.Generator) -> Column:
        """Return `count` lengths, int64."""
        logs = random.normal(math.log(self.median), self.sigma, size=count)
        lengths = np.exp(np.minimum(logs, math.log(2 * self.most)))
        return np.clip(np.rint(lengths).astype(np.int64), 1, self.most)


Length: TypeAlias = int | Lengths
"""A fixed length in tokens, or a distribution."""


def lengths_of(where: str, given: Length) -> Lengths:
    """Return a distribution; a whole number is a fixed length. Raise TrafficError for all else."""
    if isinstance(given, Lengths):
        return given
    tokens = whole(where, given, MOST_TOKENS)
    return UniformLengths(low=tokens, high=tokens)
