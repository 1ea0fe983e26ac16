"""Run files: one TOML file per run, with the sections [slice], [model] and [plan].

A sweep is a run file with a section [sweep] besides.
"""

from tpusim.runfile.read_run import SimulationRun, SweepRun, changed_plan, read_run, read_sweep

__all__ = ["SimulationRun", "SweepRun", "changed_plan", "read_run", "read_sweep"]
