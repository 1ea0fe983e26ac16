"""The table of residuals, what a run's features may be, and what assumed constants add."""

from dataclasses import replace
from math import hypot, inf, log, nan

import pytest
from unit.accuracy.test_measured_errors import RUN, table

from tpusim.accuracy import read_residuals, residuals, residuals_text
from tpusim.accuracy.assumed_spread import assumed_spread
from tpusim.base import FileError, PlanError

ROWS = table([0.125, -0.25, 0.5, 0.75], replace(RUN, experts=True))
TEXT = residuals_text(ROWS)


def test_a_table_reads_back_as_it_was_written() -> None:
    assert read_residuals(TEXT) == tuple(ROWS)
    assert residuals_text(residuals()) == residuals_text(
        read_residuals(residuals_text(residuals()))
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("family", "kin", "has the columns id, family, chip"),
        ("0.125", "nan", "the residual of 'f0' is nan"),
        ("0.125", "much", "the residual of 'f0' cannot be read"),
        ("maxtext,1,", "maxtext,yes,", "the residual of 'f0' cannot be read"),
        ("3e+10", "-1", "params is -1.0; a predicted run has a number above 0"),
        ("f1", "f0", "at least 4 families"),
        (TEXT.splitlines()[2], "f1,f1,v5p", "the residual of 'f1' cannot be read"),
    ],
)
def test_what_is_no_table_of_residuals_is_told(old: str, new: str, said: str) -> None:
    with pytest.raises(FileError, match=said):
        read_residuals(TEXT.replace(old, new))


@pytest.mark.parametrize("name", ["params", "step_s", "mfu"])
@pytest.mark.parametrize("value", [0.0, -1.0, inf, nan])
def test_a_run_has_positive_sizes(name: str, value: float) -> None:
    with pytest.raises(PlanError, match=f"{name} is "):
        replace(RUN, **{name: value})


@pytest.mark.parametrize("name", ["exposed", "vector", "attention"])
def test_a_run_has_shares_from_0(name: str) -> None:
    assert getattr(replace(RUN, **{name: 0.0}), name) == 0
    for value in (-0.1, inf, nan):
        with pytest.raises(PlanError, match="write a fraction of the step"):
            replace(RUN, **{name: value})


def test_the_assumed_constants_of_v2_by_hand() -> None:
    """hardware_specs/v2.toml has a range for each of the four."""
    run = replace(RUN, chip="v2", exposed=0.3, vector=0.2, attention=0.1)
    parts = (
        0.2 * log(0.9 / 0.25) / 2,
        0.2 * log(5.73 / 1.43) / 2,
        0.1 * log(0.95 / 0.55) / 2,
        0.4 * log(1.0 / 0.9) / 2,
    )
    assert assumed_spread(run) == pytest.approx(hypot(*parts))
    assert assumed_spread(replace(run, chip="a chip of mine")) == 0
