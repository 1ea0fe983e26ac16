"""The front door: a table of measured runs becomes a table of errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpusim import __version__
from tpusim.errors import blame
from tpusim.validation.measured import measured_runs
from tpusim.validation.outcome import Outcome, outcome
from tpusim.validation.pairs import Pair, pair_document, pairs
from tpusim.validation.read import Row, frame_rows, read_rows
from tpusim.validation.statistics import (
    by_chip,
    by_family,
    error_statistics,
    summarise,
    summarise_guess,
    tau_b_within_chips,
    with_guesses,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Validation:
    """All runs of a table, simulated. Prints as the command does.

    outcomes: a run each, in the order of the table. pairs: runs that differ in one thing.
    unread: columns of the table that nothing reads.
    """

    outcomes: tuple[Outcome, ...]
    pairs: tuple[Pair, ...]
    unread: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        """Runs that were not simulated."""
        return sum(not one.ok for one in self.outcomes)

    @property
    def statistics(self) -> dict[str, Any]:
        """What `validation.json` holds: fractions, None where there is nothing to count."""
        return {
            **summarise(self.outcomes),
            "tau_b_within_chips": tau_b_within_chips(self.outcomes),
            "by_chip": {name: summarise(group) for name, group in by_chip(self.outcomes).items()},
            "by_family": {
                name: summarise(group) for name, group in by_family(self.outcomes).items()
            },
            "baseline": self._baseline(),
            "pairs": self._pairs(),
            "versions": {"tpusim": __version__},
        }

    def _baseline(self) -> dict[str, Any]:
        """The guess, over all runs and over those that were simulated."""
        simulated = [one for one in self.outcomes if one.ok]
        return {
            "guess": "median MFU of the other runs of the chip",
            "all_runs": summarise_guess(self.outcomes),
            "simulated_runs": summarise_guess(simulated),
        }

    def _pairs(self) -> dict[str, Any]:
        errors = [pair.error for pair in self.pairs if pair.error is not None]
        return {
            "pairs": len(self.pairs), "failed": len(self.pairs) - len(errors),
            **error_statistics(errors), "each": [pair_document(pair) for pair in self.pairs],
        }  # fmt: skip

    @property
    def frame(self) -> "pd.DataFrame":
        """A row a run: measured, predicted, error, status, reason, MFU, shares of the step."""
        import pandas as pd

        from tpusim.validation.files import frame_columns

        return pd.DataFrame(frame_columns(self.outcomes))

    def __str__(self) -> str:
        from tpusim.validation.text import text

        return text(self)


def validate(frame: "pd.DataFrame") -> Validation:
    """Simulate each run of a DataFrame that has the columns of docs/validation.md.

    A run that cannot be simulated is a row with a reason. Raises `FileError` where the table
    itself is none: a missing column, a cell that is no number, an id given twice.
    """
    return _validated(*frame_rows(frame))


def validate_file(path: Path | str) -> Validation:
    """The same of a CSV file."""
    with blame(str(path)):
        return _validated(*read_rows(Path(path)))


def _validated(header: Sequence[str], rows: Sequence[Row]) -> Validation:
    runs, unread = measured_runs(header, rows)
    outcomes = with_guesses([outcome(run) for run in runs])
    return Validation(outcomes, pairs(outcomes), unread)
