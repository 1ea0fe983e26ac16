"""Validate the simulator: measured runs become a table of errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpusim import __version__
from tpusim.base.checked_call import checked_call
from tpusim.lowering import check_switches
from tpusim.validation.format import validation_text
from tpusim.validation.measured_runs import read_measured
from tpusim.validation.outcome import RunChange, RunOutcome, outcome_columns, simulate_run
from tpusim.validation.pairs import RunGroup, RunPair, run_groups
from tpusim.validation.statistics import (
    by_chip,
    by_family,
    by_kind,
    summarise,
    summarise_guess,
    summarise_pairs,
    summarise_spans,
    tau_b_within_chips,
    with_guesses,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Validation:
    """All runs of a folder or a table, simulated. Prints as the command does.

    outcomes: one per run, in the order of the files' names or of the table.
    groups: runs that differ in one decision, by decision.
    unread: columns of the table that nothing reads.
    """

    outcomes: tuple[RunOutcome, ...]
    groups: tuple[RunGroup, ...]
    unread: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        """Number of runs that were not simulated."""
        return sum(not one.ok for one in self.outcomes)

    @property
    def pairs(self) -> tuple[RunPair, ...]:
        """The pairs of all groups, with the ratios of their costs."""
        return tuple(pair for group in self.groups for pair in group.pairs)

    @property
    def statistics(self) -> dict[str, Any]:
        """The content of `validation.json`: fractions, None where there is nothing to count."""
        return {
            **summarise(self.outcomes),
            "tau_b_within_chips": tau_b_within_chips(self.outcomes),
            "by_chip": {name: summarise(group) for name, group in by_chip(self.outcomes).items()},
            "by_family": {
                name: summarise(group) for name, group in by_family(self.outcomes).items()
            },
            "by_kind": {name: summarise(group) for name, group in by_kind(self.outcomes).items()},
            "baseline": self._baseline(),
            "spans": summarise_spans(self.outcomes),
            "pairs": summarise_pairs(self.groups),
            "versions": {"tpusim": __version__},
        }

    def _baseline(self) -> dict[str, Any]:
        """Return statistics of the guess over all runs and over those that were simulated."""
        simulated = [one for one in self.outcomes if one.ok]
        return {
            "guess": "median MFU of the other runs of the chip",
            "all_runs": summarise_guess(self.outcomes),
            "simulated_runs": summarise_guess(simulated),
        }

    @property
    def frame(self) -> "pd.DataFrame":
        """A row per run: measured, predicted, error, status, reason, MFU, shares of the step."""
        import pandas as pd

        return pd.DataFrame(outcome_columns(self.outcomes))

    def __str__(self) -> str:
        return validation_text(self.outcomes, self.groups, self.statistics, self.unread)


@checked_call
def validate(
    runs: "Path | str | pd.DataFrame",
    *,
    without_passes: Sequence[str] = (),
    change: RunChange | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Simulate each run of a folder of run files with a section [measured], or of a table.

    runs: the folder, whose inner folders are read too; a run file; or a CSV file or a DataFrame
        with a row per run, whose columns are the keys of a run file (docs/validation.md).
    without_passes: passes of the lowering to switch off in every run, for an ablation.
    change: gets each run (`SimulationRun`), and returns the one to simulate instead.
    progress: called with the runs done and the total.

    A run that cannot be simulated is a row with a reason. Raise FileError for what is no such
    folder or table, and a TpusimError for a measurement that cannot be read.
    """
    check_switches(without_passes)
    found, unread = read_measured(runs)
    simulated = []
    for run in found:
        simulated.append(simulate_run(run, without_passes, change, spans=True))
        if progress is not None:
            progress(len(simulated), len(found))
    outcomes = with_guesses(simulated)
    return Validation(outcomes, run_groups(outcomes), unread)
