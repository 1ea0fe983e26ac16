"""Fit the constants that the catalogue calls fitted, and hold the catalogue against the fits.

    python experiments/calibration/run.py [--write | --check]

prints the tables of README.md, in some two minutes. `--write` writes them there, and the numbers to
calibration.csv. `--check` prints a line per group of constants and fails if a value of
`hardware_specs/` is outside the flat region of the fit by more than chance explains.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fit_tables import SIGNIFICANT, Fit, all_fits, csv_text, markdown, shown
from fitted_constants import fitted_in_catalogue, listed

from tpusim.validation.error_table import in_page

HERE = Path(__file__).parent
PAGE, NUMBERS = HERE / "README.md", HERE / "calibration.csv"
MARKER = "calibration"


def check(fits: Sequence[Fit]) -> list[str]:
    """Return a line for each constant that is not listed, and each group that a fit contradicts."""
    faults = [
        f"{chip}: {name} is fitted in one of hardware_specs and fitted_constants.py, not in both"
        for chip, name in sorted(fitted_in_catalogue() ^ listed())
    ]
    return faults + [f"{line(fit)}: change the catalogue" for fit in fits if not fit.confirmed]


def line(fit: Fit) -> str:
    """Return a group's values, those of the catalogue and the fitted ones."""
    values = (
        f"{name} {shown(name, value)} (fitted {shown(name, fit.best[name])})"
        for name, value in fit.group.catalogue.items()
    )
    return (
        f"{fit.group.title}: {', '.join(values)}, loss {fit.catalogue_excess:.1%} above the least, "
        f"{fit.catalogue_significance:.1f} standard errors"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, write or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", action="store_true", help="write README.md and calibration.csv")
    how.add_argument(
        "--check",
        action="store_true",
        help=f"fail if the catalogue's loss is {SIGNIFICANT:g} standard errors above the least",
    )
    given = parser.parse_args(arguments)
    fits = all_fits()
    if given.check:
        faults = check(fits)
        print("\n".join(map(line, fits)))
        print("\n".join(faults), file=sys.stderr)
        return 1 if faults else 0
    text = markdown(fits)
    print(text)
    if given.write:
        PAGE.write_text(in_page(PAGE.read_text("utf-8"), text, MARKER), "utf-8")
        NUMBERS.write_text(csv_text(fits), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
