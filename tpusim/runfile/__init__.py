"""Run files: one TOML file per run, with the sections [slice], [model] and [plan].

A run that was measured has a section [measured] besides, a sweep a section [sweep], and a search a
section [search].
"""

from tpusim.runfile.measured import Measured
from tpusim.runfile.read_run import (
    SearchFileRun,
    SimulationRun,
    SweepRun,
    changed_plan,
    measured_of,
    read_run,
    read_search,
    read_sweep,
    run_of,
)
from tpusim.runfile.toml_tables import read_toml
from tpusim.runfile.write_run import write_run

__all__ = [
    "Measured",
    "SearchFileRun",
    "SimulationRun",
    "SweepRun",
    "changed_plan",
    "measured_of",
    "read_run",
    "read_search",
    "read_sweep",
    "read_toml",
    "run_of",
    "write_run",
]
