"""What a user decides about a server: `tpusim serve --knee`, and `tpusim search` of servers."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from tpusim.base.errors import FileError, TpusimError, blame
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.base.text_width import printed_on
from tpusim.cli.progress import show_work
from tpusim.runfile import ServerSearchRun, ServingRun
from tpusim.serving.advice import server_advice
from tpusim.serving.configuration import Configuration
from tpusim.serving.knee import knee_of
from tpusim.serving.search import Targets, search_servers
from tpusim.serving.search.found_server import ServerSearch
from tpusim.serving.search.search_report import server_search_facts, server_search_text


def configuration_of(run: ServingRun) -> Configuration:
    """Return the server of a run file."""
    return Configuration(pod=run.pod, plan=run.plan, engine=run.engine, **asdict(run.options))


def find_knee(run: ServingRun, *, as_json: bool) -> str:
    """Return the load that saturates the server of a run file."""
    with blame(run.where):
        found = knee_of(configuration_of(run), run.model, run.requests())
    return json_text(found.facts()) if as_json else str(found)


def advise_server(
    run: ServingRun, targets: Targets | None, *, top: int | None, as_json: bool
) -> str:
    """Return what changes of the server of a run file gain."""
    with blame(run.where):
        found = server_advice(configuration_of(run), run.model, run.requests(), targets)
    if as_json:
        return json_text(found.facts())
    return str(found if top is None else replace(found, top=top))


def check_server_search(given: ServerSearchRun, options: Mapping[str, bool]) -> None:
    """Raise FileError for an option that a search for servers does not have."""
    for name, is_given in options.items():
        if is_given:
            raise FileError(
                f"{given.run.where}: {name} is for a search of training plans, and the file has "
                "[serving]; leave it out"
            )


def search_for_servers(
    given: ServerSearchRun, folder: Path | None, *, count: bool, as_json: bool, quiet: bool
) -> str:
    """Search for the servers of a run file, and return the report, which a folder gets too."""
    run, space = given.run, given.space
    if count:
        number = len(space)
        return json_text({"servers": number}) if as_json else f"search      {number:,} servers"
    with blame(run.where), show_work("searching", quiet=quiet or as_json):
        found = search_servers(run.model, space, run.requests(), given.targets, **given.how)
    name = run.model.name
    if folder is not None:
        with printed_on(None):
            write_files(folder, _files(found, server_search_text(found, space, name), name))
    if as_json:
        return json_text(server_search_facts(found))
    text = server_search_text(found, space, name, timed=True)
    return text if folder is None else f"{text}\n\ntable       {folder}"


def _files(found: ServerSearch, page: str, model: str) -> dict[str, bytes]:
    """Return `search.txt` and `.json`, and the manifest of the best server if it has one."""
    files = {
        "search.txt": f"{page}\n".encode(),
        "search.json": f"{json_text(server_search_facts(found))}\n".encode(),
    }
    if found.best:
        try:
            files["server.yaml"] = found.best[0].configuration.manifest(model).encode()
        except TpusimError:
            return files
    return files
