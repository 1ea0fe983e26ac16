"""Factors from measured times: Bayesian regression of logarithms on elasticities.

A row is a step or an operation. With `t` the factors' logarithms, and `J` the elasticities of its
predicted time (by how many per cent it grows when a factor grows by one),

    log(measured / predicted) = J t + error,    t ~ N(0, S),    error ~ N(0, s^2 / weight)

S is diagonal: how far factors are known to be off. The error has an unknown scale of its own in
each group of rows, with an inverse-gamma prior (Gelman et al., "Bayesian Data Analysis", 14), so
that one row far off is mostly error, and many rows that agree say how large errors are. The scale
of a factor opens too, the more rows there are of it: one row far off is not believed, many are.
Both are found by expectation maximisation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ERROR, ERROR_ROWS = 0.07, 3.0
"""The scale of errors that is expected, and the rows that this counts as much as.

What runs of one family and chip do not have in common, by maximum likelihood 0.07 to 0.09
(experiments/own_calibration). Releases of one software move the same runs by 2 to 7 %."""

SPREAD_COUNT = 1.0
"""The factors that the expected scale of a factor counts as much as, where many rows have it."""

ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured times beside predictions. One entry per row, all of the same length.

    ratios: logarithm of measured over predicted time.
    elasticities: of the predicted time, [row, factor].
    groups: names of the groups that share the scale of their errors.
    weights: of a row in its group; steps have 1.
    """

    ratios: Floats
    elasticities: Floats
    groups: tuple[str, ...]
    weights: Floats

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """Return the rows of several sources."""
        return cls(
            np.concatenate([part.ratios for part in parts]),
            np.concatenate([part.elasticities for part in parts]),
            tuple(group for part in parts for group in part.groups),
            np.concatenate([part.weights for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.ratios)


@dataclass(frozen=True, slots=True)
class FactorEstimate:
    """Logarithms of factors: their mean, covariance, and the scale of each group's errors.

    held: True for a factor that is at its physical bound, with the variance that it has alone.
    rows: how many rows of equal weight say as much about each factor.
    """

    mean: Floats
    covariance: Floats
    scales: dict[str, float]
    held: NDArray[np.bool_]
    rows: Floats

    def half(self, at: int, chance: float) -> float:
        """Return half the width of the interval that holds a factor with this probability.

        It is that of Student's t, since the scale of the errors is learnt too, by the expansion of
        Cornish and Fisher (Abramowitz and Stegun, 26.7.5).
        """
        z, free = NormalDist().inv_cdf((1 + chance) / 2), ERROR_ROWS + self.rows[at]
        wide = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        return float(wide * np.sqrt(self.covariance[at, at]))


def estimate(rows: Rows, spreads: Floats, least: Floats) -> FactorEstimate:
    """Return the factors' logarithms that explain the rows.

    spreads: expected standard deviation of each.
    least: the least value of each, by physics; one that would be below it is there.
    """
    held = np.zeros(len(spreads), bool)
    while True:
        found = _with_held(rows, spreads, np.where(held, least, 0.0), held)
        beyond = ~held & (found.mean < least)
        if not beyond.any():
            return found
        held |= beyond


def _with_held(
    rows: Rows, spreads: Floats, fixed: Floats, held: NDArray[np.bool_]
) -> FactorEstimate:
    """Return the estimate where some factors are held at given values."""
    free = ~held
    design = rows.elasticities[:, free]
    ratios = rows.ratios - rows.elasticities @ fixed
    names = tuple(dict.fromkeys(rows.groups))
    group = np.array([names.index(name) for name in rows.groups])
    counts = np.bincount(group, rows.weights, len(names))
    scale2, expected2 = np.full(len(names), ERROR**2), spreads[free] ** 2
    prior2 = expected2.copy()
    for _ in range(ROUNDS):
        precision = rows.weights / scale2[group]
        covariance = np.linalg.inv(design.T @ (precision[:, None] * design) + np.diag(1 / prior2))
        mean = covariance @ (design.T @ (precision * ratios))
        left = (ratios - design @ mean) ** 2
        left += np.einsum("ri,ij,rj->r", design, covariance, design)
        sums = np.bincount(group, rows.weights * left, len(names))
        scale2 = (ERROR_ROWS * ERROR**2 + sums) / (ERROR_ROWS + counts)
        agreeing = _alike(rows, scale2[group])[free]
        usual = SPREAD_COUNT * (1 + 4 / np.maximum(agreeing - 1, 1e-9))
        prior2 = (usual * expected2 + mean**2 + np.diag(covariance)) / (usual + 1)
    squared = design.T @ ((rows.weights**2 / scale2[group])[:, None] * design)
    whole, spread = fixed.copy(), np.zeros((len(held), len(held)))
    whole[free] = mean
    spread[np.ix_(free, free)] = covariance @ (squared + np.diag(1 / prior2)) @ covariance
    known = (rows.weights / scale2[group]) @ rows.elasticities**2
    spread[held, held] = 1 / (known[held] + 1 / spreads[held] ** 2)
    scales = dict(zip(names, np.sqrt(scale2).tolist(), strict=True))
    return FactorEstimate(whole, spread, scales, held, _alike(rows, scale2[group]))


def _alike(rows: Rows, scale2: Floats) -> Floats:
    """Return the rows of equal weight that say as much about each factor (Kish)."""
    said = (rows.weights / scale2)[:, None] * rows.elasticities**2
    found: Floats = said.sum(axis=0) ** 2 / np.maximum((said**2).sum(axis=0), 1e-300)
    return found
