"""What the assumed constants of a chip add to the range of a prediction."""

from functools import cache
from math import hypot, log

from tpusim.accuracy.run_features import RunFeatures
from tpusim.base.units import parse
from tpusim.hardware import chip_names, load_entries

DRIVEN_BY = {
    "exposed": ("costs.ici_efficiency",),
    "vector": ("costs.vector_efficiency", "vpu_flops"),
    "attention": ("costs.attention_efficiency_backward",),
    "matmul": ("costs.matmul_efficiency", "costs.matmul_in_step"),
}
"""The constants on which the seconds of each part of a step depend, in inverse proportion."""


def assumed_spread(features: RunFeatures) -> float:
    """Return half of the range that a chip's assumed constants leave open, in logarithms.

    The ends of a constant's range are taken as those of an 80 % interval, its effect as the share
    of the step that depends on it, and constants as independent: squares add up. It is 0 for
    constants that are measured or fitted, and for a chip that is not in the catalogue. Where runs
    on the chip were measured their residuals have it already.
    """
    shares = {name: getattr(features, name) for name in ("exposed", "vector", "attention")}
    shares["matmul"] = max(0.0, 1 - sum(shares.values()))
    open_ = _open_ranges(features.chip)
    return hypot(*(shares[part] * half for part, half in open_))


@cache
def _open_ranges(chip: str) -> tuple[tuple[str, float], ...]:
    """Return each part of a step with half of the logarithmic range of an assumed constant."""
    if chip not in chip_names():
        return ()
    entries = load_entries(chip)
    return tuple(
        (part, log(_number(entry.range[1], entry.unit) / _number(entry.range[0], entry.unit)) / 2)
        for part, names in DRIVEN_BY.items()
        for name in names
        if (entry := entries[name]).kind == "assumed"
    )


def _number(text: str, unit: str) -> float:
    """Return an end of a range in SI: a quantity with its unit, or a bare number."""
    try:
        return float(text)
    except ValueError:
        return parse(text, unit, "range")
