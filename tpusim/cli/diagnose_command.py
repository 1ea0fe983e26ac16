"""The prediction that `tpusim diagnose` is given."""

from collections.abc import Sequence

from tpusim.base.errors import FileError, blame
from tpusim.results import Result
from tpusim.runfile import read_one_plan
from tpusim.simulation import simulate

RUN_ENDING = ".toml"


def prediction_of(path: str | None, settings: Sequence[str], pod: str | None) -> Result | None:
    """Return the result of a run file or of a compiled program; None where no path is given.

    settings: changes of the run file. pod: the slice of a compiled program.
    """
    if path is None:
        return None
    if path.endswith(RUN_ENDING) or path == "-":
        if pod is not None:
            raise FileError(
                f"--slice is for compiled programs; a run file names its slice: write "
                f"--set slice.name={pod}"
            )
        run = read_one_plan(path, settings)
        with blame(run.where):
            return simulate(run.model, run.plan, run.pod, input=run.input)
    if settings:
        raise FileError(f"--set changes a run file, and {path} is a program; leave --set out")
    from tpusim.compiler import load

    return simulate(load(path), pod=pod)
