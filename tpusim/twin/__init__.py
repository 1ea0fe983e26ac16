"""Twins: a plan as a JAX program, through the TPU compiler, and the two side by side."""

from tpusim.twin.check import PlanCheck, check
from tpusim.twin.compare import compare
from tpusim.twin.comparison import TwinComparison
from tpusim.twin.export import export_jax, export_step
from tpusim.twin.step_source import ExportedStep

__all__ = [
    "ExportedStep",
    "PlanCheck",
    "TwinComparison",
    "check",
    "compare",
    "export_jax",
    "export_step",
]
