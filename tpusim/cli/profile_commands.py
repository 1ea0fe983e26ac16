"""Commands on profiles of real steps."""

from functools import partial
from typing import Annotated

from tpusim.base.collection import garbage_collector_on
from tpusim.base.errors import blame
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


@app.command()
@garbage_collector_on()
def diagnose(
    path: Annotated[str, argument("PROFILE", "A *.xplane.pb or *.trace.json.gz, or its folder.")],
    run: Annotated[
        str | None,
        argument("[RUN.toml]", "Its plan; or a FILE.hlo. By default, the profile's own program."),
    ] = None,
    out: ReportFolder = None,
    html: PageOption = True,
    settings: RunSettings = None,
    maxtext: Annotated[
        str | None, option("--maxtext", "CONFIG", "Its MaxText config, in place of RUN.toml.")
    ] = None,
    pod: Annotated[
        str | None, option("--slice", "SLICE", "That ran it, if the profile does not say: v6e-8.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Say where a profiled step and its prediction differ."""
    from tpusim.cli.diagnose_command import prediction_of
    from tpusim.cli.progress import show_work
    from tpusim.diagnosis import diagnose, write_diagnosis
    from tpusim.profiles import read_profile

    folder = tried_folder(out, "report")
    with show_work("reading and simulating", quiet=quiet):
        profile = read_profile(path)
        prediction = prediction_of(run, maxtext, settings or (), pod)
        with blame(profile.name):
            found = diagnose(profile, prediction, pod=pod if prediction is None else None)
    text = json_text(found.facts()) if as_json else str(found)
    write = partial(write_diagnosis, found, html=html)
    text = with_files(text, folder, write, as_json=as_json)
    return printed(text, as_json=as_json, quiet=quiet)
