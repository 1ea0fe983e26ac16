"""The scales of factors and errors that explain best what runs of one family have in common.

python experiments/own_calibration/scales.py RUNS

Residuals `r` of the runs of a family and chip, with the elasticities `J` of their predictions, are
taken as `N(0, J S J^T + s^2)`; S, a spread for each factor (collectives have one), and s are those
of greatest likelihood. They are what `tpusim/calibration` expects before anything is measured.
"""

import argparse
from pathlib import Path

import numpy as np

from tpusim.calibration.estimate import Rows
from tpusim.calibration.measured_steps import MeasuredStep, TrialFactors
from tpusim.hardware import FACTORS
from tpusim.hardware.calibration import COLLECTIVES
from tpusim.validation.measured_runs import measured_runs

GRID = np.geomspace(0.01, 0.5, 60)
NAMES = (*(name for name in FACTORS if name not in COLLECTIVES), "collectives", "error")


def main() -> None:
    """Print the scales, and how far each is known: where the likelihood falls by a half."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    families: dict[tuple[str, str], list[Rows]] = {}
    for run in measured_runs(parser.parse_args().runs):
        if run.given is not None and run.measured.family:
            row = MeasuredStep.of(run.given).rows(TrialFactors(), FACTORS)
            families.setdefault((run.measured.family, run.chip), []).append(row)
    joined = [Rows.joined(rows) for rows in families.values() if len(rows) > 1]
    best = dict.fromkeys(NAMES, 0.1)
    for _ in range(20):
        for name in NAMES:
            best[name] = max(GRID, key=lambda scale: likelihood(joined, best | {name: scale}))
    most = likelihood(joined, best)
    for name in NAMES:
        near = [s for s in GRID if likelihood(joined, best | {name: s}) > most - 0.5]
        print(f"{name:12} {best[name]:.3f}  {near[0]:.3f} to {near[-1]:.3f}")


def likelihood(families: list[Rows], scales: dict[str, float]) -> float:
    """Return the logarithm of the likelihood of all families, but for a constant."""
    spreads = np.array([scales.get(name, scales["collectives"]) for name in FACTORS])
    total = 0.0
    for rows in families:
        scaled = rows.elasticities * spreads
        covariance = scaled @ scaled.T + scales["error"] ** 2 * np.eye(len(rows))
        total -= 0.5 * float(
            np.linalg.slogdet(covariance)[1]
            + rows.ratios @ np.linalg.solve(covariance, rows.ratios)
        )
    return total


if __name__ == "__main__":
    main()
