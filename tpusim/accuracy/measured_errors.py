"""The range of a prediction, from the residuals of the measured runs that are like it.

A run's residual is the logarithm of its measured over its predicted time. A prediction's range is

    exp(centre -+ c * spread)

The centre is the weighted mean of the residuals, the spread the weighted mean of their distances
from it with that of releases of one program (`RELEASES`), independent of each other, and `c` what
makes ranges made so hold 80 % of the families of measured runs. The weights of the runs fall with
their distance d in features, as exp(-d^2 / 2), and a family of runs together weighs as much as its
nearest run, since its errors are not independent. To them comes a prior, which counts as much as
`Bandwidths.prior` families: its centre is 0, its spread that of all runs. Far from all that was
measured the prior is all that is left.

`c` is conformal (Vovk et al. 2005; Barber et al. 2021, "Predictive inference with the
jackknife+"): each measured run gets centre and spread from the other families' runs, and c is the
quantile of |residual - centre| / spread at 80 % times (n + 1) / n for n families, each of which
counts one: the next program is another family, and not another run of a large one (Dunn, Wasserman
and Ramdas 2023, "Distribution-free prediction sets for two-layer hierarchical models").
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import product
from math import exp, hypot
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.accuracy.assumed_spread import assumed_spread
from tpusim.accuracy.error_range import COVERAGE, ErrorRange
from tpusim.accuracy.residuals import Facts, Residual, families, own_residuals, residuals
from tpusim.accuracy.run_features import RunFeatures

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """The distances in features at which a measured run counts less, by a factor of exp(-1/2).

    chip: for another generation, a distance of 1.
    kind: for another style, for experts or not, for quantised matmuls or not: each a distance of 1.
    size: for parameters, step time and MFU, in standard deviations of their logarithms.
    shares: for exposed communication, vector work and attention, in standard deviations.
    prior: the number of families that the prior counts as much as.
    """

    chip: float
    kind: float
    size: float
    shares: float
    prior: float


BANDWIDTHS = Bandwidths(chip=1.0, kind=1.0, size=0.7, shares=0.5, prior=0.4)
"""Those of `BANDWIDTH_CHOICES` with the best score on the measured runs, to within some percent;
`tpusim.validation.residual_table` prints both scores."""

BANDWIDTH_CHOICES = {
    "chip": (1.0, 1.4, 2.0, 3.0, 5.0),
    "kind": (0.7, 1.0, 1.4, 2.0, 3.0),
    "size": (0.5, 0.7, 1.0, 1.4, 2.0),
    "shares": (0.5, 0.7, 1.0, 1.4),
    "prior": (0.1, 0.2, 0.4, 0.6, 0.8),
}


ROUNDING = 1e-9
"""Slack in counts of families, which are sums of fractions."""

LEAST_SPREAD = 1e-6
"""The spread of runs with equal residuals, so that distances can be given in spreads."""


class _Local(NamedTuple):
    """Centre and spread of the residuals around a run, and the families like it."""

    centre: float
    spread: float
    support: float


RELEASES = 0.037
"""The mean distance, in logarithms, of a release of one program from all of them. Two releases of
one configuration are sqrt(2) times as far apart in the mean, a configuration counting one (52
repeats of 25, tests/measured/release_repeats.csv). Residuals of few runs can be closer by luck."""

OTHER_ARCHITECTURES = 0.44
"""Half of the range, in logarithms, of models that are no decoder or encoder: 80 % of 36 measured
systems of other architectures are within it (experiments/systems; largest: 1.57)."""


class MeasuredErrors:
    """The residuals of measured runs, and the ranges that follow from them."""

    def __init__(
        self,
        rows: Sequence[Residual],
        bandwidths: Bandwidths = BANDWIDTHS,
        releases: float = RELEASES,
    ) -> None:
        names = families(rows)
        self.rows = tuple(rows)
        self.bandwidths = bandwidths
        self.releases = releases
        self._family = np.array([names.index(row.family) for row in rows])
        self._of_family = {name: self._family == place for place, name in enumerate(names)}
        self._residuals: Floats = np.array([row.residual for row in rows])
        self._chips = np.array([row.features.chip for row in rows])
        self._kinds = np.array([row.features.kinds for row in rows], object)
        self._apart = np.array([row.features.apart for row in rows])
        self._measures = self._scaled([row.features for row in rows])

    def range(self, features: RunFeatures, without: str = "") -> ErrorRange:
        """Return the range of a prediction.

        without: a family whose runs do not count, so that a measured run is left out of its own
            range together with those of its family.
        """
        kept = ~self._of_family.get(without, np.zeros(len(self.rows), bool))
        local = self._local(features, kept)
        half = self._quantile(kept) * local.spread
        known = features.transformer and features.chip in self._chips[kept]
        if not known:
            half = hypot(half, assumed_spread(features))
        if not features.transformer:
            half = max(half, OTHER_ARCHITECTURES)
        return ErrorRange(
            low=exp(local.centre - half),
            high=exp(local.centre + half),
            support=local.support,
            measured=known and local.support > self.bandwidths.prior,
        )

    def most_alike(self, features: RunFeatures, count: int) -> list[tuple[Residual, float]]:
        """Return the runs that weigh most in a prediction's range, with their likeness.

        The likeness is exp(-d^2 / 2) for a distance d in features: 1 for a run with all of them.
        """
        alike = self._likeness(features)
        order = np.argsort(-alike, kind="stable")[:count]
        return [(self.rows[at], float(alike[at])) for at in order if alike[at] > 0]

    def left_out(self) -> Iterator[tuple[Residual, ErrorRange]]:
        """Yield each measured run with its range, made without its family."""
        yield from ((row, self.range(row.features, row.family)) for row in self.rows)

    @property
    def coverage(self) -> float:
        """The fraction of the measured runs in their ranges, their families left out."""
        return float(np.mean(self._inside))

    @property
    def family_coverage(self) -> float:
        """The same, where a family counts one."""
        return float(np.average(self._inside, weights=self._shares))

    @cached_property
    def _inside(self) -> Mask:
        ends = np.log([(found.low, found.high) for _, found in self.left_out()])
        inside: Mask = (ends[:, 0] <= self._residuals) & (self._residuals <= ends[:, 1])
        return inside

    @cached_property
    def _scales(self) -> Floats:
        """Standard deviations of sizes and shares over the measured runs; 1 if all are equal."""
        values = np.array([(*row.features.size, *row.features.shares) for row in self.rows])
        spread = values.std(axis=0)
        return np.where(spread > 0, spread, 1.0)

    def _scaled(self, some: Sequence[RunFeatures]) -> Floats:
        """Return sizes and shares of some runs in bandwidths, a row for each run."""
        values = np.array([(*each.size, *each.shares) for each in some])
        widths = np.repeat((self.bandwidths.size, self.bandwidths.shares), 3)
        scaled: Floats = values / (self._scales * widths)
        return scaled

    def _weights(self, features: RunFeatures, kept: Mask) -> Floats:
        """Return the weight of each run; those of a family sum to its largest likeness."""
        alike = self._likeness(features) * kept
        count = len(self._of_family)
        whole = np.bincount(self._family, alike, count)
        most = np.zeros(count)
        np.maximum.at(most, self._family, alike)
        per_likeness = np.divide(most, whole, out=np.zeros(count), where=whole > 0)
        weights: Floats = alike * per_likeness[self._family]
        return weights

    def _likeness(self, features: RunFeatures) -> Floats:
        """Return exp(-d^2 / 2) for the distance of each run; 0 for one that cannot be compared."""
        kinds = (self._kinds != np.array(features.kinds, object)).sum(axis=1)
        squares = ((self._measures - self._scaled([features])) ** 2).sum(axis=1)
        squares += kinds / self.bandwidths.kind**2
        squares += (self._chips != features.chip) / self.bandwidths.chip**2
        alike: Floats = np.exp(-squares / 2) * (self._apart == features.apart).all(axis=1)
        return alike

    def _local(self, features: RunFeatures, kept: Mask) -> _Local:
        weights = self._weights(features, kept)
        support, prior = float(weights.sum()), self.bandwidths.prior
        centre = float(weights @ self._residuals) / (support + prior)
        distances = np.abs(self._residuals - centre)
        everywhere = float(np.average(np.abs(self._residuals), weights=kept * self._shares))
        spread = (float(weights @ distances) + prior * everywhere) / (support + prior)
        return _Local(centre, max(hypot(spread, self.releases), LEAST_SPREAD), support)

    @cached_property
    def _shares(self) -> Floats:
        """The share of each run in its family."""
        shares: Floats = 1 / np.bincount(self._family)[self._family]
        return shares

    @cached_property
    def _scores(self) -> Floats:
        """Distances of the residuals from their centres in spreads, their families left out."""
        locals_ = [self._local(r.features, ~self._of_family[r.family]) for r in self.rows]
        centres, spreads, _ = np.array(locals_).T
        scores: Floats = np.abs(self._residuals - centres) / spreads
        return scores

    def _quantile(self, kept: Mask) -> float:
        """Return the number of spreads that hold 80 % of the families that are kept."""
        order = self._ascending[kept[self._ascending]]
        held = np.cumsum(self._shares[order])
        place = int(np.searchsorted(held, COVERAGE * (round(held[-1]) + 1) - ROUNDING))
        return float(self._scores[order[min(place, len(order) - 1)]])

    @cached_property
    def _ascending(self) -> NDArray[np.intp]:
        return np.argsort(self._scores, kind="stable")


@cache
def measured_errors() -> MeasuredErrors:
    """Return the residuals that come with the package, ready for ranges."""
    return MeasuredErrors(residuals())


@lru_cache(maxsize=8)
def _with_own(steps: tuple[Facts, ...]) -> MeasuredErrors:
    return MeasuredErrors((*residuals(), *own_residuals(steps)))


@lru_cache(maxsize=64)
def expected_range(features: RunFeatures, own: tuple[Facts, ...] = ()) -> ErrorRange:
    """Return the range of a prediction from the residuals that come with the package.

    own: what a calibration leaves over of the user's own runs, which are one family more. That this
        is what it is worth, neither more nor less, is measured (experiments/own_calibration).

    It is kept, as the summary, the files and the columns of a sweep ask for that of one result
    several times.
    """
    return (_with_own(own) if own else measured_errors()).range(features)


def left_out_by(
    rows: Sequence[Residual], group: Callable[[Residual], str]
) -> Iterator[tuple[Residual, ErrorRange]]:
    """Yield each measured run with its range, made without all runs of its group.

    The runs of a table of one group have no others, and are left out.
    """
    for name in dict.fromkeys(map(group, rows)):
        left = [row for row in rows if group(row) != name]
        if not left:
            continue
        others = MeasuredErrors(left)
        yield from ((row, others.range(row.features)) for row in rows if group(row) == name)


def interval_score(errors: MeasuredErrors) -> float:
    """Return the mean interval score of the ranges of the measured runs, their families left out.

    It is the width of a range in logarithms, and 2 / 0.2 times the distance by which it misses
    (Gneiting and Raftery 2007): the smaller, the sharper and the truer. A family counts one.
    """
    sums: dict[str, list[float]] = {}
    for row, found in errors.left_out():
        low, high = np.log((found.low, found.high))
        missed = max(low - row.residual, row.residual - high, 0.0)
        sums.setdefault(row.family, []).append(high - low + 2 / (1 - COVERAGE) * missed)
    return float(np.mean([np.mean(each) for each in sums.values()]))


def best_bandwidths(
    rows: Sequence[Residual], choices: Iterable[Bandwidths] | None = None
) -> tuple[Bandwidths, float]:
    """Return the bandwidths with the best score on measured runs, and this score.

    choices: those to try; all combinations of `BANDWIDTH_CHOICES` by default, which takes minutes.
    """
    tried = choices or (Bandwidths(*each) for each in product(*BANDWIDTH_CHOICES.values()))
    scores = ((interval_score(MeasuredErrors(rows, each)), each) for each in tried)
    score, best = min(scores, key=lambda found: found[0])
    return best, score
