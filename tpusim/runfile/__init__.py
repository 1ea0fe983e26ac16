"""Run files: one TOML file a run, with the sections [slice], [model] and [plan].

A sweep is a run file with a section [sweep] besides.
"""

from tpusim.runfile.read import Run, Sweep, changed_plan, read_run, read_sweep

__all__ = ["Run", "Sweep", "changed_plan", "read_run", "read_sweep"]
