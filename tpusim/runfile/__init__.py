"""Run files: one TOML file a run, with the sections [slice], [model] and [plan]."""

from tpusim.runfile.blame import blame
from tpusim.runfile.read import Run, read_run

__all__ = ["Run", "blame", "read_run"]
