"""The residuals that ranges are made of, written from a validation into the package.

    python -m tpusim.validation.residual_table FOLDER [--choose]

writes `tpusim/accuracy/residuals.csv`, and prints how well ranges made of it cover the runs.
`--choose` also prints the bandwidths with the best score, which takes minutes.
"""

import sys
from collections.abc import Sequence
from math import log

from tpusim.accuracy import (
    BANDWIDTHS,
    MeasuredErrors,
    Residual,
    best_bandwidths,
    interval_score,
    read_residuals,
    residuals,
    residuals_text,
)
from tpusim.accuracy.residuals import residuals_path
from tpusim.base.text_files import write_file
from tpusim.validation.validate import Validation, validate


def residual_rows(validation: Validation) -> tuple[Residual, ...]:
    """Return the residuals of the runs that were simulated, those of the package in its order.

    A range is made of sums over them, whose last digits depend on it.
    """
    places = {row.id: place for place, row in enumerate(residuals())}
    found = [
        Residual(one.run.id, one.family, one.features, log(one.run.step_s / one.predicted_s))
        for one in validation.outcomes
        if one.features is not None and one.predicted_s is not None
    ]
    return tuple(sorted(found, key=lambda row: places.get(row.id, len(places))))


def main(arguments: Sequence[str]) -> None:
    """Write the residuals of the first path's runs, and print the score of their ranges."""
    runs, *options = arguments
    rows = residual_rows(validate(runs))
    text = residuals_text(rows)
    read_residuals(text)  # raises before the file is overwritten
    write_file(residuals_path(), text.encode())
    errors = MeasuredErrors(rows)
    print(f"{len(rows)} residuals in {residuals_path().name}")
    by_family = f"{errors.family_coverage:.1%} where a family counts one"
    print(f"{errors.coverage:.1%} of them are in their range, {by_family}")
    print(f"interval score {interval_score(errors):.3f} with {BANDWIDTHS}")
    if "--choose" in options:
        best, score = best_bandwidths(rows)
        print(f"interval score {score:.3f} with {best}")


if __name__ == "__main__":
    main(sys.argv[1:])
