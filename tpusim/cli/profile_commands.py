"""Commands on profiles of real steps."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from tpusim.base.collection import garbage_collector_on
from tpusim.base.errors import FileError, PlanError, blame
from tpusim.base.json_text import json_text
from tpusim.cli.app import (
    AsJson,
    PageOption,
    Quiet,
    ReportFolder,
    RunSettings,
    app,
    argument,
    option,
    printed,
    tried_folder,
    with_files,
)

if TYPE_CHECKING:
    from tpusim.compiler import Compiled
    from tpusim.results import Result


@app.command()
@garbage_collector_on()
def diagnose(
    path: Annotated[str, argument("PROFILE", "A *.xplane.pb or *.trace.json.gz, or its folder.")],
    run: Annotated[
        str | None,
        argument("RUN.toml", "Its plan, or a FILE.hlo. By default, the profile's own program."),
    ] = None,
    out: ReportFolder = None,
    html: PageOption = True,
    settings: RunSettings = None,
    maxtext: Annotated[
        str | None, option("--maxtext", "CONFIG", "Its MaxText config, in place of RUN.toml.")
    ] = None,
    pod: Annotated[
        str | None, option("--slice", "SLICE", "The slice that ran it, if no file says: v6e-8.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Say where a profiled step and its prediction differ."""
    from tpusim.cli.progress import show_work
    from tpusim.diagnosis import diagnose, write_diagnosis
    from tpusim.profiles import read_profile
    from tpusim.results import Result

    folder = tried_folder(out, "report")
    with show_work("reading and simulating", quiet=quiet):
        profile = read_profile(path)
        prediction = _prediction(run, maxtext, settings or (), pod)
        found = diagnose(profile, prediction, pod=None if isinstance(prediction, Result) else pod)
    text = json_text(found.facts()) if as_json else str(found)
    write = partial(write_diagnosis, found, html=html)
    text = with_files(text, folder, write, as_json=as_json)
    return printed(text, as_json=as_json, quiet=quiet)


def _prediction(
    path: str | None, maxtext: str | None, settings: Sequence[str], pod: str | None
) -> "Result | Compiled | None":
    """Return the result of a run file or a MaxText config, or a compiled program; None for none.

    settings: changes of the plan. pod: the slice of a MaxText config.
    """
    if path is not None and maxtext is not None:
        raise FileError(f"{path} and --maxtext are both predictions; give one")
    if maxtext is not None or (path is not None and (path == "-" or path.endswith(".toml"))):
        from tpusim.cli.simulate_command import read_arguments
        from tpusim.runfile import ServingRun
        from tpusim.simulation import simulate

        words = [] if path is None else [path]
        plan = read_arguments(words, settings, maxtext, pod, verbose=False)
        with blame(plan.where):
            if isinstance(plan, ServingRun):
                raise PlanError("[serving] is of a server, and a profile is compared with a [plan]")
            return simulate(plan.model, plan.plan, plan.pod, input=plan.input)
    if path is not None and path.endswith((".yml", ".yaml")):
        raise FileError(f"{path}: a MaxText config is given as --maxtext {path}")
    if settings:
        raise FileError("--set changes a plan, and none is given; give a run file, or leave it out")
    if path is None:
        return None
    from tpusim.compiler import load

    return load(path)
