"""The constants of matmuls, fitted to the compiler's estimates that are in the repository.

    cycles / clock = ((array / e)^p + memory^p)^(1/p) + c

p is `matmul_overlap`, c is `op_launch`. e is the share of peak that the estimates themselves reach;
the catalogue's `matmul_efficiency` is lower, as chips are slower than their estimates. The
catalogue was fitted to 269 matmuls, of which 14 a chip are in `tests/analytic/`. Those are large
(10 us and more), so they say nothing of c: it is kept, and e and p are fitted.
"""

import csv
from pathlib import Path

import numpy as np
from fitting import Floats, Surface

from tpusim.costs.compute import array_seconds, hbm_seconds
from tpusim.hardware import load_chip

ESTIMATES = Path(__file__).resolve().parents[2] / "tests" / "analytic" / "compiler_matmuls.csv"
SHARE, OVERLAP = "share", "matmul_overlap"
SHARES = {"v4": 0.904, "v5e": 0.970, "v5p": 0.966, "v6e": 0.935, "7x": 0.844}
"""e of the fit to the 269 matmuls, as the notes of `matmul_efficiency` have it."""

AXES = {
    SHARE: np.arange(0.70, 1.001, 0.005),
    OVERLAP: np.arange(1.0, 12.01, 0.1),
}
"""The values that are tried: bounds and steps."""

SCALE = 0.05


def matmul_surface(chip: str) -> Surface:
    """Return the errors of a chip's matmuls over e and p. Raise ValueError if it has none."""
    rows = [row for row in _rows() if row["chip"] == chip]
    if not rows:
        raise ValueError(f"there are no estimates of matmuls for {chip}")
    axes = {
        name: np.unique([*values.round(9), catalogue(chip)[name]]) for name, values in AXES.items()
    }
    share, overlap = np.meshgrid(*axes.values(), indexing="ij")
    launch, errors = load_chip(chip).costs.op_launch, []
    for row in rows:
        array, memory = _parts(chip, *(int(row[axis]) for axis in "mkn"))
        longer, shorter = np.maximum(array / share, memory), np.minimum(array / share, memory)
        both = longer * (1 + (shorter / longer) ** overlap) ** (1 / overlap)
        estimate = float(row["cycles"]) / float(row["clock_hz"])
        errors.append(np.log((both + launch) / estimate))
    shapes = tuple("x".join(row[axis] for axis in "mkn") for row in rows)
    return Surface(axes, np.array(errors), shapes, SCALE)


def catalogue(chip: str) -> dict[str, float]:
    """Return e, and p of the catalogue."""
    return {SHARE: SHARES[chip], OVERLAP: load_chip(chip).costs.matmul_overlap}


def _rows() -> list[dict[str, str]]:
    lines = ESTIMATES.read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def _parts(chip: str, m: int, k: int, n: int) -> tuple[Floats, Floats]:
    """Return the seconds of the array at its peak, and of the operands and the result in HBM."""
    device = load_chip(chip).replace(matmul_efficiency=1.0).device
    array = array_seconds(1, m, k, n, "bf16", device)
    memory = hbm_seconds(2 * (m * k + k * n), 2 * m * n, device)
    return np.asarray(array), np.asarray(memory)
