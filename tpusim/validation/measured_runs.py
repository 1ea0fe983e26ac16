"""Measured runs: run files with a section [measured], or the rows of a table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import FileError, TpusimError, blame
from tpusim.base.shown_value import shown
from tpusim.runfile import Measured, SimulationRun, measured_of, read_toml, run_of
from tpusim.validation.run_tables import frame_rows, read_rows, row_tables, unread_columns

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run and its measurement.

    id: the name of its file without the ending, or its id in a table.
    chip: the generation that its slice names; empty if it names none.
    given: the run; None where there cannot be such a run.
    reason: why there cannot.
    """

    id: str
    chip: str
    measured: Measured
    given: SimulationRun | None
    reason: str = ""

    @property
    def step_s(self) -> float:
        """Measured seconds per step."""
        return self.measured.step_s

    @property
    def framework(self) -> str:
        """What made the program; empty if it is not given."""
        return self.measured.framework


def measured_runs(runs: "Path | str | pd.DataFrame") -> tuple[MeasuredRun, ...]:
    """Return the runs of a folder of run files, of a CSV file or of a DataFrame, with unique ids.

    Files are found in inner folders too, and come in the order of their paths. Raise FileError for
    what is none of these, and for a measurement that cannot be read; any other mistake in a run is
    its reason.
    """
    return read_measured(runs)[0]


def read_measured(
    runs: "Path | str | pd.DataFrame",
) -> tuple[tuple[MeasuredRun, ...], tuple[str, ...]]:
    """Return the runs, as `measured_runs` does, and the columns of a table that nothing reads."""
    if not isinstance(runs, str | Path):
        if not hasattr(runs, "itertuples"):
            raise FileError(
                f"validate is given {shown(runs)}; write the path of a folder of run files, of a "
                "run file or of a CSV file, or a DataFrame with one row per run"
            )
        return _of_table(*frame_rows(runs))
    path = Path(runs)
    with blame(str(path)):
        if path.is_dir():
            return _of_files(path), ()
        if path.suffix == ".toml":
            return (_of_file(path),), ()
        return _of_table(*read_rows(path))


def _of_files(folder: Path) -> tuple[MeasuredRun, ...]:
    paths = sorted(folder.rglob("*.toml"), key=lambda path: path.with_suffix(""))
    if not paths:
        raise FileError("the folder has no run files; write one such as run.toml for each run")
    repeated = _repeated([path.stem for path in paths])
    if repeated:
        raise FileError(f"several files are called {repeated}.toml; give each run its own name")
    return tuple(_named(path, folder) for path in paths)


def _named(path: Path, folder: Path) -> MeasuredRun:
    with blame(str(path.relative_to(folder))):
        return _of_file(path)


def _of_file(path: Path) -> MeasuredRun:
    return _measured_run(path.stem, read_toml(path), path.parent)


def _of_table(
    header: Sequence[str], rows: Sequence[Mapping[str, str]]
) -> tuple[tuple[MeasuredRun, ...], tuple[str, ...]]:
    unread = unread_columns(header)
    if not rows:
        raise FileError("the table has a header and no runs; write one row per run")
    found = []
    for number, row in enumerate(rows, 1):
        where = f"row {number} ({shown(row['id'])})" if row["id"] else f"row {number}"
        with blame(where):
            if not row["id"]:
                raise FileError("id is empty; write a text")
            found.append(_measured_run(row["id"], row_tables(row), Path()))
    if repeated := _repeated([run.id for run in found]):
        raise FileError(f"the id {shown(repeated)} is in several rows; give each run its own")
    return tuple(found), unread


def _repeated(names: Sequence[str]) -> str:
    """Return a name that is there twice; empty if there is none."""
    return next((name for name, count in Counter(names).items() if count > 1), "")


def _measured_run(name: str, tables: Mapping[str, Any], folder: Path) -> MeasuredRun:
    measured = measured_of(tables)
    try:
        given = run_of(tables, name, folder)
        return MeasuredRun(name, given.pod.chip.name, measured, given)
    except TpusimError as error:
        return MeasuredRun(name, _chip(tables), measured, None, str(error))


def _chip(tables: Mapping[str, Any]) -> str:
    section = tables.get("slice")
    return str(section.get("chip", "")) if isinstance(section, Mapping) else ""
