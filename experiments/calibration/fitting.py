"""Robust fits on a grid: residuals over the values of one to three constants, and what is left out.

A prediction is made on a coarse grid of the constants' values; between its points the logarithm of
the prediction is interpolated linearly, one constant after the other. So a fold, which leaves
observations out, costs no further simulation.

The loss is the soft-L1 of log(predicted / measured): quadratic for errors well below its scale,
linear above, so that a run whose software differs pulls no more than any other. A family of
observations counts as much as another, since errors within it are not independent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Point: TypeAlias = tuple[int, ...]

FLAT = 0.02
"""Where the loss is less than this fraction above its least, values are as good as the best."""

TINY = 1e-9
"""A difference of losses that is rounding."""


def soft_l1(errors: Floats, scale: float) -> Floats:
    """Return `scale (sqrt(1 + (error / scale)^2) - 1)`: about |error| - scale for large errors."""
    loss: Floats = scale * (np.sqrt(1 + (errors / scale) ** 2) - 1)
    return loss


@dataclass(frozen=True)
class Surface:
    """The errors of some observations over a grid of constants.

    axes: the values of each constant, by its name, rising.
    errors: log(predicted / measured), one row per observation and one dimension per constant.
    families: the family of each observation.
    scale: the error at which the loss turns from quadratic to linear.

    Raise ValueError unless values rise, shapes agree and errors are finite.
    """

    axes: Mapping[str, Floats]
    errors: Floats
    families: tuple[str, ...]
    scale: float

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if len(values) < 2 or np.any(np.diff(values) <= 0):
                raise ValueError(f"the values of {name} must be at least two, and rise")
        expected = (len(self.families), *map(len, self.axes.values()))
        if self.errors.shape != expected or not self.families:
            raise ValueError(f"errors have the shape {self.errors.shape}; give {expected}, not 0")
        if not np.all(np.isfinite(self.errors)):
            raise ValueError("an error is not finite; leave out what cannot be predicted")

    def refined(self, axes: Mapping[str, Floats]) -> "Surface":
        """Return the surface on other values, by linear interpolation along each axis.

        Raise ValueError for values outside of those of this surface.
        """
        errors = self.errors
        for place, (name, values) in enumerate(self.axes.items(), 1):
            wanted = axes[name]
            if wanted[0] < values[0] or wanted[-1] > values[-1]:
                raise ValueError(f"{name} was predicted from {values[0]:g} to {values[-1]:g} only")
            errors = np.apply_along_axis(
                lambda row, to, of: np.interp(to, of, row), place, errors, wanted, values
            )
        return Surface(axes, errors, self.families, self.scale)

    @cached_property
    def _losses(self) -> Floats:
        return soft_l1(self.errors, self.scale)

    @cached_property
    def _family_losses(self) -> Floats:
        """The mean loss of each family at each point, by family."""
        names = np.array(self.families)
        means = [self._losses[names == name].mean(axis=0) for name in dict.fromkeys(self.families)]
        return np.array(means)

    def loss(self, kept: Mask | None = None) -> Floats:
        """Return the loss at each point: the mean over families of the mean of their losses.

        kept: the observations that count; all by default.

        Raise ValueError if none counts.
        """
        if kept is None:
            whole: Floats = self._family_losses.mean(axis=0)
            return whole
        if not kept.any():
            raise ValueError("no observation is left to fit the constants to")
        _, place, counts = np.unique(
            np.array(self.families)[kept], return_inverse=True, return_counts=True
        )
        weights = 1 / counts[place] / len(counts)
        loss: Floats = np.tensordot(weights, self._losses[kept], 1)
        return loss

    def best(self, kept: Mask | None = None) -> Point:
        """Return the point with the least loss, the middle one of those that are equal."""
        loss = self.loss(kept)
        equal = np.argwhere(loss <= loss.min() + TINY)
        return tuple(int(index) for index in equal[len(equal) // 2])

    def point(self, values: Mapping[str, float]) -> Point:
        """Return the point of some values. Raise ValueError for a value that is not on the grid."""
        found = []
        for name, axis in self.axes.items():
            index = int(np.argmin(np.abs(axis - values[name])))
            if not np.isclose(axis[index], values[name], rtol=1e-6, atol=1e-15):
                raise ValueError(f"{name} = {values[name]:g} is no value of the grid; add it")
            found.append(index)
        return tuple(found)

    def values(self, point: Point) -> dict[str, float]:
        """Return the values of the constants at a point."""
        return {
            name: float(axis[i]) for (name, axis), i in zip(self.axes.items(), point, strict=True)
        }

    def errors_at(self, point: Point) -> Floats:
        """Return predicted over measured less one, by observation."""
        errors: Floats = np.expm1(self.errors[(slice(None), *point)])
        return errors

    def excess(self, point: Point) -> float:
        """Return how far the loss at a point is above the least, as a fraction of that."""
        loss = self.loss()
        above = float(loss[point] - loss.min())
        return 0.0 if above <= TINY else above / max(float(loss.min()), TINY)

    def significance(self, point: Point) -> float:
        """Return how many standard errors the loss at a point is above the least.

        The standard error is that of the mean over families of the difference of their losses.
        0 where no family differs, nan for a single family.
        """
        best = self._family_losses[(slice(None), *self.best())]
        above = self._family_losses[(slice(None), *point)] - best
        if len(above) < 2:
            return float("nan")
        error = float(np.std(above, ddof=1)) / len(above) ** 0.5
        return float(above.mean()) / error if error > TINY else 0.0

    def flat(self, name: str) -> tuple[float, float]:
        """Return the ends of a constant's flat region: the others take the best values for it."""
        loss, place = self.loss(), list(self.axes).index(name)
        others = tuple(each for each in range(loss.ndim) if each != place)
        least = loss.min(axis=others)
        inside = self.axes[name][least <= (1 + FLAT) * loss.min() + TINY]
        return float(inside[0]), float(inside[-1])

    def standard_errors(self) -> dict[str, float]:
        """Return the standard error of each constant: a jackknife that leaves out one family.

        nan for a single family.
        """
        names = dict.fromkeys(self.families)
        if len(names) < 2:
            return dict.fromkeys(self.axes, float("nan"))
        fits = [self.values(self.best(kept)) for kept in self._others(self.families)]
        scale = (len(fits) - 1) ** 0.5
        return {name: float(scale * np.std([fit[name] for fit in fits])) for name in self.axes}

    def left_out(self, groups: Sequence[str], otherwise: Point) -> Floats:
        """Return each observation's error with the constants fitted without its group.

        groups: the group of each observation: its family, or a name of its own.
        otherwise: the point to take where no other group is left.
        """
        errors = np.zeros(len(groups))
        for kept in self._others(groups):
            point = self.best(kept) if kept.any() else otherwise
            errors[~kept] = self.errors_at(point)[~kept]
        return errors

    @staticmethod
    def _others(groups: Sequence[str]) -> Iterator[Mask]:
        """Yield, for each group, which observations belong to the others."""
        names = np.array(groups)
        yield from (names != name for name in dict.fromkeys(groups))
