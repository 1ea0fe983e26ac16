"""The command `tpusim compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError, blame
from tpusim.base.json_text import json_text
from tpusim.base.shown_value import cut
from tpusim.base.text_width import printed_on
from tpusim.cli.replay_command import parse_mesh_option
from tpusim.hardware import parse_slice
from tpusim.report import check_folder, compare, write_comparison
from tpusim.report.compared_step import ComparedStep, read_step, step_of
from tpusim.runfile import read_run
from tpusim.simulation import replay, simulate

RUN_ENDING, RESULT_ENDING = ".toml", ".json"
"""Endings of run files and of result files; any other file is a compiled program."""

WHAT_TO_GIVE = "run files, result.json files or their folders, and HLO files"


def compare_files(
    paths: Sequence[str],
    folder: Path | None,
    *,
    settings: Sequence[str],
    pod: str | None,
    mesh: str | None,
    model_flops: float | None,
    as_json: bool = False,
) -> str:
    """Return runs, results and programs side by side; a folder gets table, data and figure.

    settings: changes of the one run file, which is then compared with itself.
    pod, mesh, model_flops: of the compiled programs.
    as_json: return the content of `compare.json`.
    """
    if folder is not None:
        check_folder(folder)
    options: dict[str, Any] = {
        "pod": None if pod is None else parse_slice(pod),
        "mesh": None if mesh is None else parse_mesh_option(mesh),
        "model_flops": model_flops,
    }
    _check(paths, settings, any(value is not None for value in options.values()))
    steps = [_read(path, options) for path in paths]
    if settings:
        steps.append(_run(paths[0], settings))
    found = compare(*steps)
    if folder is not None:
        with printed_on(None):
            write_comparison(found, folder)
    if as_json:
        return json_text(found.facts())
    return str(found) if folder is None else f"{found}\n\nreport      {folder}"


def _check(paths: Sequence[str], settings: Sequence[str], options: bool) -> None:
    """Raise FileError for arguments that do not belong together."""
    if settings and (len(paths) != 1 or not paths[0].endswith(RUN_ENDING)):
        raise FileError(
            f"--set {cut(settings[0])} changes one run file, which is then compared with itself as "
            f"it is written, but {_count(paths)}; give one run file, or leave --set out"
        )
    if len(paths) < 2 and not settings:
        raise FileError(
            f"{_count(paths)}, and a comparison has two or more; give {WHAT_TO_GIVE}, or --set "
            "KEY=VALUE to compare a run file with a change of it"
        )
    if options and not any(map(_is_program, paths)):
        raise FileError(
            "--slice, --mesh and --model-flops are for compiled programs, and no HLO file is "
            "given; leave them out"
        )


def _count(paths: Sequence[str]) -> str:
    one = len(paths) == 1
    return f"{paths[0]} is given alone" if one else f"{len(paths)} files are given"


def _is_program(path: str) -> bool:
    return not path.endswith((RUN_ENDING, RESULT_ENDING)) and not Path(path).is_dir()


def _read(path: str, options: dict[str, Any]) -> ComparedStep:
    """Return the step of a run file, a result file, or a compiled program."""
    if path.endswith(RUN_ENDING):
        return _run(path)
    if not _is_program(path):
        return read_step(path)
    from tpusim.compiler import load

    return step_of(replay(load(path), **options), path)


def _run(path: str, settings: Sequence[str] = ()) -> ComparedStep:
    run = read_run(path, settings)
    with blame(run.where):
        return step_of(simulate(run.model, run.plan, run.pod, input=run.input), run.where)
