"""Run files: one TOML file per run, with the sections [slice], [model] and [plan].

A sweep is a run file with a section [sweep] besides, and a search one with a section [search].
"""

from tpusim.runfile.read_run import (
    SearchFileRun,
    SimulationRun,
    SweepRun,
    changed_plan,
    read_run,
    read_search,
    read_sweep,
)

__all__ = [
    "SearchFileRun",
    "SimulationRun",
    "SweepRun",
    "changed_plan",
    "read_run",
    "read_search",
    "read_sweep",
]
