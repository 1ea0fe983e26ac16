"""The prediction that `tpusim diagnose` is given."""

from collections.abc import Sequence

from tpusim.base.errors import FileError, blame
from tpusim.results import Result
from tpusim.runfile import SimulationRun, read_one_plan
from tpusim.simulation import simulate

RUN_ENDING = ".toml"


def prediction_of(
    path: str | None, maxtext: str | None, settings: Sequence[str], pod: str | None
) -> Result | None:
    """Return the result of a run file, a MaxText config or a compiled program; None for neither.

    settings: changes of the plan. pod: the slice of a program or of a MaxText config.
    """
    if path is not None and maxtext is not None:
        raise FileError(f"{path} and --maxtext are both predictions; give one")
    run = _run(path, maxtext, settings, pod)
    if run is not None:
        with blame(run.where):
            return simulate(run.model, run.plan, run.pod, input=run.input)
    if settings:
        raise FileError("--set changes a plan, and none is given; give a run file, or leave it out")
    if path is None:
        return None
    from tpusim.compiler import load

    return simulate(load(path), pod=pod)


def _run(
    path: str | None, maxtext: str | None, settings: Sequence[str], pod: str | None
) -> SimulationRun | None:
    if maxtext is not None:
        from tpusim.maxtext import from_maxtext

        return from_maxtext(maxtext, pod=pod, settings=settings)
    if path is None or not (path.endswith(RUN_ENDING) or path == "-"):
        return None
    if pod is not None:
        raise FileError(
            f"--slice {pod} is for programs; a run file names its slice: write --set "
            f"slice.name={pod}"
        )
    return read_one_plan(path, settings)
