"""Notes that refer to another row: `as the 64-chip row`, `as RUN-ID but batch 9`."""

import re
from collections.abc import Sequence
from dataclasses import replace

from tpusim.validation.measured_runs import MeasuredRun

_REFERENCE = re.compile(
    r"\b(?:same )?as (?:the (?P<chips>\d+)-chip row|(?P<id>[\w.-]+) but\b)", re.I
)


def with_referred_notes(runs: Sequence[MeasuredRun]) -> tuple[MeasuredRun, ...]:
    """Return the runs, with the notes of a row that their own refer to put before the reference.

    A row is named by its id, or by its number of chips among the rows of the same model.
    """
    return tuple(_with_notes(run, runs) for run in runs)


def _with_notes(run: MeasuredRun, runs: Sequence[MeasuredRun]) -> MeasuredRun:
    found = _REFERENCE.search(run.notes)
    other = found and next((one for one in runs if _is_meant(one, run, found)), None)
    if not found or not other:
        return run
    before, after = run.notes[: found.start()], run.notes[found.start() :]
    return replace(run, notes=f"{before}{other.notes.rstrip(' .;')}; {after}")


def _is_meant(one: MeasuredRun, run: MeasuredRun, found: re.Match[str]) -> bool:
    if found["id"]:
        return one.id == found["id"]
    return one.model == run.model != "" and one.num_chips == int(found["chips"])
