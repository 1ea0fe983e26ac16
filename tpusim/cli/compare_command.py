"""The steps that `tpusim compare` is given."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError, blame
from tpusim.base.shown_value import cut
from tpusim.report.compared_step import ComparedStep, read_step, step_of
from tpusim.runfile import read_one_plan
from tpusim.simulation import replay, simulate

RUN_ENDING, RESULT_ENDING = ".toml", ".json"
"""Endings of run files and of result files; any other file is a compiled program."""

WHAT_TO_GIVE = "run files, result.json files or their folders, and HLO files"


def compared_steps(
    paths: Sequence[str], settings: Sequence[str], options: dict[str, Any]
) -> list[ComparedStep]:
    """Return the steps of runs, results and programs.

    settings: changes of the one run file, which is then compared with itself.
    options: of the compiled programs, as `replay` takes them; None where nothing is said.
    """
    _check(paths, settings, any(value is not None for value in options.values()))
    steps = [_read(path, options) for path in paths]
    return [*steps, _run(paths[0], settings)] if settings else steps


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
    run = read_one_plan(path, settings)
    with blame(run.where):
        return step_of(simulate(run.model, run.plan, run.pod, input=run.input), run.where)
