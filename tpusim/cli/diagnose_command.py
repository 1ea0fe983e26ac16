"""The prediction that `tpusim diagnose` is given."""

from collections.abc import Sequence

from tpusim.base.errors import FileError, blame
from tpusim.cli.simulate_command import read_arguments
from tpusim.results import Result
from tpusim.simulation import simulate


def prediction_of(
    path: str | None, maxtext: str | None, settings: Sequence[str], pod: str | None
) -> Result | None:
    """Return the result of a run file, a MaxText config or a compiled program; None for neither.

    settings: changes of the plan. pod: the slice of a program or of a MaxText config.
    """
    if path is not None and maxtext is not None:
        raise FileError(f"{path} and --maxtext are both predictions; give one")
    if maxtext is not None or (path is not None and (path == "-" or path.endswith(".toml"))):
        words = [] if path is None else [path]
        run = read_arguments(words, settings, maxtext, pod, verbose=False)
        with blame(run.where):
            return simulate(run.model, run.plan, run.pod, input=run.input)
    if settings:
        raise FileError("--set changes a plan, and none is given; give a run file, or leave it out")
    if path is None:
        return None
    from tpusim.compiler import load

    return simulate(load(path), pod=pod)
