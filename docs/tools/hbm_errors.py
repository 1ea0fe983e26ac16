"""The error of plans in HBM and the verdicts on them, from the residuals of the package."""

from collections.abc import Iterator, Sequence
from math import exp
from statistics import fmean, median

from tpusim.accuracy import HbmErrors, HbmOdds, HbmResidual, hbm_errors
from tpusim.results import Fit, fit_of_odds

NINTH = 0.9
NEAR_THE_LIMIT = "layers without a scan near the limit"
FEWEST = 10
"""The least plans of a row of their own."""
ARCHITECTURE = "the architecture "
"""The beginning of the traits that name an architecture, which share a row."""


def sentence() -> str:
    """How far off the HBM of compared plans is, in a sentence."""
    rows = [row for row in hbm_errors().rows if NEAR_THE_LIMIT not in row.features.traits]
    sizes = sorted(map(abs, errors(rows)))
    refused, near = sum(row.refused for row in rows), len(hbm_errors().rows) - len(rows)
    return (
        f"Over {len(rows)} compiled plans, {refused} of them refused by the compiler, the error of "
        f"HBM is {median(sizes):.1%} in the median and at most "
        f"{sizes[int(NINTH * (len(sizes) - 1))]:.0%} in nine of ten. {near} further plans have "
        f"{NEAR_THE_LIMIT}, where the compiler recomputes a part.\n"
    ).replace("%", " %")


def table() -> str:
    """Errors and verdicts by trait, each program left out of its own odds."""
    found = hbm_errors()
    left_out = list(found.left_out())
    lines = [
        "| plans with | number | HBM: median | 90th percentile | in their range | "
        "fit, refused | borderline | do not fit, compiled |",
        "| --- |" + 7 * " ---: |",
        _line("all", left_out),
        _line("none of these", [each for each in left_out if not each[0].features.traits]),
    ]
    return "\n".join([*lines, *_by_trait(found, left_out)]) + "\n"


def _by_trait(found: HbmErrors, left_out: Sequence[tuple[HbmResidual, HbmOdds]]) -> Iterator[str]:
    for trait in found.traits:
        having = [each for each in left_out if trait in each[0].features.traits]
        if len(having) >= FEWEST and not trait.startswith(ARCHITECTURE):
            yield _line(trait, having)
    yield _line("another architecture", [each for each in left_out if _is_other(each[0])])


def _is_other(row: HbmResidual) -> bool:
    return any(trait.startswith(ARCHITECTURE) for trait in row.features.traits)


def errors(rows: Sequence[HbmResidual]) -> list[float]:
    """The part by which the plan of each program is above it."""
    return [exp(-row.residual) - 1 for row in rows]


def _line(name: str, left_out: Sequence[tuple[HbmResidual, HbmOdds]]) -> str:
    sizes = sorted(map(abs, errors([row for row, _ in left_out])))
    inside = fmean(odds.low <= exp(row.residual) <= odds.high for row, odds in left_out)
    said = [(fit_of_odds(o.fits, row.features.fill, 1.0), row.refused) for row, o in left_out]
    verdicts = (
        f"{said.count((Fit.FITS, True))} of {sum(fit is Fit.FITS for fit, _ in said)}",
        str(sum(fit is Fit.BORDERLINE for fit, _ in said)),
        f"{said.count((Fit.TOO_LARGE, False))} of {sum(fit is Fit.TOO_LARGE for fit, _ in said)}",
    )
    shares = f"{median(sizes):.1%} | {sizes[int(NINTH * (len(sizes) - 1))]:.1%}"
    cells = f"{len(sizes)} | {shares} | {inside:.0%}".replace("%", " %")
    return f"| {name} | {cells} | {' | '.join(verdicts)} |"
