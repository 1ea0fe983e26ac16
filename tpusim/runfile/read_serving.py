"""Run files with a section [serving], read into what the simulation of a server takes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, blame
from tpusim.runfile.architectures import split_model
from tpusim.runfile.file_models import serving_file
from tpusim.runfile.read_run import (
    SimulationRun,
    changed_run,
    model_of,
    one_plan,
    slice_of,
    validated,
    written_tables,
)
from tpusim.runfile.schema import SECTIONS, wanted
from tpusim.runfile.serving import (
    FAILURES,
    SERVING,
    TRAFFIC,
    ServingRun,
    failures_of,
    server_of,
    traffic_of,
)
from tpusim.runfile.toml_tables import override
from tpusim.runfile.training import TRAIN

_OTHERS = tuple(name for name in (*SECTIONS, TRAIN) if name not in ("slice", "model"))
"""Sections that a file with a server does not have."""


@checked_call
def read_serving(path: str | Path, overrides: Sequence[str] = ()) -> ServingRun:
    """Return the server of a file, changed by `overrides` such as `serving.max_num_seqs=64`.

    Raise a TpusimError of one sentence, which names the file and the key, as `read_run` does.
    """
    where, written = written_tables(path, overrides)
    with blame(where):
        return serving_of(override(written, overrides), where, Path(path).parent)


def read_step(path: str | Path, overrides: Sequence[str] = ()) -> SimulationRun | ServingRun:
    """Return what a file says to simulate: a step of training, or of a server.

    Raise as `read_run` does, also for a file with [sweep] or [search].
    """
    where, written = written_tables(path, overrides)
    if SERVING not in written:
        return one_plan(changed_run(written, overrides, where, Path(path).parent))
    with blame(where):
        return serving_of(override(written, overrides), where, Path(path).parent)


def serving_of(tables: Mapping[str, Any], where: str, folder: Path) -> ServingRun:
    """Return the server of the tables of a run file. Raise as `read_serving` does.

    where: the words that name the run in messages.
    folder: that paths in the file are relative to.
    """
    if SERVING not in tables:
        raise PlanError(f"the section [serving] is missing; write {wanted([SERVING])}")
    for name in _OTHERS:
        if name in tables:
            raise PlanError(f"the file has [serving] and [{name}]; leave one of them out")
    given, other = split_model(tables)
    data = validated(serving_file(), given)
    model, notes = model_of(data["model"], folder, other)
    pod = slice_of(data["slice"], folder)
    plan, engine, options = server_of(data[SERVING], pod.chip.generation)
    traffic = traffic_of(data[TRAFFIC]) if TRAFFIC in data else None
    failures = failures_of(data[FAILURES], options) if FAILURES in data else None
    return ServingRun(
        where=where,
        model=model,
        plan=plan,
        pod=pod,
        engine=engine,
        options=options,
        traffic=traffic,
        failures=failures,
        folder=folder,
        notes=notes,
    )
